"""Decides what lists of the whole account say of many calls at once: a page of a hundred objects in place of a list a call.

Two kinds of answers. That nothing happened needs every object since the first send, so a list counts only when it was read
to its end. That something happened needs no more than the object itself: for calls that were sent once and of which only
that is asked, the list of the seconds in which they were sent is read, and where they are not in it, that is no absence.
What such lists do not answer is asked call by call. They are given up early, so that many calls never cost much more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial

from counterfoil.providers.contract import Call
from counterfoil.providers.outcomes import Absent, Finding, Found
from counterfoil.providers.stripe.outcomes import is_ours, key_on
from counterfoil.providers.stripe.reads import SKEW, StripeReads

CALLS_MIN = 4
"""Fewer are asked call by call."""
CALLS_A_PAGE_MIN = 4
"""A list is given up when its pages are more than a quarter of the requests that it may save."""
BEFORE, AFTER = timedelta(seconds=2), timedelta(seconds=5)
"""Around the sends: Stripe stamps an object when the request arrives, in whole seconds, by a clock that is nearly right. An
object outside is asked for by its own list."""
GAP = timedelta(minutes=1)
"""Calls that were sent further apart have no list together: it would hold whatever the account did in between."""

KINDS: Mapping[str, str] = {
    "stripe_charge": "payment_intent",
    "stripe_authorize": "payment_intent",
    "stripe_refund": "refund",
}
"""What the tools make of which the account can be listed by time."""

FindingOf = Callable[[Call, Sequence[Mapping[str, object]]], Finding]


class SharedLists:
    """What the account's lists answer. Raises what the client raises, or Incomplete."""

    def __init__(self, reads: StripeReads, *, whole: FindingOf, seen: FindingOf) -> None:
        self._reads = reads
        self._whole = whole
        """What a list says that holds everything since the call was sent."""
        self._seen = seen
        """What the objects say that were read; Absent: none of them is the call's."""

    def questions(self, calls: Sequence[Call]) -> Iterator[Callable[[], dict[str, Finding]]]:
        """One for each list that some of the calls share; its answer may leave calls out."""
        for tool in KINDS:
            timed = [c for c in calls if c.tool == tool and c.first_sent_at is not None and _about(c) is not None]
            for group in _close_in_time([call for call in timed if call.presence_only]):
                yield partial(self._by_send_time, group)
            others = [call for call in timed if not call.presence_only]
            if len({_about(call) for call in others}) >= CALLS_MIN:
                yield partial(self._since_send, others)

    def _by_send_time(self, calls: Sequence[Call]) -> dict[str, Finding]:
        """Newest first, until all are found or it costs too much: what was sent before the last page is not answered."""
        times = [_sent(call) for call in calls]
        read = _Read(KINDS[calls[0].tool])
        for rows, more in self._pages(calls, since=min(times) - BEFORE, until=max(times) + AFTER):
            read.add(rows, whole=not more)
            if all(read.with_key(call) for call in calls):
                break
        findings: dict[str, Finding] = {}
        for call in calls:
            if read.with_key(call):
                findings[call.action_id] = read.judged(call, self._seen(call, read.with_key(call)))
            elif read.reaches(_sent(call) - BEFORE):
                findings[call.action_id] = Absent(complete=False)
        return findings

    def _since_send(self, calls: Sequence[Call]) -> dict[str, Finding]:
        """The whole list since the earliest send, or nothing."""
        read = _Read(KINDS[calls[0].tool])
        for rows, more in self._pages(calls, since=min(map(_sent, calls)) - SKEW, until=None):
            read.add(rows, whole=not more)
        if not read.whole:
            return {}
        return {call.action_id: read.judged(call, self._whole(call, read.about(call))) for call in calls}

    def _pages(
        self, calls: Sequence[Call], *, since: datetime, until: datetime | None
    ) -> Iterator[tuple[list[dict[str, object]], bool]]:
        tool = calls[0].tool
        pages_max = max(1, len({_about(call) for call in calls}) // CALLS_A_PAGE_MIN)
        return self._reads.made_between(
            KINDS[tool], since, until, charges=tool == "stripe_authorize", pages_max=pages_max
        )


class _Read:
    """The objects of one list that were read, newest first."""

    def __init__(self, kind: str) -> None:
        self.whole = False
        self._owner = "payment_intent" if kind == "refund" else "customer"
        self._kind = kind
        self._by_key: defaultdict[str, list[Mapping[str, object]]] = defaultdict(list)
        self._by_owner: defaultdict[object, list[Mapping[str, object]]] = defaultdict(list)
        self._oldest: datetime | None = None

    def add(self, rows: Sequence[Mapping[str, object]], *, whole: bool) -> None:
        """One page more; `whole`: it was the last."""
        self.whole = whole
        for item in rows:
            key = key_on(item)
            if key is not None and is_ours(item, kind=self._kind, key=key):
                self._by_key[key].append(item)
            if isinstance(item.get(self._owner), str):
                self._by_owner[item[self._owner]].append(item)
        created = rows[-1].get("created") if rows else None
        self._oldest = datetime.fromtimestamp(created, UTC) if isinstance(created, int) else None

    def reaches(self, since: datetime) -> bool:
        """Nothing that was made from then on, within the list's bounds, is still unread."""
        return self.whole or (self._oldest is not None and self._oldest < since)

    def with_key(self, call: Call) -> list[Mapping[str, object]]:
        """What carries the call's key."""
        return self._by_key.get(call.key, [])

    def about(self, call: Call) -> list[Mapping[str, object]]:
        """What the call's own list would hold of these, and whatever else carries its key."""
        own = self._by_owner.get(_about(call), [])
        return [*own, *(item for item in self.with_key(call) if item.get(self._owner) != _about(call))]

    def judged(self, call: Call, finding: Finding) -> Finding:
        """Our key on the object of another customer or charge is not what was asked for."""
        if isinstance(finding, Found) and any(i.get(self._owner) != _about(call) for i in self.with_key(call)):
            return replace(finding, as_intended=False)
        return finding


def _close_in_time(calls: Sequence[Call]) -> Iterator[list[Call]]:
    """The calls in groups without a gap, each of enough calls."""
    group: list[Call] = []
    for call in sorted(calls, key=_sent):
        if group and _sent(call) - _sent(group[-1]) > GAP:
            if len(group) >= CALLS_MIN:
                yield group
            group = []
        group.append(call)
    if len(group) >= CALLS_MIN:
        yield group


def _about(call: Call) -> object:
    """Whose list would be asked for this call alone: the customer's, or that of the charge; None: it cannot be told."""
    if call.of is not None:
        return call.of.receipt
    return call.arguments.get("customer")


def _sent(call: Call) -> datetime:
    assert call.first_sent_at is not None
    return call.first_sent_at
