"""Decides what `GET /v1/payment_intents/search` finds: Stripe's query language over the late index."""

from __future__ import annotations

import re
from collections.abc import Callable

from counterfoil.sandbox.store import Store
from counterfoil.sandbox.stripe_errors import integer, only, refuse, text
from counterfoil.sandbox.stripe_payments import PI
from counterfoil.sandbox.wire import Json, Reply, Request

_CLAUSE = re.compile(
    r"""\s*(?P<not>-?)(?P<field>metadata\[(?P<q1>['"])(?P<name>[^'"]+)(?P=q1)\]|[a-z_]+)
        (?P<op>:|>=|<=|>|<)(?:(?P<q2>['"])(?P<text>(?:(?!(?P=q2)).)*)(?P=q2)|(?P<number>\d+))
        (?:\s+(?P<and_or>AND|OR|and|or)\s+|\s+|$)""",
    re.VERBOSE,
)
_FIELDS = frozenset({"amount", "created", "currency", "customer", "status"})
_CLAUSES_MAX = 10
_OPERATORS: dict[str, Callable[[int, int], bool]] = {
    ">": lambda have, want: have > want,
    "<": lambda have, want: have < want,
    ">=": lambda have, want: have >= want,
    "<=": lambda have, want: have <= want,
    ":": lambda have, want: have == want,
}


def search(store: Store, request: Request) -> Reply:
    """Newest first. What was written within the lag is missing, or seen in its former state."""
    query = request.query
    only(query, frozenset({"query", "limit", "page", "expand"}))
    limit = integer(query, "limit", 10)
    start = integer(query, "page", 0)
    clauses, any_of = _parsed(text(query, "query"))
    known = [term for term in map(_term, clauses) if term is not None]
    # Under AND one term narrows enough; under OR only a term for every clause loses nothing.
    terms = (known if len(known) == len(clauses) else []) if any_of else known[:1]
    combine = any if any_of else all
    found = [
        intent
        for intent in store.indexed(PI, account=request.account, terms=terms)
        if combine(_holds(clause, intent) for clause in clauses)
    ]
    found.sort(key=lambda intent: (intent["created"], intent["id"]), reverse=True)
    more = len(found) > start + limit
    return Reply(
        200,
        {
            "object": "search_result",
            "url": "/v1/payment_intents/search",
            "has_more": more,
            "next_page": str(start + limit) if more else None,
            "data": found[start : start + limit],
        },
    )


def _parsed(query: str) -> tuple[list[re.Match[str]], bool]:
    clauses: list[re.Match[str]] = []
    joins: set[str] = set()
    at = 0
    while at < len(query) and len(clauses) < _CLAUSES_MAX:
        clause = _CLAUSE.match(query, at)
        if clause is None or (clause["name"] is None and clause["field"] not in _FIELDS):
            break
        clauses.append(clause)
        joins.add((clause["and_or"] or "").upper())
        at = clause.end()
    if at < len(query) or not clauses or {"AND", "OR"} <= joins:
        raise refuse(400, "", "We were unable to parse your search query.", param="query")
    return clauses, "OR" in joins


def _term(clause: re.Match[str]) -> str | None:
    if clause["not"] or clause["op"] != ":" or clause["text"] is None:
        return None
    if clause["name"] is not None:
        return f"metadata:{clause['name']}={clause['text']}"
    return f"customer={clause['text']}" if clause["field"] == "customer" else None


def _holds(clause: re.Match[str], intent: Json) -> bool:
    have = intent["metadata"].get(clause["name"]) if clause["name"] else intent[clause["field"]]
    if clause["number"] is not None:
        held = isinstance(have, int) and _OPERATORS[clause["op"]](have, int(clause["number"]))
    else:
        held = have is not None and str(have) == clause["text"]
    return held != bool(clause["not"])
