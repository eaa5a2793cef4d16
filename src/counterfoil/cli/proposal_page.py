"""Decides how a proposal looks to the person who decides on it: everything that its digest binds, and the digest last."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from counterfoil.cli.output import distance, stamp
from counterfoil.ledger.digests import DIGEST_SHOWN
from counterfoil.ledger.proposals import ProposalState, ProposedStep
from counterfoil.ledger.unwind_steps import RANKS
from counterfoil.people.amounts import money, told
from counterfoil.people.proposals import Shown, ShownStaged, ShownStep
from counterfoil.people.readable import Value, stored, values_of, visible
from counterfoil.providers.contract import Contract, Grade

REACH = ("stays inside the company", "reaches customers", "reaches the public", "has legal weight")
"""Blast radius, by the rank of the widest audience."""

Fact = tuple[str, Sequence[str]]


def reach(audience: Sequence[str]) -> str:
    """How far an effect that this audience sees goes."""
    return REACH[max((RANKS.get(name, 0) for name in audience), default=0)]


def remaining(expires_at: datetime, now: datetime) -> str:
    """`in 3 h`, or that the time is over."""
    return distance(expires_at, now) if expires_at > now else f"expired {distance(expires_at, now)}"


def page(shown: Shown) -> Iterator[str]:
    """The lines of `proposal show`; untrusted text in them is inert. The last is the digest."""
    yield from fact_lines(_head(shown))
    for staged in shown.staged:
        yield from ("", f"staged: {staged.step.tool}")
        yield from fact_lines(_staged(staged), indent="  ")
    for each in shown.steps:
        kind = f"{each.step.class_}, by {visible(each.step.provider)}, account {visible(each.step.account)}"
        yield from ("", f"step {each.step.place}: {each.step.tool} version {each.step.tool_version} ({kind})")
        yield from fact_lines(_step(each), indent="  ")
    yield ""
    yield from fact_lines(_said(shown))
    yield f"digest {shown.digest_shown}"


def as_data(shown: Shown) -> dict[str, object]:
    """The same for programs, with the whole digest."""
    p = shown.proposal
    return {
        "proposal_id": p.proposal_id,
        "state": p.state.value,
        "digest": shown.digest,
        "tenant": p.tenant,
        "run": p.run,
        "actor": p.actor,
        "is_plan": p.is_plan,
        "note": p.note,
        "people": p.people,
        "approved_by": list(shown.approved_by),
        "expires_at": p.expires_at,
        "decided_by": p.decided_by,
        "decided_at": p.decided_at,
        "created_at": p.created_at,
        "now": p.now,
        "amounts": [{"amount_minor": n, "currency": currency or None} for currency, n in shown.totals.items()],
        "audience": list(shown.audience),
        "reach": reach(shown.audience),
        "version_unread": shown.unread,
        "staged": [
            {
                "action_id": s.step.action_id,
                "tool": s.step.tool,
                "target": s.step.target,
                "receipt": s.step.receipt,
                "arguments": stored(s.step.arguments),
                "amount_minor": s.step.amount_minor,
                "currency": s.step.currency,
                "lapses_at": s.lapses_at,
            }
            for s in shown.staged
        ],
        "steps": [_step_data(each) for each in shown.steps],
        "decisions": [
            {**{name: getattr(said, name) for name in said.__dataclass_fields__}, "counts": said.digest == shown.digest}
            for said in p.decisions
        ],
        "rejected_before": [
            {
                "proposal_id": before.proposal_id,
                "tool": before.tool,
                "arguments": stored(before.arguments),
                "by": before.by_person,
                "reason": before.reason,
                "at": before.at,
            }
            for before in p.rejected
        ],
    }


def differences(before: ProposedStep, after: ProposedStep) -> Iterator[str]:
    """What an edit has changed, a line each: arguments, and what follows from them."""
    old, new = _by_name(before), _by_name(after)
    for name in sorted(old | new):
        if old.get(name) != new.get(name):
            yield f"{name}: {old.get(name, '(not given)')} -> {new.get(name, '(not given)')}"


def _by_name(step: ProposedStep) -> dict[str, str]:
    follows = {
        "target": visible(step.target),
        "seen by": visible(", ".join(step.audience)),
        "amount": _amount(step.amount_minor, step.currency) or "none",
    }
    calls = _call_by_name("undo", step.compensation) | _call_by_name("correction", step.correction)
    return {value.name: value.text for value in values_of(step.arguments)} | follows | calls


def _call_by_name(what: str, text: str | None) -> dict[str, str]:
    """`undo`: its tool, and `undo, amount_minor`: what it would be called with."""
    if text is None:
        return {what: "none"}
    tool, values = _called(text)
    return {what: tool or "-"} | {f"{what}, {value.name}".removesuffix(", "): value.text for value in values}


def _head(shown: Shown) -> Iterator[Fact]:
    p = shown.proposal
    yield "proposal", [p.proposal_id]
    yield "state", [_state(shown)]
    yield "asked by", [f"{visible(p.actor)}, tenant {visible(p.tenant)}, run {visible(p.run)}"]
    if p.note:
        yield "note", [f"| {visible(line)}" for line in p.note.split("\n")]
    if p.state is ProposalState.OPEN:
        yield "expires", [f"{stamp(p.expires_at)} ({remaining(p.expires_at, p.now)})"]
    yield "moves", [visible(told(shown.totals) or "no money")]
    yield "seen by", [f"{visible(', '.join(shown.audience) or 'nobody')}: {reach(shown.audience)}"]
    for before in p.rejected:
        why = f": {visible(before.reason)}" if before.reason else ""
        told_before = f"{before.proposal_id} on {stamp(before.at)} by {visible(before.by_person or '-')}{why}"
        yield "rejected before", [told_before, *argument_lines(values_of(before.arguments))]


def _state(shown: Shown) -> str:
    p = shown.proposal
    if p.state is ProposalState.EXPIRED:
        return f"expired on {stamp(p.decided_at or p.expires_at)}"
    if p.state is not ProposalState.OPEN:
        return f"{p.state} by {visible(p.decided_by or '-')} on {stamp(p.decided_at or p.created_at)}"
    if not p.waits:
        return "expired: nothing of it is sent"
    if shown.unread:
        return "open; a worker reads the resource's version first, and then the digest is another"
    missing = p.people - len(shown.approved_by)
    return f"open: {missing} of {p.people} people must approve" if p.people > 1 else "open: one person must approve"


def _staged(staged: ShownStaged) -> Iterator[Fact]:
    step = staged.step
    yield "target", [visible(step.target)]
    amount = _amount(step.amount_minor, step.currency)
    if amount:
        yield "amount", [amount]
    yield "arguments", argument_lines(values_of(step.arguments))
    yield "receipt", [visible(step.receipt or "-")]
    if staged.lapses_at:
        yield "lapses", [visible(staged.lapses_at)]
    yield "recorded", [step.action_id]


def _step(shown: ShownStep) -> Iterator[Fact]:
    step = shown.step
    yield "target", [f"{visible(step.effect)} on {visible(step.target)}"]
    amount = _amount(step.amount_minor, step.currency)
    if amount:
        yield "amount", [amount]
    yield "arguments", ["(erased)"] if step.erased_at else argument_lines(values_of(step.arguments))
    yield "seen by", [f"{visible(', '.join(step.audience) or 'nobody')}: {reach(step.audience)}"]
    yield "undo", _call(step.compensation, "no undo")
    yield "correction", _call(step.correction, "none")
    yield "outcome", [_outcome(shown.contract)]
    if step.reads_version or step.expected_resource_version is not None:
        version = step.expected_resource_version
        yield "version", ["not read yet" if version is None else visible(version)]
    if step.parent_action_id:
        yield "about", [step.parent_action_id]
    if step.repeat_reason:
        yield "again", [visible(step.repeat_reason)]
    if step.edited_from:
        yield "edited", [f"by a person; before, it was {step.edited_from}"]
    yield "recorded", [f"{step.action_id}, step {visible(step.step)}, revision {step.revision}, {step.state}"]
    if step.superseded_by:
        yield "replaced by", [step.superseded_by]
    if step.amount_field is not None and step.amount_max_minor is not None:
        within = f"{visible(step.amount_field)} up to {_amount(step.amount_max_minor, step.currency)}"
        yield "bounds", [within + (", continued from an earlier approval" if step.carried_from else "")]
    if step.consumed_at:
        yield "approval", [f"used by the first claim on {stamp(step.consumed_at)}"]


def _said(shown: Shown) -> Iterator[Fact]:
    for said in shown.proposal.decisions:
        over = "this" if said.digest == shown.digest else f"another digest, {(said.digest or '-')[:DIGEST_SHOWN]}"
        why = f": {visible(said.reason)}" if said.reason else ""
        who = f"{visible(said.by_person)} (login {visible(said.db_role)}, {visible(said.channel)})"
        yield said.verdict, [f"{stamp(said.at)} by {who}, over {over}{why}"]


def _outcome(contract: Contract | None) -> str:
    if contract is None:
        return "not known here: the tool is not loaded"
    match contract.grade:
        case Grade.A:
            return "grade A: the provider does it once under our key"
        case Grade.B:
            return "grade B: if the answer is lost, an exact look-up tells what happened"
        case Grade.C:
            return "grade C: if the answer is lost, a look-up tells what happened, after a while"
        case Grade.D if contract.lookup:
            return (
                "grade D: if the answer is lost, a look-up may show that it happened; otherwise a person must find out"
            )
        case Grade.D:
            return "grade D: if the answer is lost, a person must find out"


def _call(text: str | None, none: str) -> list[str]:
    """A recorded call, `{"arguments": …, "tool": …}`, as lines."""
    if text is None:
        return [none]
    tool, values = _called(text)
    if tool is None:
        return argument_lines(values)
    return [tool, *(f"  {line}" for line in argument_lines(values))]


def _called(text: str) -> tuple[str | None, Sequence[Value]]:
    """Tool and arguments of a recorded call; no tool, and all of it, where it is none."""
    call = stored(text)
    if "tool" not in call:
        return None, values_of(text)
    arguments = [value for value in values_of(text) if value.name.startswith("arguments")]
    named = [Value(value.name.removeprefix("arguments").removeprefix("."), value.lines) for value in arguments]
    return visible(str(call.get("tool"))), named


def argument_lines(values: Sequence[Value]) -> list[str]:
    """`name: value`, a line each; a text of several lines takes as many."""
    lines: list[str] = []
    for value in values:
        first, *more = value.lines
        lines += [
            f"{value.name}: {first}".removeprefix(": "),
            *(f"{' ' * (len(value.name) + 2)}{line}" for line in more),
        ]
    return lines or ["none"]


def _amount(amount_minor: int | None, currency: str | None) -> str | None:
    return None if amount_minor is None else visible(money(amount_minor, currency))


def fact_lines(pairs: Iterable[Fact], *, indent: str = "") -> Iterator[str]:
    """Names and what they are, in two columns; what is not ours in them went through `visible`."""
    found = list(pairs)
    width = max((len(name) for name, _ in found), default=0)
    for name, lines in found:
        for number, line in enumerate(lines):
            yield f"{indent}{name if not number else '':<{width}}  {line}"


def _step_data(shown: ShownStep) -> dict[str, object]:
    step = shown.step
    left_out = ("class_", "arguments", "compensation", "correction")
    return {
        **{name: getattr(step, name) for name in step.__dataclass_fields__ if name not in left_out},
        "class": step.class_,
        "arguments": stored(step.arguments),
        "compensation": None if step.compensation is None else stored(step.compensation),
        "correction": None if step.correction is None else stored(step.correction),
        "grade": None if shown.contract is None else shown.contract.grade.value,
        "tool_loaded": shown.spec is not None,
    }
