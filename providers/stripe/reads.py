"""Decides how Stripe is read: whole answers or an exception, never a half list that looks like absence.

Lists and objects do not lag. Events follow within seconds, searches within an hour: what they show is there, what they do
not show may be there all the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from counterfoil.providers.sanitise import clean_token
from counterfoil.providers.stripe.outcomes import KEY

PAGE_SIZE = 100
PAGES_MAX = 20
EVENT_PAGES_MAX = 5
"""Of the events, which are asked only when a list has failed: what is not among them may still be searched."""
CLAUSES_MAX = 10
"""In one search query; see Stripe's page on its search query language."""
SKEW = timedelta(minutes=5)
"""Between the ledger's clock and Stripe's."""
CHARGE = "latest_charge"
"""Expanded where an outcome depends on the charge behind a PaymentIntent."""


class Incomplete(Exception):
    """A look-up's answer is malformed, or not a whole list: it proves nothing."""


class StripeReads:
    """The reads that sends and look-ups share. Raises what the client raises, or Incomplete."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def intent(self, intent: str) -> dict[str, object]:
        """The PaymentIntent of this id, with its charge."""
        item = plain(self._client.v1.payment_intents.retrieve(intent, {"expand": [CHARGE]}))
        if not is_object(item, "payment_intent", intent):
            raise Incomplete("malformed")
        return item

    def refund(self, refund: str) -> dict[str, object]:
        """The refund of this id."""
        item = plain(self._client.v1.refunds.retrieve(refund, {}))
        if not is_object(item, "refund", refund):
            raise Incomplete("malformed")
        return item

    def payments(self, customer: object, *, since: datetime | None, charges: bool) -> list[Mapping[str, object]]:
        """Every PaymentIntent of a customer, or those made since a moment less the clocks' skew."""
        query: dict[str, object] = {"customer": customer}
        query |= {"expand": [f"data.{CHARGE}"]} if charges else {}
        query |= {"created": {"gte": int((since - SKEW).timestamp())}} if since else {}
        return self._whole(self._client.v1.payment_intents.list, query)

    def refunds(self, intent: str) -> list[Mapping[str, object]]:
        """Every refund of a PaymentIntent."""
        return self._whole(self._client.v1.refunds.list, {"payment_intent": intent})

    def made_between(
        self, kind: str, since: datetime, until: datetime | None, *, charges: bool, pages_max: int
    ) -> Iterator[tuple[list[dict[str, object]], bool]]:
        """The PaymentIntents or refunds of the whole account that were made in that time, newest first: pages, up to a
        maximum, each with whether there are more."""
        created = {"gte": int(since.timestamp())} | ({"lte": math.ceil(until.timestamp())} if until else {})
        query: dict[str, object] = {"created": created}
        query |= {"expand": [f"data.{CHARGE}"]} if charges else {}
        lists = self._client.v1.refunds if kind == "refund" else self._client.v1.payment_intents
        return self._pages(lists.list, query, pages_max=min(pages_max, PAGES_MAX))

    def ids_by_event(self, types: Sequence[str], since: datetime, keys: Sequence[str]) -> dict[str, set[str]]:
        """By key, the objects of the events that a request with that Idempotency-Key has caused; maybe not all."""
        query = {"types": list(types), "created": {"gte": int((since - SKEW).timestamp())}}
        ids: dict[str, set[str]] = {}
        pages = self._pages(self._client.v1.events.list, query, pages_max=EVENT_PAGES_MAX)
        for rows, _ in pages:
            for event in rows:
                key, object_id = _part(event, "request", "idempotency_key"), _part(event, "data", "object", "id")
                if key in keys and clean_token(object_id) is not None:
                    ids.setdefault(str(key), set()).add(str(object_id))
        return ids

    def ids_by_search(self, keys: Sequence[str]) -> dict[str, set[str]]:
        """By key, the PaymentIntents whose metadata hold it, as far as the index knows; refunds cannot be searched."""
        ids: dict[str, set[str]] = {}
        for start in range(0, len(keys), CLAUSES_MAX):
            some = keys[start : start + CLAUSES_MAX]
            query = " OR ".join(f"metadata['{KEY}']:'{key}'" for key in some)
            answer = plain(self._client.v1.payment_intents.search({"query": query, "limit": PAGE_SIZE}))
            data = answer.get("data")
            if answer.get("object") != "search_result" or not isinstance(data, list):
                raise Incomplete("malformed")
            for item in data:
                key, object_id = _part(item, "metadata", KEY), _part(item, "id")
                if key in some and clean_token(object_id) is not None:
                    ids.setdefault(str(key), set()).add(str(object_id))
        return ids

    def _whole(self, page: Callable[..., Any], query: Mapping[str, object]) -> list[Mapping[str, object]]:
        """Every item of a list. Raises Incomplete when it is malformed or longer than `PAGES_MAX` pages."""
        items: list[Mapping[str, object]] = []
        for rows, more in self._pages(page, query, pages_max=PAGES_MAX):
            items += rows
            if not more:
                return items
        raise Incomplete("too_many_pages")

    def _pages(
        self, page: Callable[..., Any], query: Mapping[str, object], *, pages_max: int
    ) -> Iterator[tuple[list[dict[str, object]], bool]]:
        """The pages of a list, up to a maximum, each with whether there are more."""
        params = {**query, "limit": PAGE_SIZE}
        for _ in range(pages_max):
            answer = plain(page(params))
            data, more = answer.get("data"), answer.get("has_more")
            if answer.get("object") != "list" or not isinstance(data, list) or not isinstance(more, bool):
                raise Incomplete("malformed")
            rows = [item for item in data if isinstance(item, dict) and isinstance(item.get("id"), str)]
            if len(rows) != len(data) or (more and not rows):
                raise Incomplete("malformed")
            yield rows, more
            if not more:
                return
            params["starting_after"] = rows[-1]["id"]


def plain(answer: object) -> dict[str, object]:
    """A client object as a plain dict, {} for anything else."""
    to_dict = getattr(answer, "to_dict", None)
    made = to_dict() if callable(to_dict) else None
    return made if isinstance(made, dict) else {}


def is_object(item: Mapping[str, object], kind: str, object_id: str) -> bool:
    """It is the object of this kind and id."""
    return item.get("object") == kind and item.get("id") == object_id


def _part(item: object, *names: str) -> object:
    for name in names:
        item = item.get(name) if isinstance(item, Mapping) else None
    return item
