"""Decides what Slack's answers and errors prove, and how our key is written on a message. No client is imported here.

A message carries the key in its metadata. One that is scheduled cannot: Slack never posts it then. It is shown as a block
whose id is the key, and the text behind the block, which Slack uses for notifications and lists before the message is
posted, ends with a mark.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from counterfoil.providers.contract import Call
from counterfoil.providers.outcomes import Absent, Finding, Found, Many, NotSent, Rejected, Succeeded, Uncertain
from counterfoil.providers.transport import classify_exception, classify_status, retry_after_of

EVENT_TYPE = "counterfoil_action"
KEY = "counterfoil_key"
TARGET = "counterfoil_target"
RECEIPTS_MAX = 20
POSTED = "already_posted"
TS = re.compile(r"[1-9][0-9]{9}\.[0-9]{6}", re.ASCII)
SCHEDULED_ID = re.compile(r"Q[A-Z0-9]{3,40}", re.ASCII)
NO_LONGER_WAITING = "invalid_scheduled_message_id"
"""Slack's one word for a scheduled message that was deleted, was posted, or is posted within a minute."""

THROTTLED = frozenset({"ratelimited", "rate_limited"})
REFUSALS: Mapping[str, str | None] = {
    **dict.fromkeys(("channel_not_found", "not_in_channel", "is_archived", "restricted_action"), "channel"),
    **dict.fromkeys(("restricted_action_read_only_channel", "restricted_action_thread_only_channel"), "channel"),
    **dict.fromkeys(("msg_too_long", "no_text", "invalid_blocks", "invalid_blocks_format"), "text"),
    **dict.fromkeys(("restricted_action_non_threadable_channel", "cannot_reply_to_message"), "thread_ts"),
    **dict.fromkeys(("time_in_past", "time_too_far", "invalid_time", "restricted_too_many"), "post_at"),
    **dict.fromkeys(("not_authed", "invalid_auth", "bad_token", "invalid_token", "account_inactive"), None),
    **dict.fromkeys(("token_expired", "token_revoked", "two_factor_setup_required", "accesslimited"), None),
    **dict.fromkeys(("missing_scope", "not_allowed_token_type", "no_permission", "access_denied"), None),
    **dict.fromkeys(("ekm_access_denied", "team_access_not_granted", "enterprise_is_restricted"), None),
    **dict.fromkeys(("metadata_too_large", "invalid_metadata_format", "invalid_metadata_schema"), None),
    **dict.fromkeys(("metadata_must_be_sent_from_app", "message_limit_exceeded", "unknown_method"), None),
    **dict.fromkeys(("invalid_arguments", "invalid_arg_name", "invalid_array_arg", "invalid_charset"), None),
    **dict.fromkeys(("invalid_form_data", "invalid_post_type", "missing_post_type"), None),
    **dict.fromkeys(("method_deprecated", "deprecated_endpoint"), None),
}
"""The errors by which Slack says that it did nothing, for good, and the argument that each is about. Of `internal_error` and
`fatal_error` it says that something may have been done all the same; what is on no list proves nothing either."""
_DOUBTS = frozenset(
    {
        "internal_error",
        "fatal_error",
        "request_timeout",
        "service_unavailable",
        "team_added_to_org",
        "org_login_required",
    }
)
_ANSWERED = frozenset({200, 400, 401, 403, 404, 413})
"""With another status the body may be a gateway's, and its word counts for nothing."""

_LINK = re.compile(r"<[a-z]+:[^<>|]*\|([^<>]*)>|<([a-z]+:[^<>|]*)>")
_EMOJI_NAME = re.compile(r":[a-z0-9_+'-]+:")
_MARK = re.compile(r"\[cf-[0-9a-f]{32}\]")
_EMOJI_PARTS = frozenset("\ufe0f\u200d\u20e3\U0001f3fb\U0001f3fc\U0001f3fd\U0001f3fe\U0001f3ff")


@dataclass(frozen=True, slots=True)
class Author:
    """Whose token we hold: messages of this app, and of no other, are ours."""

    user: str
    bot: str | None

    def wrote(self, message: Mapping[str, Any]) -> bool:
        return bool(message.get("bot_id") == self.bot if self.bot else message.get("user") == self.user)


