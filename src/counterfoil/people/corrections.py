"""Decides what a correction shows, and how people write, send and dismiss it. One correction is one message, never a batch.

For the command line, a console and code of your own: it takes a `Ledger` under an operator's login and the tools' `Registry`.
What would be said is held against its tool's arguments whenever somebody writes it, and again before it is sent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import assert_never

from counterfoil.ledger import corrections as doors
from counterfoil.ledger.canonical import canonical_json, load_stored, sha256_of
from counterfoil.ledger.connection import Ledger
from counterfoil.ledger.corrections import Answer, Answered, Correction, CorrectionState, Message
from counterfoil.ledger.digests import DIGEST_SHOWN
from counterfoil.ledger.errors import ArgumentError, ConfigError, DecisionRefused
from counterfoil.ledger.keys import action_id, step_of
from counterfoil.outbox.intents import DOOR_RULES, DoorRules, checked_arguments
from counterfoil.people.words import check_words
from counterfoil.providers.outcomes import Json
from counterfoil.providers.registry import Registry
from counterfoil.providers.spec import ToolSpec

RANK_NAMES = ("inside", "customer", "public", "legal")
"""What a correction's rank is called."""


def said(correction: Correction) -> tuple[str, dict[str, Json]] | None:
    """Tool and arguments of what would be said; None: nobody has written it, or what an agent has written is no call."""
    if correction.call is None:
        return None
    call = load_stored(correction.call)
    tool, arguments = call.get("tool"), call.get("arguments")
    return (tool, dict(arguments)) if isinstance(tool, str) and isinstance(arguments, dict) else None


def teller(registry: Registry, name: str, rules: DoorRules) -> ToolSpec:
    """The tool that says it. Raises `ConfigError`: it is not loaded here, tells nobody anything, or takes two persons."""
    spec = registry.get(name)
    if not spec.can_tell:
        raise ConfigError(
            f"{name} tells nobody anything.",
            fix="A correction is said by a tool that acts, moves no money and undoes nothing.",
        )
    if name in rules.two_person:
        raise ConfigError(
            f"{name} takes two persons, and a correction is one person's.",
            key="approval.two_person",
            fix="Use another tool.",
        )
    return spec


def edit(
    ledger: Ledger,
    correction_id: str,
    *,
    tool: str | None = None,
    changes: Mapping[str, str],
    by: str,
    channel: str,
    registry: Registry,
    reason: str | None = None,
    rules: DoorRules = DOOR_RULES,
) -> Correction:
    """Writes what would be said: `changes` over what is written, or, with another `tool`, all of it.

    A value is taken as text, and as JSON where the tool's argument is no text. Returns the correction with its new digest.
    Raises `ArgumentError` (the tool refuses it, or no tool is named), `ConfigError`, `NotFound`, `DecisionRefused` (code
    `unchanged` when nothing differs).
    """
    check_words(by, channel, reason)
    correction = doors.read_correction(ledger, correction_id)
    written = said(correction)
    name = tool or (written[0] if written else None)
    if name is None:
        raise ArgumentError(
            f"nobody has written what {correction_id} says.",
            path="tool",
            code="usage",
            fix="Name the tool that says it, with all its arguments: `--tool` at the command line.",
        )
    spec = teller(registry, name, rules)
    arguments: dict[str, object] = dict(written[1]) if written and written[0] == name else {}
    call: dict[str, Json] = {"tool": spec.name, "arguments": _taken(spec, arguments, changes, rules)}
    text = canonical_json(call)
    if text == correction.call and correction.state is CorrectionState.OPEN:
        raise DecisionRefused("that changes nothing.", code="unchanged", fix="Send it as it is, or dismiss it.")
    answered = doors.edit(ledger, correction_id, call=text, by=by, channel=channel, reason=reason)
    if answered.answer is not Answer.EDITED:
        raise refusal(answered, correction)
    return doors.read_correction(ledger, correction_id)


def send(
    ledger: Ledger,
    correction_id: str,
    *,
    digest: str,
    by: str,
    channel: str,
    registry: Registry,
    reason: str | None = None,
    rules: DoorRules = DOOR_RULES,
) -> Answered:
    """Sends exactly what has this digest, as an action of its own under its own key; a worker carries it out.

    `digest`: at least 16 digits of the one shown. Raises `DecisionRefused` (its `code` is an `Answer`), `ArgumentError`,
    `ConfigError`, `NotFound`, `NotAllowed`, `LedgerUnavailable`; after the last one the same again is told what stands.
    """
    check_words(by, channel, reason)
    if len(digest) < DIGEST_SHOWN or not set(digest.lower()) <= set("0123456789abcdef"):
        raise ArgumentError(
            f"a digest has at least {DIGEST_SHOWN} hex digits.", path="digest", code="usage", fix="`show` ends with it."
        )
    correction = doors.read_correction(ledger, correction_id)
    if correction.state is not CorrectionState.OPEN:
        by_whom = Answered(answer=Answer.DECIDED, by=correction.decided_by, sent_as=correction.sent_as)
        raise refusal(by_whom, correction)
    message = message_of(correction, registry, rules)
    answered = doors.send(ledger, correction_id, message, digest=digest, by=by, channel=channel, reason=reason)
    if answered.answer is Answer.DECIDED and (answered.by, answered.sent_as) == (by, message.action_id):
        return replace(answered, answer=Answer.SENT)  # our own, whose answer was lost with the connection
    if answered.answer is not Answer.SENT:
        raise refusal(answered, correction)
    return answered


