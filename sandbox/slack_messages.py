"""Decides what a Slack message does: posted, deleted, read in its channel or thread; nothing is ever deduplicated.

A reply is read with its thread only. Metadata is shown in full to those alone who ask for it. Readings see a message as
late as a search does (`search_lag_s`).
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

from counterfoil.sandbox.slack_answers import answered, refuse
from counterfoil.sandbox.store import Store
from counterfoil.sandbox.wire import Json, Reply, Request

MESSAGE = "slack_message"
TEXT_CHARS_MAX = 40_000
_LIMITED_PAGE, _LIMITED_EVERY_S = 15, 60.0
_PAGE_MAX = 999
_CHANNEL = re.compile(r"[CGD][A-Z0-9]{8,}")
_URL = re.compile(r"(?<![<|])https?://[^\s<>|]+")
_KEY = re.compile(r"cf-([0-9a-f]{32})")
_EMOJI = {"🎉": ":tada:", "👍": ":+1:"}


def bot_of(request: Request) -> str:
    return f"B0{request.account[:9].upper()}"


def user_of(request: Request) -> str:
    return f"U0{request.account[:9].upper()}"


def channel_of(request: Request) -> str:
    channel = request.body.get("channel")
    if not isinstance(channel, str) or not _CHANNEL.fullmatch(channel):
        raise refuse("channel_not_found")
    return channel


def as_written(text: str) -> str:
    """The text as Slack keeps it: cut to its limit, addresses as links, emoji by their names."""
    linked = _URL.sub(lambda found: f"<{found[0]}>", text[:TEXT_CHARS_MAX])
    return "".join(_EMOJI.get(sign, sign) for sign in linked)


def said(request: Request) -> Json:
    """Text, blocks, metadata and author, as they are kept."""
    text, blocks = request.body.get("text"), _parsed(request.body.get("blocks"))
    if not (isinstance(text, str) and text.strip()) and not blocks:
        raise refuse("no_text")
    message: Json = {"type": "message", "text": as_written(text or ""), "bot_id": bot_of(request)}
    message |= {"user": user_of(request)}
    if blocks:
        message["blocks"] = blocks
    if request.body.get("thread_ts"):
        message["thread_ts"] = str(request.body["thread_ts"])
    return message


def metadata_of(request: Request) -> Json | None:
    """The metadata of a request, which is an object or an object as text."""
    metadata = _parsed(request.body.get("metadata"))
    if metadata is not None and not isinstance(metadata, dict):
        raise refuse("invalid_metadata_format")
    return metadata


def post(store: Store, request: Request) -> Reply:
    channel, message = channel_of(request), said(request)
    if (metadata := metadata_of(request)) is not None:
        message["metadata"] = metadata
    put(store, channel, message, at=store.now())
    return answered(store, channel=channel, ts=message["ts"], message=_shown(message, full=False))


def put(store: Store, channel: str, message: Json, *, at: float, **about: Any) -> None:
    """The message is in the channel from now on; an answer to an answer is in the thread of both."""
    answered_to = store.get(MESSAGE, message.get("thread_ts") or "")
    if answered_to is not None:
        message["thread_ts"] = answered_to.get("thread_ts", answered_to["ts"])
    ts = message["ts"] = f"{int(at)}.{store.next_number('slack:message', 1):06d}"
    store.put(MESSAGE, ts, {**message, "channel": channel}, parent=channel)
    store.index("slack", MESSAGE, ts, {**message, "channel": channel}, [channel], at=at)
    store.record_effect("slack", "message", ts, key=key_of(message), data={"channel": channel, **about})


def key_of(message: Json) -> str | None:
    """The caller's key: in the metadata, a block's id, or the text."""
    payload = (message.get("metadata") or {}).get("event_payload")
    key = payload.get("counterfoil_key") if isinstance(payload, dict) else None
    found = _KEY.search(json.dumps([message.get("blocks"), message["text"]]))
    return str(key) if key else found[1] if found else None


def delete(store: Store, request: Request) -> Reply:
    channel, ts = channel_of(request), str(request.body.get("ts"))
    message = store.get(MESSAGE, ts)
    if message is None or message["channel"] != channel:
        raise refuse("message_not_found")
    if message["bot_id"] != bot_of(request):
        raise refuse("cant_delete_message")
    store.delete(MESSAGE, ts)
    store.index("slack", MESSAGE, ts, None)
    store.record_effect("slack", "message_deletion", ts, key=key_of(message))
    return answered(store, channel=channel, ts=ts)


def history(store: Store, request: Request) -> Reply:
    """Newest first; a cursor is the time stamp of the last message before it."""
    channel, limit = channel_of(request), _limit(store, request)
    seen = [each for each in _seen(store, channel) if each.get("thread_ts", each["ts"]) == each["ts"]]
    wanted = sorted((each for each in seen if _within(request, each["ts"])), key=_at, reverse=True)
    cursor = request.body.get("cursor")
    rest = [each for each in wanted if not cursor or _at(each) < float(str(cursor))]
    return _page(store, request, rest, limit)


def replies(store: Store, request: Request) -> Reply:
    """The thread's first message, on every page, and the replies, oldest first."""
    channel, limit, thread = channel_of(request), _limit(store, request), str(request.body.get("ts"))
    seen = sorted(_seen(store, channel), key=_at)
    first = [each for each in seen if each["ts"] == thread]
    if not first:
        raise refuse("thread_not_found")
    wanted = [each for each in seen if each.get("thread_ts") == thread and each["ts"] != thread]
    cursor = request.body.get("cursor")
    rest = [e for e in wanted if _within(request, e["ts"]) and (not cursor or _at(e) > float(str(cursor)))]
    return _page(store, request, rest, limit, first=first)