def escaped(text: str) -> str:
    """The text as Slack wants it, so that it is shown as it was approved: nothing in it is a link of another name, or
    mentions anybody."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def plain(text: str) -> str:
    """What two texts have in common if Slack has rewritten one: it makes links of addresses and names of emoji."""
    words = _LINK.sub(lambda found: found[1] or found[2] or "", text)
    words = _EMOJI_NAME.sub("", words.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
    kept = (sign for sign in words if sign not in _EMOJI_PARTS and unicodedata.category(sign) != "So")
    return " ".join("".join(kept).split())


def metadata_of(call: Call) -> dict[str, object]:
    """What the message of this call will carry; other apps of the workspace can read it."""
    return {"event_type": EVENT_TYPE, "event_payload": {KEY: call.key, TARGET: call.target}}


def mark_of(key: str) -> str:
    return f"cf-{key}"


def fallback_of(text: str, key: str) -> str:
    """What notifications of a scheduled message show, and what Slack lists before it is posted."""
    return f"{escaped(text)}\n[{mark_of(key)}]"


def blocks_of(text: str, key: str) -> list[dict[str, object]]:
    """What a scheduled message shows in its channel. Verbatim: else Slack would look for mentions in the words of a block."""
    shown = {"type": "mrkdwn", "text": escaped(text), "verbatim": True}
    return [{"type": "section", "block_id": mark_of(key), "text": shown}]


def time_of(text: object) -> datetime:
    """An argument `post_at`; ValueError for none."""
    return datetime.fromisoformat(str(text))


def seconds_of(call: Call) -> int:
    return int(time_of(call.arguments["post_at"]).timestamp())


def posted_outcome(reply: object, call: Call) -> Succeeded | Uncertain:
    """An answer to a post needs the message's time stamp, which is its id, and our channel."""
    ts, channel = (reply.get("ts"), reply.get("channel")) if isinstance(reply, Mapping) else (None, None)
    if not isinstance(ts, str) or not TS.fullmatch(ts) or channel != call.arguments["channel"]:
        return Uncertain("malformed", evidence=type(reply).__name__)
    return _message(ts, call)


def scheduled_outcome(reply: object, call: Call) -> Succeeded | Uncertain:
    """An answer to a scheduling needs the id by which it can be taken back, and our channel."""
    identity = reply.get("scheduled_message_id") if isinstance(reply, Mapping) else None
    if not _is_scheduled_id(identity) or not isinstance(reply, Mapping):
        return Uncertain("malformed", evidence=type(reply).__name__)
    if reply.get("channel") != call.arguments["channel"] or str(reply.get("post_at")) != str(seconds_of(call)):
        return Uncertain("other_place")
    return _scheduled(str(identity), call, "scheduled")


def unscheduled(identity: str) -> Succeeded:
    return Succeeded(identity, {"id": identity, "status": "deleted"})


def carries(message: Mapping[str, Any], key: str) -> bool:
    """This message was posted by the call of that key, or by somebody who would have us think so."""
    metadata = message.get("metadata")
    payload = metadata.get("event_payload") if isinstance(metadata, Mapping) else None
    return bool(key) and isinstance(payload, Mapping) and payload.get(KEY) == key


def marked(thing: Mapping[str, Any], key: str) -> bool:
    """This scheduled message, or the message that became of it, holds the mark of that key, in the text or a block's id."""
    in_blocks = any(block.get("block_id") == mark_of(key) for block in _blocks(thing))
    return bool(key) and (in_blocks or mark_of(key) in str(thing.get("text")))


def may_be_post(message: Mapping[str, Any], call: Call) -> bool:
    """The message has no key at all, and the words of this call. (It must be of this app and this time, too.)"""
    metadata = message.get("metadata")
    payload = metadata.get("event_payload") if isinstance(metadata, Mapping) else None
    keyless = not isinstance(payload, Mapping) or payload.get(KEY) is None
    return keyless and plain(str(message.get("text"))) == plain(escaped(str(call.arguments["text"])))


def may_be_schedule(item: Mapping[str, Any], call: Call, *, since: datetime) -> bool:
    """The scheduled message has no mark at all, is for the second that this call names, and was made since then."""
    made, is_marked = _when(item.get("date_created")), _MARK.search(str(item.get("text"))) is not None
    return not is_marked and str(item.get("post_at")) == str(seconds_of(call)) and (made is None or made >= since)


def no_key() -> Found:
    """What may be ours although it does not show our key: no absence, and a person's."""
    return Found(Uncertain("no_key"), as_intended=False, unkeyed=True)


def post_finding(ours: Sequence[Mapping[str, Any]], call: Call, author: Author) -> Finding:
    """What the messages that carry our key say about a post."""
    if len(ours) != 1:
        return Many(_receipts(ours, "ts")) if ours else Absent()
    message = ours[0]
    why = None if author.wrote(message) else "other_author"
    if plain(str(message.get("text"))) != plain(escaped(str(call.arguments["text"]))):
        why = why or "other_text"
    target = message["metadata"]["event_payload"].get(TARGET)
    return Found(
        _unless(why or _elsewhere(message, call), _message(str(message["ts"]), call)),
        target=target if isinstance(target, str) else "",
        created_at=_when(message["ts"]),
        as_intended=not (why or _elsewhere(message, call)),
    )


