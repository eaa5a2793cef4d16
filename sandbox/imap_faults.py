"""Decides which fault an IMAP session meets, and in which phase: the table, and the rules that a test has posted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Commit = Literal["no", "yes", "later"]

OPERATIONS = (
    "connect",
    "capability",
    "login",
    "select",
    "append",
    "literal",
    "appended",
    "search",
    "fetch",
    "store",
    "expunge",
    "logout",
)
"""The phases of a session. `append` is the command before the server asks for the message, `literal` is within the message,
`appended` after it and before the reply."""

WRITES = ("appended", "store", "expunge")
"""Where there is something to be done or not: a rule's `commit` says which."""

FAULTS = ("no", "bad", "drop", "rst", "stall", "garbage", "half", "drop_then_append_after")
"""`no` and `bad` = that answer; `drop` and `rst` = the connection ends without one; `stall` = silence for `delay_s`, then a
reset; `garbage` = a line that is no answer; `half` = a refusal without its line end, then the connection ends; the last one
stores the message `delay_s` after the drop."""

_KINDS: Mapping[str, tuple[type, ...]] = {
    "operation": (str,),
    "times": (int, type(None)),
    "delay_s": (int, float),
    "commit": (bool,),
}


@dataclass(slots=True, kw_only=True)
class ImapRule:
    """The first `times` sessions that come to `operation` meet the fault; None = all of them."""

    name: str
    operation: str
    times: int | None = 1
    delay_s: float = 30.0
    commit: bool | None = None
    fired: int = 0

    @classmethod
    def from_json(cls, posted: Mapping[str, Any]) -> ImapRule:
        """A rule as posted to the control API; ValueError says what is wrong with it."""
        given: dict[str, Any] = {name: value for name, value in posted.items() if value is not None or name == "times"}
        name = given.pop("fault", None)
        given.pop("provider", None)
        if name not in FAULTS:
            raise ValueError(f"no such fault: {name}. IMAP faults: {', '.join(FAULTS)}.")
        for field, value in given.items():
            if field not in _KINDS or not isinstance(value, _KINDS[field]) or (value is True and field != "commit"):
                raise ValueError(f"no such field or value: {field}. Fields: {', '.join(_KINDS)}.")
        operation = given.get("operation")
        if operation not in OPERATIONS or (operation == "connect" and name in ("no", "bad", "half")):
            raise ValueError(f"not at {operation}. Operations: {', '.join(OPERATIONS)}.")
        if operation == "literal" and name not in ("drop", "rst", "stall"):
            raise ValueError("within the message nothing is answered.")
        if operation != "appended" and name == "drop_then_append_after":
            raise ValueError("only after the message is there one to store.")
        if operation not in WRITES and given.get("commit") is not None:
            raise ValueError(f"nothing is done at {operation}.")
        return cls(name=name, **given)

    @property
    def commits(self) -> Commit:
        """What becomes of what was asked: done where the reply is lost, unless the rule says otherwise."""
        if self.name == "drop_then_append_after":
            return "later"
        done = self.name not in ("no", "bad", "half") if self.commit is None else self.commit
        return "yes" if done else "no"

    def to_json(self) -> dict[str, Any]:
        return {"fault": self.name, "provider": "imap", "operation": self.operation, "fired": self.fired}


class ImapRules:
    """The posted rules in order; the first that is not used up wins."""

    def __init__(self) -> None:
        self.rules: list[ImapRule] = []

    def choose(self, operation: str) -> ImapRule | None:
        for rule in self.rules:
            if rule.operation == operation and (rule.times is None or rule.fired < rule.times):
                rule.fired += 1
                return rule
        return None
