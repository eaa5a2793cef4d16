"""Decides what a Twilio message does: sent at once or at its time, listed, cancelled while it waits. Nothing is deduplicated.

What is handed to a telephone is an effect `sms`. As at Twilio, a time without a messaging service is ignored: the text
goes out at once.
"""

from __future__ import annotations

import re
import secrets
from datetime import UTC, datetime
from email.utils import format_datetime

from counterfoil.sandbox.store import Store
from counterfoil.sandbox.twilio_errors import refuse
from counterfoil.sandbox.wire import Json, Reply, Request

MESSAGE = "twilio_message"
LEAD_MIN_S, LEAD_MAX_S = 15 * 60.0, 35 * 86_400.0
_PHONE = re.compile(r"\+[1-9][0-9]{6,14}")
_REFERENCE = re.compile(r" \(ref ([0-9a-f]+)\)\Z")
_BODY_CHARS_MAX = 1600
_PAGE_SIZE, _PAGE_SIZE_MAX = 50, 1000


def create(store: Store, request: Request) -> Reply:
    given = request.body
    to, body, service = given.get("To", ""), given.get("Body", ""), given.get("MessagingServiceSid")
    if not _PHONE.fullmatch(to):
        raise refuse(400, 21211, "Invalid 'To' Phone Number")
    if not body:
        raise refuse(400, 21602, "Message body is required.")
    if len(body) > _BODY_CHARS_MAX:
        raise refuse(400, 21617, "The concatenated message body exceeds the 1600 character limit.")
    if not service and not given.get("From"):
        raise refuse(400, 21603, "A 'From' phone number is required.")
    due = _due(store, given) if service and given.get("ScheduleType") == "fixed" else None
    now = store.now()
    message: Json = {
        "sid": f"SM{secrets.token_hex(16)}",
        "account_sid": request.match["account"],
        "to": to,
        "from": given.get("From"),
        "messaging_service_sid": service,
        "body": body,
        "status": "scheduled" if due is not None else "accepted" if service else "queued",
        "direction": "outbound-api",
        "date_created": _text(now),
        "date_updated": _text(now),
        "date_sent": None,
        "error_code": None,
        "num_segments": "0" if service else "1",
    }
    _save(store, request, message)
    if due is None:
        store.record_effect("twilio", "sms", message["sid"], key=_key_of(message), data={"to": to})
    else:
        store.record_effect("twilio", "sms_scheduled", message["sid"], key=_key_of(message), data={"to": to})
        _wait(store, request, message["sid"], due)
    return Reply(201, _plain(message))


def list_messages(store: Store, request: Request) -> Reply:
    """What a number was sent, newest first; a new message appears as late as in a search (`search_lag_s`)."""
    to, sender = request.query.get("To"), request.query.get("From")
    size = min(int(request.query.get("PageSize", _PAGE_SIZE)), _PAGE_SIZE_MAX)
    start = int(request.query.get("PageToken", "PA0").removeprefix("PA"))
    listed = store.indexed(MESSAGE, account=request.account, terms=[to] if to else [])
    found = [m for m in listed if to in (None, m["to"]) and sender in (None, m["from"])]
    found.sort(key=lambda m: m["order"], reverse=True)
    after = start + size
    number = int(request.query.get("Page", "0"))
    following = None
    if after < len(found):
        following = f"{request.path}?PageSize={size}&Page={number + 1}&PageToken=PA{after}"
    page = [_shown(store, message) for message in found[start:after]]
    return Reply(200, {"messages": page, "page": number, "page_size": size, "next_page_uri": following})


def retrieve(store: Store, request: Request) -> Reply:
    return Reply(200, _shown(store, _load(store, request)))


def update(store: Store, request: Request) -> Reply:
    message = _load(store, request)
    if request.body.get("Status") != "canceled":
        raise refuse(400, 20001, "Only a cancellation is served here.")
    if message["messaging_service_sid"] is None:
        raise refuse(400, 35115, "Only a scheduled message can be canceled.")
    if message["status"] != "scheduled":
        raise refuse(400, 30409, "This message cannot be canceled.")
    message |= {"status": "canceled", "date_updated": _text(store.now())}
    _save(store, request, message)
    store.record_effect("twilio", "sms_cancellation", message["sid"], key=_key_of(message))
    return Reply(200, _shown(store, message))


def _due(store: Store, given: Json) -> float:
    try:
        due = datetime.strptime(given.get("SendAt", ""), "%Y-%m-%dT%H:%M:%S%z").timestamp()
    except ValueError:
        due = 0.0
    if not LEAD_MIN_S <= due - store.now() <= LEAD_MAX_S:
        raise refuse(400, 35114, "Scheduling does not support this timestamp.")
    return due


def _wait(store: Store, request: Request, sid: str, due: float) -> None:
    """Sends the message at its time unless it was cancelled; not if the world was reset meanwhile."""
    generation = store.generation

    def go() -> None:
        if store.generation != generation:
            return
        with store.transaction():
            message = store.get(MESSAGE, sid, account=request.account)
            if message is not None and message["status"] == "scheduled":
                message |= {"status": "queued", "date_updated": _text(due)}
                _save(store, request, message)
                store.record_effect("twilio", "sms", sid, key=_key_of(message), data={"to": message["to"]})

    store.clock.call_at(due, go)


def _save(store: Store, request: Request, message: Json) -> None:
    if "order" not in message:
        message["order"] = store.next_number("twilio:message", 1)
    store.put(MESSAGE, message["sid"], message, account=request.account)
    store.index("twilio", MESSAGE, message["sid"], message, [message["to"]], account=request.account)


def _load(store: Store, request: Request) -> Json:
    message = store.get(MESSAGE, request.match["sid"], account=request.account)
    if message is None:
        raise refuse(404, 20404, "The requested resource was not found")
    return message


def _shown(store: Store, message: Json) -> Json:
    """What was handed over is, by the time that anybody asks, what the configuration says (`twilio_status`)."""
    shown = _plain(message)
    if shown["status"] in ("accepted", "queued"):
        shown["status"] = store.config.twilio_status
        if shown["status"] not in ("accepted", "queued", "sending"):
            shown["date_sent"] = message["date_updated"]
    return shown


def _plain(message: Json) -> Json:
    return {name: value for name, value in message.items() if name != "order"}


def _key_of(message: Json) -> str | None:
    found = _REFERENCE.search(message["body"])
    return found[1] if found else None


def _text(seconds: float) -> str:
    """To the second, as Twilio writes times."""
    return format_datetime(datetime.fromtimestamp(seconds, UTC).replace(microsecond=0))
