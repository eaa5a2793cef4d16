"""Decides what a proposal shows, that its digest is of exactly that, and how people approve, reject and edit it.

For the command line, a console and code of your own: it takes a `Ledger` under an operator's login and the tools' `Registry`.
A tool that is not loaded here is told, and its proposal can still be read, approved and rejected: the row says everything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from counterfoil.ledger import proposals as doors
from counterfoil.ledger.canonical import INTEGER_MAX, load_stored, parse_arguments, sha256_of
from counterfoil.ledger.connection import Ledger
from counterfoil.ledger.digests import DIGEST_SHOWN, BoundIntent, intent_digest, proposal_digest
from counterfoil.ledger.errors import ArgumentError, ConfigError, CounterfoilError, DecisionRefused
from counterfoil.ledger.keys import action_id, step_of
from counterfoil.ledger.proposals import Answer, Decided, Proposal, ProposalState, ProposedStep, StagedStep
from counterfoil.outbox.intents import DOOR_RULES, CheckedCall, DoorRules, check_call
from counterfoil.people.amounts import totals
from counterfoil.people.refusals import refusal
from counterfoil.people.words import check_words
from counterfoil.providers.contract import Contract
from counterfoil.providers.registry import Registry
from counterfoil.providers.spec import ToolSpec

ContractOf = Callable[[ToolSpec], Contract]
"""Which contract is in force for a tool; settings may lengthen the times that its code declares."""


def declared(spec: ToolSpec) -> Contract:
    """The contract of the tool's code."""
    return spec.contract


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownStep:
    """A step that commits, and what its tool says of it here; without the tool, `spec` and `contract` are None."""

    step: ProposedStep
    spec: ToolSpec | None
    contract: Contract | None

    @property
    def amount_field(self) -> str | None:
        """The argument that an approval within bounds leaves open; None where the tool has none, or is not loaded."""
        return self.spec.amount[0] if self.spec is not None and self.spec.amount else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownStaged:
    """What stands staged, and when it lapses by itself, in the provider's words; None: never, or not known here."""

    step: StagedStep
    lapses_at: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A proposal as a person is shown it."""

    proposal: Proposal
    digest: str
    """64 hex digits, computed from what is shown."""
    steps: tuple[ShownStep, ...]
    staged: tuple[ShownStaged, ...]

    @property
    def digest_shown(self) -> str:
        """As many digits as a person repeats."""
        return self.digest[:DIGEST_SHOWN]

    @property
    def totals(self) -> dict[str, int]:
        """What the steps that commit move, in minor units by currency."""
        return totals((shown.step.amount_minor, shown.step.currency) for shown in self.steps)

    @property
    def audience(self) -> tuple[str, ...]:
        """Everybody who sees a step that commits."""
        return tuple(sorted({name for shown in self.steps for name in shown.step.audience}))

    @property
    def unread(self) -> bool:
        """Whether a worker must still read the version of a resource; until then it cannot be approved."""
        return any(s.step.reads_version and s.step.expected_resource_version is None for s in self.steps)

    @property
    def approved_by(self) -> tuple[str, ...]:
        """Who has approved exactly this, digest and all."""
        said = self.proposal.decisions
        return tuple(each.by_person for each in said if each.verdict == "approved" and each.digest == self.digest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Edited:
    """What an edit has changed: by argument, the value before and after; and the proposal as it is to be decided now."""

    before: ProposedStep
    after: ProposedStep
    shown: Shown


def show(ledger: Ledger, proposal_id: str, *, registry: Registry, contract_of: ContractOf = declared) -> Shown:
    """The proposal with its digest. Raises `NotFound`, and an error that is ours where the database binds another digest."""
    proposal = doors.read_proposal(ledger, proposal_id)
    digest = digest_of(proposal)
    erased = any(step.erased_at is not None for step in proposal.steps)
    if erased:
        digest = proposal.digest  # decided long ago; the hashes have outlived what they were taken over
    elif digest != proposal.digest:
        raise CounterfoilError(
            f"what {proposal_id} shows is not what the database would bind.",
            fix="Decide nothing on it: ledger and command line are of different versions, or somebody has tampered.",
        )
    return Shown(
        proposal=proposal,
        digest=digest,
        steps=tuple(_shown(step, registry, contract_of) for step in proposal.steps or proposal.all_steps[-1:]),
        staged=tuple(ShownStaged(step=step, lapses_at=_lapse(step, registry)) for step in proposal.staged),
    )


def digest_of(proposal: Proposal) -> str:
    """What a decision on this binds, from what was read: the arguments' own text is hashed, not their recorded hash."""
    return proposal_digest(
        proposal_id=proposal.proposal_id,
        tenant=proposal.tenant,
        run=proposal.run,
        actor=proposal.actor,
        note=proposal.note,
        people=proposal.people,
        steps=[intent_digest(_bound(step, proposal), proposal.expires_at) for step in proposal.steps],
        staged=[(step.action_id, step.receipt) for step in proposal.staged],
    )


