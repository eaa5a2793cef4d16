"""Decides what becomes of an exception out of a client, by when it was raised: the frame around every adapter's calls.

Before the write nothing was sent; after it the adapter's own error table judges, in which everything unknown is Uncertain.
A look-up or reading that fails proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from functools import partial

from counterfoil.providers.contract import Call
from counterfoil.providers.outcomes import Finding, NotSent, Outcome, Reading, Rejected, Succeeded, Unknown, Unreadable
from counterfoil.providers.reach import MOVED

CLOCKS_APART = timedelta(seconds=1)
"""Providers say the time in whole seconds."""

NameOf = Callable[[Exception], str]
"""A short code for an exception: a class name or a status, never a provider's prose."""

WaitOf = Callable[[Exception], float | None]
"""What the provider asked for with it, in seconds."""


def class_name(exc: Exception) -> str:
    """The code of an exception that says nothing better."""
    return type(exc).__name__


def judged_send(
    act: Callable[[], Outcome],
    judge: Callable[[Exception], Outcome],
    *,
    wrote: Callable[[], bool],
    name: NameOf = class_name,
    waits: WaitOf | None = None,
) -> Outcome:
    """The outcome of `act`, which makes one write. `wrote` says whether it was handed to the network.

    What turned away a reading before the write may say when to come again: `waits` reads that, or else `judge` has.
    """
    try:
        return act()
    except Exception as exc:  # noqa: BLE001 - judged by the error table, where everything unknown is Uncertain
        if wrote():
            return judge(exc)
        wait_s = waits(exc) if waits is not None else _asked_for(judge(exc))
        return NotSent(f"before_write_{name(exc)}", retry_after_s=wait_s)


def _asked_for(said: Outcome) -> float | None:
    return said.retry_after_s if isinstance(said, Rejected) else None


def each_found(
    calls: Iterable[Call], find: Callable[[Call], Finding], *, name: NameOf = class_name
) -> dict[str, Finding]:
    """What `find` says of each call."""
    return {call.action_id: found_or_unknown(partial(find, call), name=name) for call in calls}


def found_or_unknown(find: Callable[[], Finding], *, name: NameOf = class_name) -> Finding:
    """What `find` says; a failed look-up is never absence, whatever failed in it."""
    try:
        return find()
    except Exception as exc:  # noqa: BLE001 - see above
        return Unknown(name(exc))


def read_or_unreadable(read: Callable[[], Reading], *, name: NameOf = class_name) -> Reading:
    """What `read` says; a failed reading is no version, whatever failed in it."""
    try:
        return read()
    except Exception as exc:  # noqa: BLE001 - see above
        return Unreadable(name(exc))


def gone(call: Call, done: Succeeded) -> Succeeded | Rejected:
    """What it means that the object of the action undone is not there: `done`, unless that action went elsewhere than this
    call does, where its object may still be."""
    return Rejected(MOVED) if call.of is not None and call.of.elsewhere else done


def must_show_by(call: Call, now: datetime | None, *, lag_s: float) -> bool:
    """Whether a reading at `now`, by the provider's clock, must show whatever was there before this call was first sent.

    A counter-action is done when its object is gone; but an object that was made just now may not show yet.
    """
    if call.first_sent_at is None or now is None:
        return False
    return now >= call.first_sent_at + timedelta(seconds=lag_s) - CLOCKS_APART
