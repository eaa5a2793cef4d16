"""Decides a tool's grade by what is shown on the sandbox, never by what its declaration says alone."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from counterfoil.providers.contract import Contract, Grade
from counterfoil.sandbox.client import Sandbox, SandboxError
from counterfoil.testing.matrix import CHECKS, Check
from counterfoil.testing.measures import MEASUREMENTS, Measurement, lags
from counterfoil.testing.stage import Violation, check_counted, check_subject, staged
from counterfoil.testing.subject import Subject

Progress = Callable[[int, int, str], None]
"""Told before each step: how many are done, of how many, and what comes now."""

LOOKUP_RULES = frozenset(
    {"absent", "another", "found", "receipt", "failed_lookup", "failed_lookup_is_absence", "lag", "many"}
)
"""What contradicts a look-up: without one that can be believed a tool is blind."""
KEY_RULES = frozenset({"key", "in_flight", "mismatch"})
"""What contradicts a native key."""


@dataclass(frozen=True)
class Contradiction:
    """One violation: the check or measurement, its case, the rule's short name, and what was seen."""

    check: str
    case: str
    rule: str
    why: str

    def __str__(self) -> str:
        return f"{self.check}{f'[{self.case}]' if self.case else ''}: {self.rule}: {self.why}"


@dataclass(frozen=True)
class Report:
    """What was shown of one tool."""

    tool: str
    declared: Grade
    grade: Grade
    """What was earned: by the native key, by the look-up, or neither."""
    contract: Contract
    reasons: tuple[str, ...]
    """Why this grade: what was shown, a sentence each."""
    not_shown: tuple[str, ...]
    """What nobody could see here, and what to give so that it is seen."""
    violations: tuple[Contradiction, ...]

    @property
    def passed(self) -> bool:
        """Nothing contradicts the declaration, and the earned grade is at least the declared one."""
        return not self.violations and self.grade <= self.declared

    def to_json(self) -> dict[str, object]:
        """As plain values."""
        return {
            "tool": self.tool,
            "passed": self.passed,
            "grade": self.grade.value,
            "declared": self.declared.value,
            "contract": contract_words(self.contract),
            "reasons": list(self.reasons),
            "not_shown": list(self.not_shown),
            "violations": [{"check": v.check, "case": v.case, "rule": v.rule, "why": v.why} for v in self.violations],
        }

    def __str__(self) -> str:
        verdict = "as declared" if self.grade == self.declared else f"declared {self.declared}"
        lines = [f"{self.tool}: grade {self.grade}, {verdict}: {'passed' if self.passed else 'contradicted'}"]
        sections = (
            ("declared", contract_words(self.contract)),
            ("shown", self.reasons),
            ("not shown", self.not_shown),
            ("contradicted", self.violations),
        )
        for title, said in sections:
            lines += [f"  {title}"] * bool(said) + [f"    {line}" for line in said]
        return "\n".join(lines)


def grade(subject: Subject, sandbox: Sandbox | None = None, *, progress: Progress | None = None) -> Report:
    """Runs every check and measurement on one tool, and says which grade it has earned and why.

    The subject names the tool (or the adapter: `Subject(adapter=…)`), how it is called and where the sandbox counts its
    effect; an adapter alone would not say that. `sandbox` is emptied before each step; without one, a sandbox with the
    subject's `double` runs for the time of the grade. Some 60 steps, a few seconds; never raises for what an adapter does.
    For the subject's own mistakes it does: ValueError (how the tool reaches the sandbox, what comes before, an effect that
    is counted under another name), ArgumentError (its arguments), SandboxError (no such double, or no such operation of it).
    """
    with _given_or_running(subject, sandbox) as world:
        return _Grading(subject, world, progress).report(CHECKS)


def measured(subject: Subject, sandbox: Sandbox) -> Report:
    """The grade by the measurements alone, for a suite that runs the checks one by one."""
    return _Grading(subject, sandbox, None).report(())


@contextmanager
def _given_or_running(subject: Subject, sandbox: Sandbox | None) -> Iterator[Sandbox]:
    if sandbox is not None:
        yield sandbox
        return
    from counterfoil.sandbox.process import running

    if find_spec("aiohttp") is None:
        raise ModuleNotFoundError(
            "a sandbox of its own needs aiohttp: pip install '.[sandbox]' in Counterfoil's clone", name="aiohttp"
        )
    doubles = [subject.double] if subject.double else []
    with (
        tempfile.TemporaryDirectory(prefix="counterfoil-grade-") as folder,
        running(Path(folder), providers=doubles) as own,
    ):
        yield own