def approve(
    ledger: Ledger,
    proposal_id: str,
    *,
    digest: str,
    by: str,
    channel: str,
    registry: Registry,
    reason: str | None = None,
    amount_max_minor: int | None = None,
) -> Decided:
    """Approves what has this digest, or counts as one of two who do (`Answer.ONE_MORE`).

    `digest`: at least 16 digits of the one shown. With `amount_max_minor` a corrected call under the same label may differ
    in its amount, up to that, without asking again: single calls of one person's approval only. Raises `DecisionRefused`
    (its `code` is an `Answer`), `ArgumentError`, `NotFound`, `NotAllowed`, `LedgerUnavailable`.
    """
    check_words(by, channel, reason)
    if len(digest) < DIGEST_SHOWN or not set(digest.lower()) <= set("0123456789abcdef"):
        raise ArgumentError(
            f"a digest has at least {DIGEST_SHOWN} hex digits.", path="digest", code="usage", fix="`show` ends with it."
        )
    field = None
    if amount_max_minor is not None:
        field = _bounded_field(show(ledger, proposal_id, registry=registry), amount_max_minor)
    decided = doors.decide(
        ledger,
        proposal_id,
        verdict="approved",
        digest=digest,
        by=by,
        channel=channel,
        reason=reason,
        amount_field=field,
        amount_max_minor=amount_max_minor,
    )
    if decided.answer in (Answer.APPROVED, Answer.ONE_MORE):
        return decided
    raise refusal(decided, doors.read_proposal(ledger, proposal_id))


def reject(
    ledger: Ledger, proposal_id: str, *, by: str, channel: str, reason: str, digest: str | None = None
) -> Decided:
    """Rejects it: nothing of it is sent, and the model is told. With `digest`, only what was shown. Raises as `approve`."""
    check_words(by, channel, reason)
    decided = doors.decide(
        ledger, proposal_id, verdict="rejected", digest=digest, by=by, channel=channel, reason=reason
    )
    if decided.answer is Answer.REJECTED:
        return decided
    raise refusal(decided, doors.read_proposal(ledger, proposal_id))


def edit(
    ledger: Ledger,
    proposal_id: str,
    *,
    place: int,
    changes: Mapping[str, object],
    by: str,
    channel: str,
    registry: Registry,
    reason: str | None = None,
    digest: str | None = None,
    rules: DoorRules = DOOR_RULES,
    contract_of: ContractOf = declared,
) -> Edited:
    """Replaces arguments of the step at `place` (1 for a single call) by a new revision, to be decided over a new digest.

    The tool, in its recorded version, checks the arguments and derives everything that follows from them. Raises
    `ConfigError` without the tool, `ArgumentError` for what it refuses, else as `approve`; code `unchanged` when nothing
    differs.
    """
    check_words(by, channel, reason)
    shown = show(ledger, proposal_id, registry=registry, contract_of=contract_of)
    if digest is not None and not shown.digest.startswith(digest.lower()):
        raise refusal(Decided(answer=Answer.CHANGED), shown.proposal)
    if not shown.proposal.steps:
        raise refusal(Decided(answer=Answer.GONE), shown.proposal)
    found = next((each for each in shown.steps if each.step.place == place), None)
    if found is None:
        raise ArgumentError(
            f"{proposal_id} has no step {place}.", path="step", code="usage", fix="`show` numbers its steps."
        )
    checked = _checked(found, changes, shown.proposal, rules)
    if checked.arguments == found.step.arguments:
        raise DecisionRefused("that changes nothing.", code="unchanged", fix="Approve it as it is, or reject it.")
    decided = doors.edit_step(
        ledger,
        found.step.action_id,
        new_id=_next_revision(found.step, shown.proposal),
        digest=shown.digest,
        by=by,
        channel=channel,
        reason=reason,
        target=checked.target,
        arguments=checked.arguments,
        arguments_sha256=checked.arguments_sha256,
        audience=checked.audience,
        compensation=checked.compensation,
        correction=checked.correction,
        once_key=checked.once_key if found.step.repeat_reason is None else None,
        amount_minor=checked.amount_minor,
        currency=checked.currency,
    )
    if decided.answer is not Answer.EDITED:
        raise refusal(decided, doors.read_proposal(ledger, proposal_id))
    again = show(ledger, proposal_id, registry=registry, contract_of=contract_of)
    after = next(each.step for each in again.steps if each.step.place == place)
    return Edited(before=found.step, after=after, shown=again)


