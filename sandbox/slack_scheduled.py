"""Decides what becomes of a scheduled Slack message: it waits, can be deleted until a minute before, and posts by itself.

One that was scheduled with metadata is accepted, listed, and never posted, as Slack documents.
"""

from __future__ import annotations

from counterfoil.sandbox.slack_answers import answered, refuse
from counterfoil.sandbox.slack_messages import bot_of, channel_of, key_of, metadata_of, put, said
from counterfoil.sandbox.store import Store
from counterfoil.sandbox.wire import Json, Reply, Request

SCHEDULED = "slack_scheduled"
_AHEAD_MAX_S = 120 * 24 * 3600
_WINDOW_S, _WINDOW_MAX = 300, 30
_DELETE_BEFORE_S = 60
_ALL = 1_000_000


def schedule(store: Store, request: Request) -> Reply:
    channel, message = channel_of(request), said(request)
    post_at = _time_of(request)
    if post_at <= store.now():
        raise refuse("time_in_past")
    if post_at > store.now() + _AHEAD_MAX_S:
        raise refuse("time_too_far")
    near = [each for each in store.page(SCHEDULED, parent=channel, limit=_ALL) if _close(each, post_at)]
    if len(near) >= _WINDOW_MAX:
        raise refuse("restricted_too_many")
    identity = f"Q0{store.next_number('slack:scheduled', 1):08d}"
    kept: Json = {"id": identity, "channel_id": channel, "post_at": post_at, "date_created": int(store.now())}
    kept |= {"message": message, "posts": metadata_of(request) is None}
    store.put(SCHEDULED, identity, kept, parent=channel)
    store.index("slack", SCHEDULED, identity, kept, [channel])
    data = {"channel": channel, "post_at": post_at}
    store.record_effect("slack", "scheduled_message", identity, key=key_of(message), data=data)
    store.clock.call_at(post_at, lambda: _post_due_alone(store))
    return answered(store, channel=channel, scheduled_message_id=identity, post_at=post_at, message=message)


def list_scheduled(store: Store, request: Request) -> Reply:
    """Those of this token, by the time at which they post."""
    channel = channel_of(request) if request.body.get("channel") else None
    terms = [channel] if channel else []
    seen = [each for each in store.indexed(SCHEDULED, terms=terms) if each["message"]["bot_id"] == bot_of(request)]
    waiting = sorted(
        (each for each in seen if each["post_at"] > store.now()), key=lambda each: (each["post_at"], each["id"])
    )
    start, limit = int(request.body.get("cursor") or 0), int(request.body.get("limit") or 100)
    names = ("id", "channel_id", "post_at", "date_created")
    page = [{**{name: each[name] for name in names}, "text": each["message"]["text"]} for each in waiting]
    after = str(start + limit) if start + limit < len(page) else ""
    more = {"next_cursor": after}
    return answered(store, scheduled_messages=page[start : start + limit], response_metadata=more)


def delete(store: Store, request: Request) -> Reply:
    channel, identity = channel_of(request), str(request.body.get("scheduled_message_id"))
    kept = store.get(SCHEDULED, identity)
    if (
        kept is None
        or (kept["channel_id"], kept["message"]["bot_id"]) != (channel, bot_of(request))
        or kept["post_at"] <= store.now() + _DELETE_BEFORE_S
    ):
        raise refuse("invalid_scheduled_message_id")
    _forget(store, identity)
    store.record_effect("slack", "scheduled_deletion", identity, key=key_of(kept["message"]))
    return answered(store)


def post_due(store: Store) -> None:
    """Posts what has become due, in the caller's transaction; also what was scheduled before a restart."""
    for kept in sorted(store.page(SCHEDULED, limit=_ALL), key=lambda each: int(each["post_at"])):
        if kept["post_at"] > store.now():
            return
        _forget(store, kept["id"], at=kept["post_at"])
        if kept["posts"]:
            put(store, kept["channel_id"], kept["message"], at=kept["post_at"], scheduled=kept["id"])


def _post_due_alone(store: Store) -> None:
    with store.transaction():
        post_due(store)


def _forget(store: Store, identity: str, *, at: float | None = None) -> None:
    store.delete(SCHEDULED, identity)
    store.index("slack", SCHEDULED, identity, None, at=at)


def _close(kept: Json, post_at: int) -> bool:
    return abs(int(kept["post_at"]) - post_at) < _WINDOW_S


def _time_of(request: Request) -> int:
    try:
        return int(str(request.body.get("post_at")))
    except ValueError:
        raise refuse("invalid_time") from None