class _Grading:
    """One run over one subject; collects what is shown and what is contradicted."""

    def __init__(self, subject: Subject, sandbox: Sandbox, progress: Progress | None) -> None:
        self.subject, self.sandbox, self.progress = subject, sandbox, progress
        self.reasons: list[str] = []
        self.not_shown: list[str] = []
        self.violations: list[Contradiction] = []
        self.done = self.steps = 0

    def report(self, checks: tuple[Check, ...]) -> Report:
        subject, contract = self.subject, self.subject.contract
        check_subject(subject, self.sandbox)
        if checks:
            check_counted(subject, self.sandbox)
        measurements = [measurement for measurement in MEASUREMENTS if measurement.needed(subject)]
        self.steps = sum(len(cases_of(check, subject)) for check in checks) + len(measurements) + contract.lookup
        for check in checks:
            self._check(check)
        if contract.lookup:
            self._measure("lag", partial(lags, lambda: staged(subject, self.sandbox), subject))
        for measurement in measurements:
            self._measure(measurement.name, partial(self._measured, measurement))
        if contract.native_key_ttl_s is not None and not subject.other:
            self.not_shown.append("the key with other arguments: the subject has no `other`")
        return Report(
            tool=subject.name,
            declared=contract.grade,
            grade=earned(contract, self.violations),
            contract=contract,
            reasons=tuple(self.reasons),
            not_shown=tuple(self.not_shown),
            violations=tuple(self.violations),
        )

    def _check(self, check: Check) -> None:
        cases = cases_of(check, self.subject)
        if not cases:
            self.not_shown.append(f"{check.name}: {check.missing}")
            return
        passed = 0
        for case in cases:
            passed += self._step(check.name, case, partial(self._checked, check, case))
        if passed == len(cases):
            count = f" ({passed} cases)" if passed > 1 else ""
            self.reasons.append(f"{check.name}{count}: {(check.run.__doc__ or '').strip()}")

    def _measure(self, name: str, measure: Callable[[], str]) -> None:
        said: list[str] = []
        if self._step(name, None, lambda: said.append(measure())):
            self.reasons.append(f"{name}: {said[0]}")

    def _checked(self, check: Check, case: str | int | None) -> None:
        check(staged(self.subject, self.sandbox), case)

    def _measured(self, measurement: Measurement) -> str:
        return measurement.measure(staged(self.subject, self.sandbox))

    def _step(self, name: str, case: str | int | None, act: Callable[[], None]) -> bool:
        if self.progress is not None:
            self.progress(self.done, self.steps, name if case is None else f"{name} {case}")
        self.done += 1
        try:
            act()
        except Violation as violation:
            told = "" if case is None else str(case)
            self.violations.append(Contradiction(name, told, violation.rule, violation.why))
            return False
        except SandboxError:
            raise
        except Exception as exc:  # noqa: BLE001 - an adapter's code: it has to answer, and whatever it raises is told
            self.violations.append(
                Contradiction(name, str(case or ""), "raised", f"the adapter raised {type(exc).__name__}")
            )
            return False
        return True


def cases_of(check: Check, subject: Subject) -> tuple[str | int | None, ...]:
    """What the check is run with for this subject; nothing where it does not apply."""
    if not check.needed(subject):
        return ()
    if check.name == "listed_refusal":
        return subject.refusals
    return check.cases or (None,)


def earned(contract: Contract, violations: list[Contradiction]) -> Grade:
    """The best grade that nothing contradicts, of what the tool claims to have."""
    broken = {violation.rule for violation in violations}
    if contract.native_key_ttl_s is not None and not broken & KEY_RULES:
        return Grade.A
    if contract.lookup and contract.absence_is_proof and not broken & LOOKUP_RULES:
        return Grade.C if contract.lookup_lag_s > 0 else Grade.B
    return Grade.D


def contract_words(contract: Contract) -> tuple[str, ...]:
    """What a contract claims, a sentence each."""
    key = "none" if contract.native_key_ttl_s is None else f"a repeat is answered for {contract.native_key_ttl_s:g} s"
    if contract.native_key_ttl_s is not None and not contract.native_key_concurrent:
        key += ", but perhaps not while the first request runs: then it is not repeated"
    seen = "seen at once" if not contract.lookup_lag_s else f"seen within {contract.lookup_lag_s:g} s"
    if contract.lookup and not contract.absence_is_proof:
        seen += "; where it finds nothing, a person decides"
    unique = ("unique: a second effect under the key is refused for ever",) if contract.unique else ()
    return (
        f"native key: {key}",
        f"look-up: {seen if contract.lookup else 'none'}",
        *unique,
        f"landing: within {contract.landing_max_s:g} s, or never",
    )