def _page(store: Store, request: Request, rest: list[Json], limit: int, first: list[Json] | None = None) -> Reply:
    full = str(request.body.get("include_all_metadata", "")).lower() in ("1", "true")
    page, more = rest[:limit], len(rest) > limit
    shown = [_shown(message, full=full) for message in [*(first or []), *page]]
    after = {"response_metadata": {"next_cursor": page[-1]["ts"]}} if more else {}
    return answered(store, messages=shown, has_more=more, **after)


def _seen(store: Store, channel: str) -> list[Json]:
    return store.indexed(MESSAGE, terms=[channel])


def _shown(message: Json, *, full: bool) -> Json:
    shown = {name: value for name, value in message.items() if name != "channel"}
    if "metadata" in shown and not full:
        shown["metadata"] = {"event_type": shown["metadata"].get("event_type")}
    return shown


def _within(request: Request, ts: str) -> bool:
    oldest, latest = (float(str(request.body.get(name) or edge)) for name, edge in (("oldest", 0), ("latest", "inf")))
    inclusive = str(request.body.get("inclusive", "")).lower() in ("1", "true")
    return oldest < float(ts) < latest or (inclusive and float(ts) in (oldest, latest))


def _limit(store: Store, request: Request) -> int:
    """How many messages a page has; under `slack_history = "limited"` few, and one page a minute of each method."""
    limit = int(str(request.body.get("limit") or 100))
    if store.config.slack_history == "full":
        return min(limit, _PAGE_MAX)
    name, now = f"{request.account}:{request.operation}", store.now()
    last = store.get("slack_limit", name)
    if last is not None and now < last["at"] + _LIMITED_EVERY_S:
        wait_s = math.ceil(last["at"] + _LIMITED_EVERY_S - now)
        raise refuse("ratelimited", status=429, retry_after_s=wait_s)
    store.put("slack_limit", name, {"at": now})
    return min(limit, _LIMITED_PAGE)


def _at(message: Json) -> float:
    return float(message["ts"])


def _parsed(value: Any) -> Any:
    """A form has objects as text."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        raise refuse("invalid_arguments") from None
