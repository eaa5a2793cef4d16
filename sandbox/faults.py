"""Decides which fault a request meets: the table of all faults, and the rules that a test has posted.

Faults live in memory: a sandbox that is killed and started again has none.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from enum import Enum
from typing import Any

from counterfoil.sandbox.wire import Route

READS = frozenset({"GET", "HEAD"})


class Commit(Enum):
    """What becomes of the effect of a request that meets the fault."""

    NO = "no"
    YES = "yes"
    STORED_ANSWER = "stored"
    """The handler does not run, yet the idempotency store keeps the fault's answer as the key's result."""
    LATER = "later"
    TWICE = "twice"
    """The request is delivered two times; the client sees the first answer."""


class Damage(Enum):
    """How the connection is hurt instead of a clean answer."""

    NONE = ""
    RST_UNREAD = "reset before the body is read"
    RST = "reset without an answer"
    FIN = "closed without an answer"
    STALL_HEADERS = "status line and a header, then silence, then a reset"
    STALL_BODY = "headers and half of the body, then silence, then a reset"
    TRUNCATE_BODY = "headers and half of the body, then closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One kind of trouble. `status` None = the real answer's; `body` is `html`, `error` (the provider's), bytes, or None
    = the real answer's. `delay_s` is what a rule gets that sets none."""

    commit: Commit = Commit.NO
    status: int | None = None
    body: str | bytes | None = None
    code: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    damage: Damage = Damage.NONE
    wait_before: bool = False
    wait_after: bool = False
    delay_s: float = 0.0
    operation: str | None = None
    reads_only: bool = False


HTML = "html"
ERROR = "error"
_YES, _STALL_S = Commit.YES, 30.0

FAULTS: Mapping[str, Fault] = {
    # A gateway between us and the provider.
    "504_before_commit": Fault(status=504, body=HTML),
    "504_after_commit": Fault(status=504, body=HTML, commit=_YES),
    # Arrives at the provider `delay_s` later on the sandbox's clock; its key is not in flight until then, so that a resend
    # before it runs, and the late one meets the key (or, without one, doubles).
    "504_then_commit_after": Fault(status=504, body=HTML, commit=Commit.LATER, delay_s=5.0),
    "html_502": Fault(status=502, body=HTML),
    "html_503": Fault(status=503, body=HTML),
    # A sign-on page lets the client through and sends it back, now with a GET.
    "302_login": Fault(status=302, body=HTML),
    "307_self": Fault(status=307, body=b""),
    # The connection.
    "rst_mid_request": Fault(damage=Damage.RST_UNREAD),
    "rst_before_commit": Fault(damage=Damage.RST),
    "rst_after_commit": Fault(damage=Damage.RST, commit=_YES),
    "fin_after_commit": Fault(damage=Damage.FIN, commit=_YES),
    "stall_headers": Fault(damage=Damage.STALL_HEADERS, commit=_YES, delay_s=_STALL_S),
    "stall_body": Fault(damage=Damage.STALL_BODY, commit=_YES, delay_s=_STALL_S),
    "truncate_body": Fault(damage=Damage.TRUNCATE_BODY, commit=_YES),
    # The key is in flight for `delay_s`; the handler runs after it, whether the client is still there or not.
    "slow": Fault(commit=_YES, wait_before=True, delay_s=_STALL_S),
    "slow_after_commit": Fault(commit=_YES, wait_after=True, delay_s=_STALL_S),
    "duplicate_delivery": Fault(commit=Commit.TWICE),
    # A success that cannot be read.
    "empty_2xx": Fault(commit=_YES, body=b""),
    "204": Fault(commit=_YES, status=204, body=b""),
    "html_2xx": Fault(commit=_YES, body=HTML),
    "bad_json_2xx": Fault(commit=_YES, body=b'{"id": "'),
    "object_2xx": Fault(commit=_YES, body=b"{}"),
    # The provider's own trouble.
    "500_stored": Fault(
        status=500,
        body=ERROR,
        code="api_error",
        commit=Commit.STORED_ANSWER,
        headers={"Stripe-Should-Retry": "false"},
    ),
    "500_unstored": Fault(status=500, body=ERROR, code="api_error"),
    "409_in_use": Fault(status=409, body=ERROR, code="idempotency_key_in_use"),
    "429_retry_after": Fault(status=429, body=ERROR, code="rate_limit", headers={"Retry-After": "2"}),
    "429_http_date": Fault(status=429, body=ERROR, code="rate_limit", headers={"Retry-After": "<date>"}),
    "429_bare": Fault(status=429, body=ERROR, code="rate_limit"),
    "429_lock_timeout": Fault(status=429, body=ERROR, code="lock_timeout"),
    "503_retry_after": Fault(status=503, body=ERROR, code="unavailable", headers={"Retry-After": "2"}),
    "search_500": Fault(status=500, body=ERROR, code="api_error", operation="search"),
    "lookup_429": Fault(status=429, body=ERROR, code="rate_limit", headers={"Retry-After": "2"}, reads_only=True),
    # Whatever the rule's own status, headers and body say; nothing happens.
    "answer": Fault(status=400, body=ERROR, code="refused"),
}
"""Every fault by name. A rule's `commit` overrides whether the effect happens, where that is a yes or a no."""