def schedule_finding(
    waiting: Sequence[Mapping[str, Any]], posted: Sequence[Mapping[str, Any]], call: Call, author: Author
) -> Finding:
    """What the marked messages say about a scheduling, those that wait and those that have been posted."""
    if len(waiting) + len(posted) > 1:
        return Many((*_receipts(waiting, "id"), *_receipts(posted, "ts"))[:RECEIPTS_MAX])
    text = str(call.arguments["text"])
    if waiting:
        [item] = waiting
        why = None if plain(str(item.get("text"))) == plain(fallback_of(text, call.key)) else "other_text"
        if str(item.get("post_at")) != str(seconds_of(call)):
            why = why or "other_time"
        done = _scheduled(str(item["id"]), call, "scheduled")
        return Found(_unless(why, done), created_at=_when(item.get("date_created")), as_intended=why is None)
    if posted:
        [message] = posted
        why = None if author.wrote(message) else "other_author"
        if not _shows(message, text, call.key):
            why = why or "other_text"
        why = why or _elsewhere(message, call)
        done = _scheduled(str(message["ts"]), call, "posted")
        return Found(_unless(why, done), created_at=_when(message["ts"]), as_intended=why is None, renamed=True)
    return Absent()


def error_outcome(exc: Exception, call: Call, *, retry_after_cap_s: float) -> NotSent | Rejected | Uncertain:
    """What an exception out of slack-sdk proves about the write that was made.

    A refusal counts only in Slack's own form, `ok: false` and an error of its list; 429 counts by its status, too.
    """
    reply: Any = getattr(exc, "response", None)
    status = getattr(reply, "status_code", None)
    if not isinstance(status, int):
        return classify_exception(exc)
    wait_s = retry_after_of(reply.headers, cap_s=retry_after_cap_s)
    error, evidence = error_of(exc), f"{type(exc).__name__} HTTP {status}"
    if status == 429 or (status == 200 and error in THROTTLED):
        return classify_status(429, retry_after_s=wait_s)
    if status not in _ANSWERED:
        return Uncertain(f"http_{status}", evidence=evidence)
    if error in REFUSALS:
        field = REFUSALS[error]
        return Rejected(error, field=field if field in call.arguments else None)
    return Uncertain(error if error in _DOUBTS else "malformed", evidence=evidence)


def error_of(exc: Exception) -> str:
    """The error that Slack names, "" where the answer is not in its form."""
    reply: Any = getattr(exc, "response", None)
    data = getattr(reply, "data", None)
    error = data.get("error") if isinstance(data, Mapping) and data.get("ok") is False else None
    return error if isinstance(error, str) else ""


def error_code(exc: Exception) -> str:
    """A short name for a failed read: Slack's error where it is a known one, else the status or the class."""
    status = getattr(getattr(exc, "response", None), "status_code", None)
    if not isinstance(status, int):
        return type(exc).__name__
    error = error_of(exc)
    return error if error in REFUSALS or error in _DOUBTS or error in THROTTLED else f"http_{status}"


def _message(ts: str, call: Call) -> Succeeded:
    return Succeeded(ts, {"id": ts, "channel": call.arguments["channel"]})


def _scheduled(identity: str, call: Call, status: str) -> Succeeded:
    fields = {name: call.arguments[name] for name in ("channel", "post_at")}
    return Succeeded(identity, {"id": identity, **fields, "status": status})


def _unless(why: str | None, done: Succeeded) -> Succeeded | Uncertain:
    return done if why is None else Uncertain(why)


def _elsewhere(message: Mapping[str, Any], call: Call) -> str | None:
    """Not in the thread that was meant. A message that was answered is the first of a thread of its own."""
    thread = message.get("thread_ts")
    return None if call.arguments.get("thread_ts") == (None if thread == message["ts"] else thread) else "other_thread"


def _shows(message: Mapping[str, Any], text: str, key: str) -> bool:
    """One block, ours, with this text; and the text that notifications have."""
    blocks = _blocks(message)
    if len(blocks) != 1 or blocks[0].get("block_id") != mark_of(key):
        return False
    inner = blocks[0].get("text")
    shown = inner.get("text") if isinstance(inner, Mapping) else None
    same = plain(str(message.get("text"))) == plain(fallback_of(text, key))
    return isinstance(shown, str) and plain(shown) == plain(escaped(text)) and same


def _blocks(thing: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    blocks = thing.get("blocks")
    return [block for block in blocks if isinstance(block, Mapping)] if isinstance(blocks, list) else []


def _is_scheduled_id(value: object) -> bool:
    return isinstance(value, str) and SCHEDULED_ID.fullmatch(value) is not None


def _receipts(things: Sequence[Mapping[str, Any]], name: str) -> tuple[str, ...]:
    return tuple(str(thing[name]) for thing in things[:RECEIPTS_MAX])


def _when(seconds: object) -> datetime | None:
    try:
        return datetime.fromtimestamp(float(str(seconds)), UTC)
    except (ValueError, OverflowError, OSError):
        return None
