"""A pytest plugin for `make cases`: decides nothing, tells which case is held by which test and with what effects.

`python -m pytest -p tests.cases -m case tests` runs the tests that are marked with a case, and fails when a case that must
be held has no test. The effects are the sandbox's own counts at the end of each test.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from counterfoil.sandbox.client import Sandbox

HELD = frozenset(
    "A3 A5 A6 A7 A9 A11 B1 B3 B5 B7 C1 C2 C3 C7 C9 D1 D2 D3 D5 D7 D10 D13 E1 E2 E4 E6 E8 E10 F1 F3 F4 G1 G3 G5 H1 H2 H4 I3 I5 J1 K1 K3 K4".split()  # noqa: SIM905, E501 - one line, one list
)
"""Cases that must have a test; a test may name others, too."""

_CASE, _EFFECTS = "case", "case_effects"
_HEAD = ("case", "result", "effects of each run", "test")
_OUTCOMES = ("skipped", "passed", "failed", "error")
_EFFECTS_SHOWN_MAX = 3


@dataclass
class _Table:
    """What this session's reports said: case → run of a test → outcome and effects."""

    runs: dict[str, dict[str, tuple[str, str]]] = field(default_factory=dict)

    def add(self, report: pytest.TestReport) -> None:
        """A test reports its set-up, its call and its tear-down; the worst of them counts."""
        properties = report.user_properties
        effects = next((str(value) for name, value in properties if name == _EFFECTS), "")
        outcome = "error" if report.failed and report.when != "call" else report.outcome
        for case in [str(value) for name, value in properties if name == _CASE]:
            runs = self.runs.setdefault(case, {})
            before, _ = runs.get(report.nodeid, ("skipped", ""))
            runs[report.nodeid] = (max(before, outcome, key=_OUTCOMES.index), effects)

    @property
    def missing(self) -> list[str]:
        """Cases that no test has held: none is marked with it, or all of them were skipped."""
        return sorted((case for case in HELD if not self._held(case)), key=_order)

    def lines(self) -> Iterator[str]:
        """A line for each case and test function; one with parameters has run several times."""
        rows = [_HEAD, *(row for case in sorted(self.runs, key=_order) for row in self._rows(case))]
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        for row in rows:
            yield "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]])

    def _held(self, case: str) -> bool:
        return any(outcome != "skipped" for outcome, _ in self.runs.get(case, {}).values())

    def _rows(self, case: str) -> Iterator[tuple[str, str, str, str]]:
        functions: dict[str, list[tuple[str, str]]] = {}
        for test, run in self.runs[case].items():
            functions.setdefault(test.partition("[")[0].removeprefix("tests/"), []).append(run)
        for function, runs in sorted(functions.items()):
            outcomes = Counter(outcome for outcome, _ in runs)
            result = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
            effects = sorted({effects for _, effects in runs})
            shown = " | ".join(effects[:_EFFECTS_SHOWN_MAX]) + " | …" * (len(effects) > _EFFECTS_SHOWN_MAX)
            yield case, result, shown, function


_table = pytest.StashKey[_Table]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_table] = _Table()
    config.pluginmanager.register(_Reports(config.stash[_table]))


@dataclass(frozen=True, eq=False)
class _Reports:
    """Listens where reports arrive: in the only process, or in xdist's controller."""

    table: _Table

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.table.add(report)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:  # before the set-up, so that a test that fails in it is told as well
        item.user_properties += [(_CASE, str(mark.args[0])) for mark in item.iter_markers("case")]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Counts at the end of the test, whatever its result, while its sandbox is still as the test has left it."""
    try:
        return (yield)
    finally:
        sandbox = _sandbox_of(item)
        if sandbox is not None:
            counts = {name: count for name, count in sandbox.counts().items() if count}
            item.user_properties.append((_EFFECTS, " ".join(f"{name}={n}" for name, n in counts.items()) or "-"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    table = config.stash[_table]
    terminalreporter.section("cases: effects that the sandbox has counted (- none; blank: the test needs no sandbox)")
    for line in table.lines():
        terminalreporter.write_line(line)
    if table.missing:
        terminalreporter.write_line(f"NOT HELD by any test: {', '.join(table.missing)}", red=True)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    is_controller = not hasattr(session.config, "workerinput")
    if is_controller and not session.config.option.collectonly and session.config.stash[_table].missing:
        session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED


def _sandbox_of(item: pytest.Item) -> Sandbox | None:
    """Among the values of the test's fixtures, or held by one of them."""
    values = list(getattr(item, "funcargs", {}).values())
    found = (value for value in [*values, *(getattr(value, "sandbox", None) for value in values)])
    return next((value for value in found if isinstance(value, Sandbox)), None)


def _order(case: str) -> tuple[str, int]:
    return case[0], int(case[1:])
