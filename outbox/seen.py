"""What a caller has been told: a set of ends, and the opaque token in which it travels through a transcript. No I/O.

An end is named by its action and by how often that action has been settled, so an end that changes later (found after all,
taken back) is untold again. A count of recordings would not do: an action that was answered `pending` has a place in the
run, but its end was told to nobody. Tokens join: of any number of them the union counts.

A model writes all calls of one response before it reads the first answer. So an end remembers the turn in which it was told,
and does not count as told for the other calls of that turn, even when they carry its token already.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from counterfoil.ledger.canonical import canonical_json
from counterfoil.ledger.errors import ArgumentError

TOKENS_MAX = 10_000
"""Tokens in one call: ten for each call that a run may make."""
TOKEN_CHARS_MAX = 65_536
"""A run of a thousand told ends is a third of it."""

PREFIX = "seen1-"

_ID_CHARS = 16
_ID_BYTES = 10
"""80 bits of the action's id, which is a hash: two actions of one run do not share them."""
_COUNT_MAX = 255
"""Beyond that, changes of one action's end are not told apart."""
_TURN_BYTES = 3
"""Two turns that share these are one: what was told in the first is told again in the second."""
_END_BYTES = _ID_BYTES + 1 + _TURN_BYTES
_NO_TURN = bytes(_TURN_BYTES)
_TAG_BYTES = 6
_CHECK_BYTES = 4

Tokens = str | Iterable[str]


@dataclass(frozen=True, slots=True)
class End:
    """How often its action had been settled when it was told, and in which turn that was."""

    count: int
    turn: bytes = _NO_TURN

    def joined(self, other: End) -> End:
        """Of two tellings the later end; one that was told in two turns was known in any."""
        if self.count != other.count:
            return max(self, other, key=lambda end: end.count)
        return self if self.turn == other.turn else End(self.count)


@dataclass(frozen=True, slots=True)
class Seen:
    """Told ends of one run, by the head of the action's id."""

    ends: Mapping[str, End] = field(default_factory=dict)

    def has(self, action_id: str, ends_count: int) -> bool:
        """Whether the end that the action has now was told."""
        end = self.ends.get(_head(action_id))
        return end is not None and end.count >= min(ends_count, _COUNT_MAX)

    def joined(self, other: Seen) -> Seen:
        """What either holds."""
        if not self.ends or not other.ends:
            return other if not self.ends else self
        both = dict(self.ends)
        for head, end in other.ends.items():
            both[head] = end.joined(both[head]) if head in both else end
        return Seen(both)

    def before(self, turn: str) -> Seen:
        """What was told before that model response; all of it where no turn is given."""
        mark = _mark(turn)
        if mark == _NO_TURN:
            return self
        return Seen({head: end for head, end in self.ends.items() if end.turn != mark})

    def beyond(self, recorded: Seen) -> frozenset[str]:
        """Heads of ends that are not on record: the ledger has lost them, or they were made up."""
        return frozenset(
            head
            for head, end in self.ends.items()
            if head not in recorded.ends or recorded.ends[head].count < end.count
        )

    def token(self, tenant: str, run: str) -> str:
        """These ends as text of letters, digits, - and _: 20 characters, and 19 for each end."""
        ends = b"".join(
            base64.b32decode(head.upper()) + end.count.to_bytes(1, "big") + end.turn
            for head, end in sorted(self.ends.items())
        )
        body = _tag(tenant, run) + ends
        return PREFIX + base64.urlsafe_b64encode(body + _check(body)).rstrip(b"=").decode()


NOTHING = Seen()


def told(ends: Iterable[tuple[str, int]], turn: str = "") -> Seen:
    """The ends of these actions, (action id, count of its settled moves), as told in answer to a call of `turn`."""
    mark = _mark(turn)
    return Seen({_head(action_id): End(min(count, _COUNT_MAX), mark) for action_id, count in ends if count > 0})


def read_tokens(tokens: Tokens, tenant: str, run: str) -> Seen:
    """What the tokens name, taken together. Raises `ArgumentError` at `seen` for one that is malformed or another run's."""
    given = (tokens,) if isinstance(tokens, str) else tokens
    if not isinstance(given, Iterable) or isinstance(given, bytes | Mapping):
        raise _refused(f"is of type {type(tokens).__name__}.", "no_token")
    found = NOTHING
    for number, token in enumerate(given):
        if number == TOKENS_MAX:
            raise _refused(f"holds more than {TOKENS_MAX} tokens.", "too_many")
        if not isinstance(token, str):
            raise _refused(f"holds something of type {type(token).__name__}.", "no_token")
        if token:  # empty: a transcript that holds no answer yet
            found = found.joined(_read(token, tenant, run))
    return found


def _read(token: str, tenant: str, run: str) -> Seen:
    body = _body(token)
    if not body.startswith(_tag(tenant, run)):
        raise _refused("is of another run.", "foreign_token")
    ends = [body[at : at + _END_BYTES] for at in range(_TAG_BYTES, len(body), _END_BYTES)]
    return Seen(
        {base64.b32encode(end[:_ID_BYTES]).decode().lower(): End(end[_ID_BYTES], end[_ID_BYTES + 1 :]) for end in ends}
    )


def _body(token: str) -> bytes:
    """The token's bytes, if it is whole."""
    text = token.removeprefix(PREFIX)
    if token.startswith(PREFIX) and len(token) <= TOKEN_CHARS_MAX and text.isascii():
        try:
            whole = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        except binascii.Error:
            whole = b""
        body, check = whole[:-_CHECK_BYTES], whole[-_CHECK_BYTES:]
        is_whole = len(body) >= _TAG_BYTES and (len(body) - _TAG_BYTES) % _END_BYTES == 0
        if is_whole and check == _check(body):
            return body
    raise _refused("is no token, or only a part of one.", "malformed_token")


def _refused(problem: str, code: str) -> ArgumentError:
    return ArgumentError(
        problem, path="seen", code=code, fix="Give back `seen` of this run's answers, letter by letter."
    )


def _head(action_id: str) -> str:
    return action_id.removeprefix("act_")[:_ID_CHARS]


def _mark(turn: str) -> bytes:
    return hashlib.sha256(turn.encode()).digest()[:_TURN_BYTES] if turn else _NO_TURN


def _tag(tenant: str, run: str) -> bytes:
    """Which run it is, so that another conversation's token is noticed."""
    return hashlib.sha256(canonical_json(["cf1-seen", tenant, run]).encode()).digest()[:_TAG_BYTES]


def _check(body: bytes) -> bytes:
    """Against a token that was cut or copied wrong; it is no secret."""
    return hashlib.sha256(b"cf1-seen" + body).digest()[:_CHECK_BYTES]