def dismiss(ledger: Ledger, correction_id: str, *, by: str, channel: str, reason: str) -> Answered:
    """Leaves it unsaid, for good; the run's unwind goes on. Raises `DecisionRefused`, `NotFound`, `NotAllowed`."""
    check_words(by, channel, reason)
    answered = doors.dismiss(ledger, correction_id, by=by, channel=channel, reason=reason)
    if answered.answer is not Answer.DISMISSED:
        raise refusal(answered, doors.read_correction(ledger, correction_id))
    return answered


def message_of(correction: Correction, registry: Registry, rules: DoorRules = DOOR_RULES) -> Message:
    """The action that sending would record, as the tool derives it from the text that is written.

    Raises `DecisionRefused`: nothing is written, or the tool would now say something else; `ConfigError`, `ArgumentError`.
    """
    written = said(correction)
    if written is None:
        raise refusal(Answered(answer=Answer.UNWRITTEN), correction)
    spec = teller(registry, written[0], rules)
    arguments = spec.validate(written[1])
    text = canonical_json(arguments)
    if canonical_json({"tool": spec.name, "arguments": arguments}) != correction.call:
        raise DecisionRefused(
            f"{spec.name} takes other arguments by now than {correction.correction_id} was written with.",
            code=Answer.CHANGED,
            fix=f"`counterfoil correction edit {correction.correction_id}` writes it anew.",
        )
    amount_minor, currency = spec.amount_of(arguments)
    return Message(
        action_id=action_id(
            correction.tenant, correction.run, step_of(correction.step), correction.next_revision, "correct"
        ),
        tool=spec.name,
        tool_version=spec.version,
        class_=spec.cls.value,
        effect=spec.effect or "",
        effect_scope=spec.effect_scope,
        target=spec.target_of(arguments),
        provider=spec.provider,
        account=rules.accounts.of(spec.provider, correction.tenant),
        queue=spec.queue,
        arguments=text,
        arguments_sha256=sha256_of(text),
        audience=tuple(spec.audience_of(arguments)),
        amount_minor=amount_minor,
        currency=currency,
    )


def refusal(answered: Answered, correction: Correction) -> DecisionRefused:
    """The error for an answer that did nothing."""
    name = correction.correction_id
    match answered.answer:
        case Answer.CHANGED:
            why = f"{name} has changed since it was shown: nothing was sent."
            fix = f"`counterfoil correction show {name}` shows what it is now."
        case Answer.DECIDED:
            sent_as = answered.sent_as or correction.sent_as
            what = "decided" if correction.state is CorrectionState.OPEN else correction.state.value
            what = f"sent as {sent_as}" if sent_as else what
            why, fix = f"{name} was {what} by {answered.by}.", "That decision stands; yours changed nothing."
        case Answer.UNWRITTEN:
            why, fix = f"nobody has written what {name} says.", f"`counterfoil correction edit {name} --tool …`"
        case Answer.OWN:
            why, fix = (
                f"{name} is about what {correction.actor!r} did: an actor does not decide it.",
                "Somebody else must.",
            )
        case Answer.TAKEN:
            why = f"another message about this step stands ({answered.sent_as})."
            fix = "Dismiss this one, or tell them by hand."
        case Answer.EDITED | Answer.SENT | Answer.DISMISSED:
            raise AssertionError(f"{answered.answer} is no refusal")
        case never:
            assert_never(never)
    return DecisionRefused(why, code=answered.answer, fix=fix)


def _taken(
    spec: ToolSpec, arguments: dict[str, object], changes: Mapping[str, str], rules: DoorRules
) -> dict[str, Json]:
    """The arguments with the changes; each is taken as text first, and as JSON once where the tool wants no text."""
    as_json: set[str] = set()
    for _ in range(len(changes) + 1):
        given = {n: json.loads(v) if n in as_json else v for n, v in changes.items()}
        try:
            return checked_arguments(spec, {**arguments, **given}, rules=rules)
        except ArgumentError as error:
            name = error.path.removeprefix("$.")
            if name not in changes or name in as_json or not _is_json(changes[name]):
                raise
            as_json.add(name)
    raise AssertionError("each round takes one more of the changes as JSON")


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