def refused_now(shown: Shown, digest: str | None) -> DecisionRefused | None:
    """Why a decision on what was shown would not stand, as far as can be told without making it."""
    p, answer = shown.proposal, None
    if p.state is not ProposalState.OPEN:
        answer = Answer.EXPIRED if p.state is ProposalState.EXPIRED else Answer.DECIDED
    elif not p.waits:
        answer = Answer.EXPIRED
    elif digest is not None and not shown.digest.startswith(digest.lower()):
        answer = Answer.CHANGED
    return None if answer is None else refusal(Decided(answer=answer), p)


def value_of(text: str, recorded: object) -> object:
    """What a person has typed for an argument: JSON, or the text itself.

    Where a text is recorded, what is typed is a text, too, so that `1182` stays one; JSON in quotes is always a text.
    """
    try:
        read = parse_arguments(f'{{"value": {text}}}')
    except ArgumentError:
        return text
    value = read["value"] if len(read) == 1 else text
    return text if isinstance(recorded, str) and not isinstance(value, str) else value


def _checked(shown: ShownStep, changes: Mapping[str, object], proposal: Proposal, rules: DoorRules) -> CheckedCall:
    """The step with these arguments, as its tool would have let it in."""
    step = shown.step
    if shown.spec is None:
        raise ConfigError(
            f"the tool {step.tool} version {step.tool_version} is not loaded here, so nothing can check an edit.",
            key="tools",
            fix="List its module under `tools`, or reject the proposal with a reason.",
        )
    return check_call(
        shown.spec,
        {**load_stored(step.arguments), **changes},
        tenant=proposal.tenant,
        run=proposal.run,
        actor=step.actor,
        rules=rules,
        parent=step.parent_action_id,
    )


def _next_revision(step: ProposedStep, proposal: Proposal) -> str:
    return action_id(proposal.tenant, proposal.run, step_of(step.step), step.revision + 1, "do")


def _bounded_field(shown: Shown, amount_max_minor: int) -> str:
    """The argument that bounds leave open, where bounds make sense."""
    why = None
    first = shown.steps[0]
    amount = first.step.amount_minor
    if shown.proposal.is_plan or shown.proposal.people > 1:
        why = "only a single call that one person approves can be approved within bounds."
    elif first.amount_field is None or amount is None:
        why = f"{first.step.tool} has no amount that is known here."
    elif not amount <= amount_max_minor <= INTEGER_MAX:
        why = f"a bound is at least what is asked for, {amount} minor units."
    if why is not None or first.amount_field is None:
        raise ArgumentError(why or "", path="amount_max_minor", code="usage", fix="Approve exactly what is shown.")
    return first.amount_field


def _shown(step: ProposedStep, registry: Registry, contract_of: ContractOf) -> ShownStep:
    spec = registry.find(step.tool, step.tool_version)
    return ShownStep(step=step, spec=spec, contract=None if spec is None else contract_of(spec))


def _lapse(step: StagedStep, registry: Registry) -> str | None:
    spec = registry.find(step.tool, step.tool_version)
    if spec is None or spec.lapses is None or step.result is None:
        return None
    value = load_stored(step.result).get(spec.lapses)
    return value if isinstance(value, str) else None


def _bound(step: ProposedStep, proposal: Proposal) -> BoundIntent:
    return BoundIntent(
        tool=step.tool,
        tool_version=step.tool_version,
        class_=step.class_,
        effect=step.effect,
        target=step.target,
        provider=step.provider,
        account=step.account,
        arguments_sha256=sha256_of(step.arguments),
        audience=step.audience,
        amount_minor=step.amount_minor,
        currency=step.currency,
        compensation=step.compensation,
        correction=step.correction,
        expected_resource_version=step.expected_resource_version,
        actor=step.actor,
        tenant=proposal.tenant,
        run=proposal.run,
        step=step.step,
        action_id=step.action_id,
        revision=step.revision,
        phase=step.phase,
        parent_action_id=step.parent_action_id,
    )
