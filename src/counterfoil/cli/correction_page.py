"""Decides how a correction looks to the person who decides on it: what was seen, what would be said, and the digest last."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from counterfoil.cli.output import stamp
from counterfoil.cli.proposal_page import Fact, argument_lines, fact_lines
from counterfoil.ledger.canonical import canonical_json
from counterfoil.ledger.corrections import Correction, CorrectionState
from counterfoil.ledger.digests import DIGEST_SHOWN
from counterfoil.people.corrections import RANK_NAMES, said
from counterfoil.people.readable import values_of, visible

_TITLES = {
    CorrectionState.OPEN: "what would be said",
    CorrectionState.SENT: "what was said",
    CorrectionState.DISMISSED: "what is left unsaid",
}


@dataclass(frozen=True, slots=True)
class Reach:
    """Who would see the message, by its tool's word; or why it cannot be sent from here as it is."""

    audience: tuple[str, ...] | None = None
    target: str | None = None
    why_not: str | None = None


def page(found: Correction, reach: Reach) -> Iterator[str]:
    """The lines of `correction show`; untrusted text in them is inert."""
    yield from fact_lines(_head(found))
    yield from ("", "what was seen")
    yield from fact_lines(_seen(found), indent="  ")
    yield from ("", _TITLES[found.state])
    yield from fact_lines(_message(found, reach), indent="  ")
    if found.decisions or found.digest:
        yield ""
    yield from fact_lines(_decided(found))
    if found.digest is not None:
        yield f"digest {found.digest[:DIGEST_SHOWN]}"


def _head(found: Correction) -> Iterator[Fact]:
    yield "correction", [found.correction_id]
    yield "state", [found.state.value]
    yield "rank", [RANK_NAMES[found.rank]]
    yield "run", [f"{visible(found.run)}, tenant {visible(found.tenant)}"]
    yield "since", [stamp(found.open_since)]


def _seen(found: Correction) -> Iterator[Fact]:
    yield "done by", [f"{found.tool}, step {visible(found.step)}: {found.action_id}, {found.action_state.value}"]
    yield "target", [visible(found.target)]
    if found.seen_at is not None:
        yield "at", [stamp(found.seen_at)]
    yield "seen by", [visible(", ".join(found.audience)) or "nobody"]
    yield "arguments", argument_lines(values_of(found.arguments))
    if found.receipt is not None:
        yield "receipt", [visible(found.receipt)]


def _message(found: Correction, reach: Reach) -> Iterator[Fact]:
    written = said(found)
    if written is None:
        fix = f"counterfoil correction edit {found.correction_id} --tool TOOL --set NAME=VALUE"
        yield "nothing", [f"nobody has written what to say: {fix}"]
        return
    tool, arguments = written
    yield "by", [visible(tool)]
    if reach.target is not None:
        yield "about", [visible(reach.target)]
    if reach.audience is not None:
        yield "to be seen by", [visible(", ".join(reach.audience)) or "nobody"]
    yield "arguments", argument_lines(values_of(canonical_json(arguments)))
    if reach.why_not is not None:
        yield "cannot be sent", [visible(reach.why_not)]
    if found.sent_as is not None:
        state = f", {found.message_state.value}" if found.message_state else ""
        yield "recorded as", [f"{found.sent_as}{state}"]


def _decided(found: Correction) -> Iterator[Fact]:
    for each in found.decisions:
        why = f": {visible(each.reason)}" if each.reason else ""
        who = f"{visible(each.by_person)} (login {visible(each.db_role)}, {visible(each.channel)})"
        yield each.verdict, [f"{stamp(each.at)} by {who}{why}"]
