"""Decides how the agent re-ships a lost order: everything prepared, one decision, everything committed.

    python agent.py 1182

Read it from `reship` down. What comes before the decision can be taken back without a trace: a draft, a ticket that no
queue shows, a hold on the card. What comes after it runs by itself, in order, under keys of its own. The program may be
killed at any line, and started again with nothing but the order's number: each call finds what it recorded the first time.

`Words` is what a model would write. It may write something else on every try; whoever comes first is recorded.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from pydantic import JsonValue

from counterfoil import Counterfoil, NotAllowed, Proposal, Result, Run, Status


@dataclass(frozen=True)
class Words:
    """The texts of one try."""

    subject: str = "Your parcel is on its way again"
    body: str = "Your first parcel was lost in transit. We are sending it again; the re-shipping fee is 5.00 USD."
    summary: str = "Re-ship a parcel lost in transit"
    note: str = "The first parcel was lost; the customer agreed to the fee."


class NotYet(Exception):
    """A step is not decided yet, or did not happen: nothing goes on from here. Start the agent again later."""


def reship(run: Run, order_id: str, words: Words) -> Proposal:
    """The plan: two look-ups, three preparations, one proposal with the three steps that follow from its approval."""
    order = value_of(run.call("search_orders", {"order_id": order_id}))
    policy = value_of(run.call("lookup_policy", {"topic": order["status"]}))
    fee = {"order_id": order_id, "amount_minor": policy["fee_minor"], "currency": policy["currency"]}

    mail = {"order_id": order_id, "to": order["email"]}
    draft = done(run.stage("email_draft", {**mail, "subject": words.subject, "body": words.body}))
    ticket = done(run.stage("jira_stage", {"order_id": order_id, "project": "SUP", "summary": words.summary}))
    hold = done(run.stage("stripe_authorize", {**fee, "customer": order["customer"]}))

    return run.propose(
        [
            ("stripe_capture", {**fee, "of": hold.action_id}),
            ("jira_open", {"order_id": order_id, "of": ticket.action_id}),
            ("email_send", {**mail, "of": draft.action_id}),
        ],
        note=words.note,
    )


def done(result: Result) -> Result:
    """The result of a step that has succeeded. Raises NotYet for any other, which the next start asks for again."""
    if result.status is not Status.SUCCEEDED:
        raise NotYet(f"{result.status}: {result.code or result.next_step} ({result.action_id})")
    return result


def value_of(result: Result) -> dict[str, JsonValue]:
    """What a look-up has found."""
    value = done(result).value
    assert isinstance(value, dict)
    return value


def main(order_id: str) -> None:
    """Goes as far as it can, and tells where the run stands."""
    cf = Counterfoil.from_settings()
    try:
        with cf.run(f"reship-{order_id}", tenant="acme", actor="reship-bot") as run:
            proposal = reship(run, order_id, Words())
            outcome = proposal.result()
            if not outcome.suspend:  # decided: its steps may be under way
                outcome = proposal.result(wait_s=20)
            print(proposal.id, outcome.status, *([outcome.code] if outcome.code else []))
            match outcome.status:
                case Status.AWAITING_APPROVAL:
                    print(f"a person decides: counterfoil proposal show {proposal.id}")
                case Status.SUCCEEDED:
                    print("captured, opened, sent")
                case Status.CANCELLED | Status.STALE | Status.FAILED:
                    unwind = run.unwind(f"the plan ended: {outcome.code}")
                    print("taken back:", unwind.result(wait_s=20).code)
                case _:
                    print("its steps are under way, in order; nothing to do here")
    except NotYet as reason:
        print(f"not yet: {reason}")
    except NotAllowed as ended:
        print(f"nothing to do: {ended}")


if __name__ == "__main__":
    main(sys.argv[1])