_TEXT, _INTEGER, _NUMBER = (str,), (int,), (int, float)
_KINDS: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("provider", "method", "path_re", "operation"), _TEXT),
    **dict.fromkeys(("times", "nth", "seed", "status"), _INTEGER),
    **dict.fromkeys(("probability", "delay_s"), _NUMBER),
    "headers": (dict,),
    "body": (str, dict),
    "commit": (bool,),
}


@dataclass(slots=True, kw_only=True)
class Rule:
    """Which requests meet a fault, and when: the first `times` matches, only the `nth`, or each with `probability`."""

    name: str
    provider: str | None = None
    method: str | None = None
    path_re: str | None = None
    operation: str | None = None
    times: int | None = 1
    nth: int | None = None
    probability: float | None = None
    seed: int = 0
    delay_s: float | None = None
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    body: str | None = None
    commit: bool | None = None
    seen: int = 0
    fired: int = 0
    chance: random.Random = field(default_factory=random.Random)

    @classmethod
    def from_json(cls, posted: Mapping[str, Any]) -> Rule:
        """A rule as posted to the control API; ValueError says what is wrong with it."""
        given: dict[str, Any] = {
            entry: value for entry, value in posted.items() if value is not None or entry == "times"
        }
        name = given.pop("fault", None)
        if name not in FAULTS:
            raise ValueError(f"no such fault: {name}. Faults: {', '.join(FAULTS)}.")
        if unknown := set(given) - set(_KINDS):
            raise ValueError(f"no such field: {', '.join(sorted(unknown))}. Fields: {', '.join(sorted(_KINDS))}.")
        if given.get("probability") is not None or given.get("nth") is not None:
            given.setdefault("times", None)
        for field_name, kinds in _KINDS.items():
            if not isinstance(given.get(field_name), (*kinds, type(None))):
                raise ValueError(f"{field_name} cannot be {given[field_name]!r}.")
        if isinstance(given.get("body"), dict):
            given["body"] = json.dumps(given["body"])
        rule = cls(name=name, **given)
        rule.operation = rule.operation or rule.fault.operation
        rule.chance = random.Random(rule.seed)
        try:
            re.compile(rule.path_re or "")
        except re.error as problem:
            raise ValueError(f"path_re is no regular expression: {problem}.") from None
        return rule

    @property
    def fault(self) -> Fault:
        return FAULTS[self.name]

    @property
    def wait_s(self) -> float:
        return self.fault.delay_s if self.delay_s is None else self.delay_s

    @property
    def commits(self) -> Commit:
        if self.commit is None:
            return self.fault.commit
        return Commit.YES if self.commit else Commit.NO

    def answer_headers(self, now: float) -> dict[str, str]:
        """The fault's headers with the rule's own over them; a date in Retry-After is `delay_s` (or 60 s) from now."""
        date = formatdate(now + (self.delay_s or 60.0), usegmt=True)
        merged = {**self.fault.headers, **self.headers}
        return {name: date if value == "<date>" else value for name, value in merged.items()}

    def selects(self, provider: str, route: Route) -> bool:
        """`operation` is the whole name or its last part: `search` is also `payment_intents.search`."""
        return self.provider in (None, provider) and (
            self.operation is None or f".{route.operation}".endswith(f".{self.operation}")
        )

    def matches(self, provider: str, route: Route, method: str, path: str) -> bool:
        is_read = method in READS or route.reads or route.operation.split(".")[-1] == "search"
        return (
            self.selects(provider, route)
            and (self.method is None or self.method.upper() == method)
            and (self.path_re is None or re.search(self.path_re, path) is not None)
            and (is_read or not self.fault.reads_only)
        )

    def fires(self) -> bool:
        """Whether this match, already counted in `seen`, meets the fault."""
        if self.probability is not None and self.chance.random() >= self.probability:
            return False
        if self.nth is not None and self.seen != self.nth:
            return False
        return self.times is None or self.fired < self.times

    def to_json(self) -> dict[str, Any]:
        return {
            "fault": self.name,
            "provider": self.provider,
            "operation": self.operation,
            "seen": self.seen,
            "fired": self.fired,
        }


class Rules:
    """The posted rules in order; the first that fires wins, and every match counts for each rule's `nth`."""

    def __init__(self) -> None:
        self.rules: list[Rule] = []

    def choose(self, provider: str, route: Route, method: str, path: str) -> Rule | None:
        chosen: Rule | None = None
        for rule in self.rules:
            if not rule.matches(provider, route, method, path):
                continue
            rule.seen += 1
            if chosen is None and rule.fires():
                rule.fired += 1
                chosen = rule
        return chosen
