"""Decides which fault an SMTP session meets, and in which phase: the table, and the rules that a test has posted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Commit = Literal["no", "yes", "later"]

OPERATIONS = ("connect", "ehlo", "auth", "mail", "rcpt", "data", "body", "dot", "quit")
"""The phases of a session: `body` is after the 354 and before the final dot, `dot` after it and before its reply."""

FAULTS = ("answer", "drop", "rst", "stall", "garbage", "drop_then_accept_after")
"""`answer` = the rule's status as the reply; `drop` and `rst` = the connection ends without one; `stall` = silence for
`delay_s`, then a reset; `garbage` = a line that is no reply; the last one accepts the message `delay_s` after the drop."""

_KINDS: Mapping[str, tuple[type, ...]] = {
    "operation": (str,),
    "times": (int, type(None)),
    "status": (int,),
    "delay_s": (int, float),
    "commit": (bool,),
}


@dataclass(slots=True, kw_only=True)
class SmtpRule:
    """The first `times` sessions that come to `operation` meet the fault; None = all of them."""

    name: str
    operation: str
    times: int | None = 1
    status: int = 451
    delay_s: float = 30.0
    commit: bool | None = None
    fired: int = 0

    @classmethod
    def from_json(cls, posted: Mapping[str, Any]) -> SmtpRule:
        """A rule as posted to the control API; ValueError says what is wrong with it."""
        given: dict[str, Any] = {name: value for name, value in posted.items() if value is not None or name == "times"}
        name = given.pop("fault", None)
        given.pop("provider", None)
        if name not in FAULTS:
            raise ValueError(f"no such fault: {name}. SMTP faults: {', '.join(FAULTS)}.")
        for field, value in given.items():
            if field not in _KINDS or not isinstance(value, _KINDS[field]) or (value is True and field != "commit"):
                raise ValueError(f"no such field or value: {field}. Fields: {', '.join(_KINDS)}.")
        operation = given.get("operation")
        if operation not in OPERATIONS or (operation == "body" and name in ("answer", "garbage")):
            raise ValueError(
                f"not at {operation}. Operations: {', '.join(OPERATIONS)}; in the body nothing is answered."
            )
        if operation != "dot" and (name == "drop_then_accept_after" or given.get("commit") is not None):
            raise ValueError("only after the dot is there a message to accept.")
        if not 200 <= given.get("status", 451) <= 599:
            raise ValueError("status must be an SMTP reply's, 200 to 599.")
        return cls(name=name, **given)

    @property
    def commits(self) -> Commit:
        """What becomes of a complete message: accepted where the reply is lost, unless the rule says otherwise."""
        if self.name == "drop_then_accept_after":
            return "later"
        accepted = self.name != "answer" if self.commit is None else self.commit
        return "yes" if accepted else "no"

    def to_json(self) -> dict[str, Any]:
        return {"fault": self.name, "provider": "smtp", "operation": self.operation, "fired": self.fired}


class SmtpRules:
    """The posted rules in order; the first that is not used up wins."""

    def __init__(self) -> None:
        self.rules: list[SmtpRule] = []

    def choose(self, operation: str) -> SmtpRule | None:
        for rule in self.rules:
            if rule.operation == operation and (rule.times is None or rule.fired < rule.times):
                rule.fired += 1
                return rule
        return None
