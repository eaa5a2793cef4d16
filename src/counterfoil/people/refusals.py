"""Decides how a decision that does not stand is told: what stands instead, and what to do next."""

from __future__ import annotations

from typing import assert_never

from counterfoil.ledger.errors import DecisionRefused
from counterfoil.ledger.proposals import Answer, Decided, Proposal, ProposalState


def refusal(decided: Decided, proposal: Proposal) -> DecisionRefused:
    """The error for an answer that did nothing; `proposal` is how it stands now."""
    name = proposal.proposal_id
    again = f"`counterfoil proposal show {name}` shows what it is now."
    match decided.answer:
        case Answer.CHANGED:
            why, fix = f"{name} has changed since it was shown: nothing was decided.", again
        case Answer.EXPIRED:
            why, fix = f"{name} expired at {_at(proposal)}: nothing of it is sent.", "The agent has to ask anew."
        case Answer.DECIDED:
            why, fix = _standing(proposal), "That decision stands; nothing was changed by yours."
        case Answer.OWN:
            why = f"{name} was proposed by {proposal.actor!r}: an actor does not approve its own."
            fix = "Somebody else must."
        case Answer.SAME_PERSON:
            why = f"you have approved {name} already, by this name or by this login."
            fix = "A second person must, under a name and a login of their own."
        case Answer.VERSION_UNREAD:
            why = f"{name} is about a resource whose version a worker has not read yet."
            fix = "Show it again in a moment; without a worker that has the tool it stays so."
        case Answer.UNWINDING:
            why, fix = f"the run {proposal.run!r} is being taken back: nothing more of it is approved.", ""
        case Answer.GONE:
            why, fix = f"{name} has no such step that still waits.", again
        case Answer.EFFECT_TAKEN:
            why = "another tool has that effect on that target under way."
            fix = "Wait for its end, or choose another target."
        case Answer.ONCE_TAKEN:
            why, fix = "what may happen once only is another action's already.", "Choose other arguments, or reject it."
        case Answer.APPROVED | Answer.ONE_MORE | Answer.REJECTED | Answer.EDITED:
            raise AssertionError(f"{decided.answer} is no refusal")
        case never:
            assert_never(never)
    return DecisionRefused(why, code=decided.answer.value, fix=fix)


def _standing(proposal: Proposal) -> str:
    """Whose decision stands, and since when."""
    name, by = proposal.proposal_id, proposal.decided_by
    match proposal.state:
        case ProposalState.WITHDRAWN:
            return f"{name} was withdrawn at {_at(proposal)} (by {by}): there is nothing left to decide."
        case ProposalState.OPEN:
            return f"{name} is open again."  # cannot be: a decided proposal stays so
        case state:
            return f"{name} was {state} by {by} at {_at(proposal)}."


def _at(proposal: Proposal) -> str:
    at = proposal.expires_at if proposal.state in (ProposalState.EXPIRED, ProposalState.OPEN) else proposal.decided_at
    return (at or proposal.expires_at).strftime("%Y-%m-%dT%H:%M:%SZ")
