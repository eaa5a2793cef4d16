"""Decides the shape of Stripe's errors, and reads parameters: a refused one is a 400 before anything is written."""

from __future__ import annotations

from typing import Any

from counterfoil.sandbox.wire import Json, Refused, Reply

_TYPES = {402: "card_error", 401: "invalid_request_error", 429: "invalid_request_error"}
_CREATED_BOUNDS = {"gte": ("min", 0), "gt": ("min", 1), "lte": ("max", 0), "lt": ("max", -1)}
_PAGE_MAX = 100


def error_body(status: int, code: str, message: str, **more: Any) -> Json:
    """`{"error": …}` as Stripe words it; `more` adds `param`, `decline_code`, `payment_intent` and so on."""
    kind = "idempotency_error" if code.startswith("idempotency") else _TYPES.get(status, "invalid_request_error")
    if status >= 500:
        return {"error": {"type": "api_error", "message": message, **more}}
    known_code = {} if code in ("", "idempotency_error") else {"code": code}
    return {"error": {"type": kind, **known_code, "message": message, **more}}


def refuse(status: int, code: str, message: str, *, executed: bool = False, **more: Any) -> Refused:
    """To raise. `executed` where Stripe had begun (a state does not allow it), so that the key keeps the answer."""
    return Refused(Reply(status, error_body(status, code, message, **more)), executed=executed)


def missing(kind: str, object_id: str, *, param: str | None = None) -> Refused:
    """No such object: 404 when the path names it, 400 when a parameter does."""
    status = 404 if param is None else 400
    return refuse(status, "resource_missing", f"No such {kind}: '{object_id}'", param=param or "id")


def only(body: Json, allowed: frozenset[str]) -> None:
    """Refuses parameters that Stripe does not know here."""
    for name in sorted(set(body) - allowed):
        raise refuse(400, "parameter_unknown", f"Received unknown parameter: {name}", param=name)


def text(body: Json, name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str) or not value:
        raise refuse(400, "parameter_missing", f"Missing required param: {name}.", param=name)
    return value


def integer(body: Json, name: str, default: int | None = None) -> int:
    if name not in body and default is not None:
        return default
    value = text(body, name)
    if not value.removeprefix("-").isascii() or not value.removeprefix("-").isdigit():
        raise refuse(400, "parameter_invalid_integer", f"Invalid integer: {value}", param=name)
    return int(value)


def flag(body: Json, name: str) -> bool:
    value = body.get(name, "false")
    if value not in ("true", "false"):
        raise refuse(400, "parameter_invalid_boolean", f"Invalid boolean: {value}", param=name)
    return bool(value == "true")


def choice(body: Json, name: str, allowed: tuple[str, ...]) -> str:
    """One of `allowed`; the first is the default."""
    value = body.get(name, allowed[0])
    if value not in allowed:
        raise refuse(400, "", f"Invalid {name}: must be one of {', '.join(filter(None, allowed))}", param=name)
    return str(value)


def metadata(body: Json, before: Json | None = None) -> Json:
    """The object's metadata after this request: merged, an empty value removes its name; Stripe's limits apply."""
    given = body.get("metadata", {})
    given = {} if given == "" else given
    if not isinstance(given, dict) or any(not isinstance(value, str) for value in given.values()):
        raise refuse(400, "", "Metadata must be a hash of strings.", param="metadata")
    merged = {name: value for name, value in {**(before or {}), **given}.items() if value != ""}
    if len(merged) > 50 or any(len(name) > 40 or len(value) > 500 for name, value in merged.items()):
        raise refuse(400, "", "Metadata has at most 50 keys of 40, and values of 500 characters.", param="metadata")
    return merged


def page_bounds(query: Json) -> dict[str, Any]:
    """`limit`, `starting_after` and `created` of a list request, as the store's `page` takes them (one more row)."""
    limit = integer(query, "limit", 10)
    if not 1 <= limit <= _PAGE_MAX:
        raise refuse(400, "parameter_invalid_integer", f"limit must be 1 to {_PAGE_MAX}.", param="limit")
    bounds: dict[str, Any] = {"limit": limit + 1, "after_id": query.get("starting_after")}
    created = query.get("created", {})
    if isinstance(created, str):
        created = {"gte": created, "lte": created}
    for name in created:
        if name not in _CREATED_BOUNDS:
            raise refuse(400, "parameter_unknown", f"Received unknown parameter: created[{name}]", param="created")
        edge, step = _CREATED_BOUNDS[name]
        bounds[f"created_{edge}"] = integer(created, name) + step
    return bounds


def listing(url: str, rows: list[Json], limit: int) -> Json:
    """A list object; `rows` may hold one more than `limit`, which is then not shown but makes `has_more`."""
    return {"object": "list", "url": url, "has_more": len(rows) > limit, "data": rows[:limit]}
