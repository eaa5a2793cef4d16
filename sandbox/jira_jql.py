"""Decides which JQL this Jira understands: clauses joined by AND, then ORDER BY.

Fields: project, issuekey (key, id), labels, status, issuetype, created, updated. Operators: = != IN "NOT IN" and, on
times, > >= < <=. Times: `-15m` (also h, d, w), `2026-11-30`, `"2026-11-30 09:13"` (UTC, to the minute, as in Jira).
"""

from __future__ import annotations

import calendar
import re
import time
from dataclasses import dataclass

from counterfoil.sandbox.jira_errors import refuse
from counterfoil.sandbox.wire import Json

_TOKEN = re.compile(
    r"""\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|(>=|<=|!=|=|>|<|\(|\)|,)|([^\s"'()=<>!,]+))""", re.VERBOSE
)
_NAMES = {"key": "issuekey", "issue": "issuekey", "id": "issuekey", "type": "issuetype", "label": "labels"}
_TIMES = frozenset({"created", "updated"})
_FIELDS = frozenset({"project", "issuekey", "labels", "status", "issuetype"}) | _TIMES
_UNITS = {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_RELATIVE = re.compile(r"([+-]?)(\d+)([mhdw])")
_CLAUSES_MAX, _VALUES_MAX = 20, 1000


@dataclass(frozen=True, slots=True)
class Clause:
    field: str
    op: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Query:
    clauses: tuple[Clause, ...]
    order_by: tuple[tuple[str, bool], ...]
    """(field, descending)."""

    def matches(self, issue: Json, now: float) -> bool:
        return all(_holds(clause, issue, now) for clause in self.clauses)

    def sort(self, issues: list[Json]) -> None:
        """In place; without ORDER BY the newest issue is first, as in Jira."""
        for field, descending in reversed(self.order_by or (("issuekey", True),)):
            issues.sort(key=lambda issue: _sort_value(issue, field), reverse=descending)


def parse(jql: str) -> Query:
    """The query, or Jira's 400: for what it cannot read and for one without any restriction."""
    tokens = _Tokens(jql)
    clauses: list[Clause] = []
    if not tokens.done and not tokens.word("order"):
        clauses.append(_clause(tokens))
    while clauses and tokens.take_word("and"):
        if len(clauses) >= _CLAUSES_MAX:
            raise _unreadable("too many clauses")
        clauses.append(_clause(tokens))
    order = _order_by(tokens)
    if not tokens.done:
        raise _unreadable(f"unexpected '{tokens.next()}'")
    if not clauses:
        raise refuse(400, "Unbounded JQL queries are not allowed here. Please add a search restriction to your query.")
    return Query(tuple(clauses), order)


class _Tokens:
    def __init__(self, jql: str) -> None:
        self._rest: list[tuple[str, bool]] = []
        at = 0
        stripped = jql.rstrip()
        while at < len(stripped):
            found = _TOKEN.match(stripped, at)
            if found is None:
                raise _unreadable(f"at character {at}")
            double, single, sign, word = found.groups()
            quoted = double if double is not None else single
            self._rest.append((re.sub(r"\\(.)", r"\1", quoted), True) if quoted is not None else (sign or word, False))
            at = found.end()
        self._rest.reverse()

    @property
    def done(self) -> bool:
        return not self._rest

    def next(self) -> str:
        if not self._rest:
            raise _unreadable("it ends too early")
        return self._rest.pop()[0]

    def word(self, word: str) -> bool:
        return bool(self._rest) and self._rest[-1][0].lower() == word and not self._rest[-1][1]

    def take_word(self, word: str) -> bool:
        if self.word(word):
            self._rest.pop()
            return True
        return False


def _clause(tokens: _Tokens) -> Clause:
    name = tokens.next().lower()
    field = _NAMES.get(name, name)
    if field not in _FIELDS:
        raise refuse(400, f"Field '{name}' does not exist or you do not have permission to view it.")
    op = tokens.next().lower()
    if op == "not":
        op = "not " + tokens.next().lower()
    if op not in ("=", "!=", "in", "not in") and not (field in _TIMES and op in (">", ">=", "<", "<=")):
        raise refuse(400, f"The operator '{op}' is not supported by the '{name}' field.")
    values = _values(tokens) if op.endswith("in") else (tokens.next(),)
    if field in _TIMES:
        for value in values:
            _moment(value, now=0.0)  # refuses what is no time, also where no issue is there to compare
    return Clause(field, op, values)


def _values(tokens: _Tokens) -> tuple[str, ...]:
    if not tokens.take_word("("):
        raise _unreadable("IN wants a list in parentheses")
    values = [tokens.next()]
    while tokens.take_word(",") and len(values) < _VALUES_MAX:
        values.append(tokens.next())
    if not tokens.take_word(")"):
        raise _unreadable("the list after IN does not end")
    return tuple(values)


def _order_by(tokens: _Tokens) -> tuple[tuple[str, bool], ...]:
    if not tokens.take_word("order"):
        return ()
    if not tokens.take_word("by"):
        raise _unreadable("ORDER without BY")
    order: list[tuple[str, bool]] = []
    for _ in range(_CLAUSES_MAX):
        name = tokens.next().lower()
        field = _NAMES.get(name, name)
        if field not in _FIELDS:
            raise refuse(400, f"Field '{name}' does not exist or you do not have permission to view it.")
        descending = tokens.take_word("desc")
        if not descending:
            tokens.take_word("asc")
        order.append((field, descending))
        if not tokens.take_word(","):
            break
    return tuple(order)


def _holds(clause: Clause, issue: Json, now: float) -> bool:
    if clause.field in _TIMES:
        return _time_holds(clause, issue[clause.field], now)
    have = _have(issue, clause.field)
    # Jira compares labels with their case and everything else without.
    wanted = set(clause.values) if clause.field == "labels" else {value.lower() for value in clause.values}
    return bool(have & wanted) == (clause.op in ("=", "in"))


def _have(issue: Json, field: str) -> set[str]:
    match field:
        case "labels":
            return set(issue["fields"]["labels"])
        case "issuekey":
            return {issue["key"].lower(), issue["id"]}
        case _:
            return {str(issue[field]).lower()}


def _time_holds(clause: Clause, have: float, now: float) -> bool:
    bounds = [_moment(value, now) for value in clause.values]
    match clause.op:
        case ">=":
            return have >= bounds[0]
        case ">":
            return have > bounds[0]
        case "<=":
            return have <= bounds[0]
        case "<":
            return have < bounds[0]
        case _:
            return any(bound <= have < bound + 60 for bound in bounds) == (clause.op in ("=", "in"))


def _moment(value: str, now: float) -> float:
    if relative := _RELATIVE.fullmatch(value):
        sign, amount, unit = relative.groups()
        return now + (-1 if sign == "-" else 1) * int(amount) * _UNITS[unit]
    text = value.replace("/", "-")
    for pattern in ("%Y-%m-%d %H:%M", "%Y-%m-%d"):
        try:
            return calendar.timegm(time.strptime(text, pattern))
        except ValueError:
            continue
    raise refuse(400, f"Date value '{value}' is invalid. Valid formats: 'yyyy/MM/dd HH:mm', 'yyyy-MM-dd', or '-5d'.")


def _sort_value(issue: Json, field: str) -> tuple[float, str]:
    if field in _TIMES:
        return issue[field], ""
    if field == "issuekey":
        return int(issue["id"]), ""
    return 0.0, " ".join(sorted(_have(issue, field)))


def _unreadable(why: str) -> Exception:
    return refuse(400, f"Error in the JQL Query: {why}.")
