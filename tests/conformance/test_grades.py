"""The kit itself: every shipped tool earns what it declares, honest adapters pass, and each lie is named."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.conformance import liars
from tests.conformance.shipped import SUBJECTS, TOOLS

from counterfoil import tool
from counterfoil.cli import output
from counterfoil.cli.main import main
from counterfoil.ledger.errors import ArgumentError
from counterfoil.providers.contract import Call, Grade
from counterfoil.providers.outcomes import Outcome
from counterfoil.sandbox.client import Sandbox, SandboxError
from counterfoil.sandbox.process import running
from counterfoil.testing import Subject, grade
from counterfoil.testing.grading import CHECKS, measured
from counterfoil.testing.measures import MEASUREMENTS, lag
from counterfoil.testing.stage import Violation, staged

DOUBLE = "tests.conformance.doubles:PARCELS"


@pytest.fixture(scope="module")
def parcels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """A sandbox with a double of somebody's own."""
    with running(tmp_path_factory.mktemp("parcels"), providers=[DOUBLE]) as sandbox:
        yield sandbox


def parcel(adapter: type[liars.Honest] = liars.Honest, **declared: Any) -> Subject:
    """The tool with this adapter, under a contract; by default with the key and an index that lags by half a minute."""
    contract: dict[str, Any] = {"native_key_ttl_s": 3600, "lookup": True, "lookup_lag_s": 30} | declared

    @tool(
        cls="reversible", provider="parcels", effect="parcel", target="order_id", audience=[], adapter="x:Y", **contract
    )
    def create_parcel(order_id: str, weight_g: int) -> dict[str, str]:
        """Book a parcel."""
        raise NotImplementedError(order_id, weight_g)

    return Subject(
        tool=create_parcel,
        adapter=adapter,
        provider="parcels",
        operation="parcels.create",
        effect="parcel",
        lookup_operation="parcels.list",
        arguments={"order_id": "order-1182", "weight_g": 900},
        other={"weight_g": 901},
        fails_with={"weight_g": 40_000},
        double=DOUBLE,
    )


HONEST, FORGETS = parcel(), parcel(liars.ForgetsTheKey)
"""For the command line's test, which names them."""
LOST = replace(HONEST, after="another")
NO_DOUBLE = replace(HONEST, double="tests.conformance.doubles:NOTHING")

LIES: list[tuple[type[liars.Honest], str, str | int | None, str]] = [
    (liars.TriesAgain, "fault", "504_after_commit", "one_request"),
    (liars.FailsOn504, "fault", "504_after_commit", "unproved"),
    (liars.BelievesAnEmptyAnswer, "failed_lookup", "html_502", "failed_lookup_is_absence"),
    (liars.BelievesAnEmptyAnswer, "nobody_listens", None, "failed_lookup_is_absence"),
    (liars.BelievesPresence, "kept_failure", None, "presence"),
    (liars.Repeats, "fault", "500_unstored", "prose"),
    (liars.QuotesArguments, "fault", "html_502", "arguments"),
    (liars.ForgetsTheKey, "delivered_twice", None, "key"),
    (liars.ForgetsTheKey, "repeated", None, "key"),
    (liars.ForgetsTheKey, "late_landing", None, "effects"),
    (liars.FollowsRedirects, "fault", "302_login", "redirect"),
    (liars.FollowsRedirects, "fault", "307_self", "one_request"),
    (liars.RefusesTheTwin, "other_arguments", None, "mismatch"),
    (liars.GivesUpAtOnce, "fault", "rst_after_commit", "unproved"),
    (liars.Raises, "fault", "rst_before_commit", "raised"),
    (liars.FindsByOrder, "nothing_sent", None, "absent"),
    (liars.FindsTheOrder, "another_call", None, "another"),
    (liars.MixesUp, "another_call", None, "another"),
    (liars.Guesses, "unlisted_status", 409, "unproved"),
    (liars.WaitsForEver, "plain", None, "found"),
]


def run(subject: Subject, sandbox: Sandbox, name: str, case: str | int | None) -> None:
    """One check or measurement by name."""
    for check in CHECKS:
        if check.name == name:
            return check(staged(subject, sandbox), case)
    [measurement] = [m for m in MEASUREMENTS if m.name == name]
    measurement.measure(staged(subject, sandbox))
    return None


@pytest.mark.parametrize("name", SUBJECTS)
def test_every_shipped_tool_earns_what_it_declares(sandbox_process: Sandbox, name: str) -> None:
    """Look-up lag, native key and uniqueness are measured; the suite's other checks are tests of their own."""
    report = measured(SUBJECTS[name], sandbox_process)
    assert report.violations == ()
    assert report.grade == report.declared


def test_every_shipped_tool_is_graded() -> None:
    """A tool without a subject would be believed. E-mail is no HTTP: its suites are test_email.py and test_drafts.py."""
    missing = {spec.name for spec in TOOLS if spec.effect is not None} - set(SUBJECTS)
    assert {name for name in missing if not name.startswith("email_")} == set()


def test_a_whole_grade_of_a_shipped_tool(sandbox_process: Sandbox) -> None:
    """Every check and measurement at once, each told by name to whoever watches."""
    told: list[tuple[int, int, str]] = []
    report = grade(SUBJECTS["stripe_charge"], sandbox_process, progress=lambda *step: told.append(step))
    assert report.passed, str(report)
    assert [done for done, _, _ in told] == list(range(len(told)))
    assert {of for _, of, _ in told} == {len(told)}
    assert {"fault 504_after_commit", "plain", "lag"} <= {name for _, _, name in told}


@pytest.mark.parametrize(("liar", "name", "case", "rule"), LIES, ids=lambda v: getattr(v, "__name__", None))
def test_a_lie_is_named(
    parcels: Sandbox, liar: type[liars.Honest], name: str, case: str | int | None, rule: str
) -> None:
    """The honest adapter passes the very check that names the other's lie."""
    run(parcel(), parcels, name, case)
    with pytest.raises(Violation) as seen:
        run(parcel(liar), parcels, name, case)
    assert seen.value.rule == rule


def test_one_of_two_is_not_the_only_one(parcels: Sandbox) -> None:
    """Without the key a request delivered twice is two parcels: a look-up that shows one hides the other."""
    keyless = {"native_key_ttl_s": None}
    run(parcel(liars.ForgetsTheKey, **keyless), parcels, "delivered_twice", None)
    with pytest.raises(Violation, match="two effects under one key"):
        run(parcel(liars.SeesOne, **keyless), parcels, "delivered_twice", None)


@pytest.mark.parametrize(("declared_s", "index_s"), [(0, 3), (3, 30), (29, 30)])
def test_a_lag_that_is_not_declared_is_named(parcels: Sandbox, declared_s: float, index_s: float) -> None:
    """The look-up is asked at the very end of what is declared; an index that is slower contradicts it."""
    with pytest.raises(Violation, match=r"lag: .* after the effect the look-up says Absent"):
        lag(staged(parcel(lookup_lag_s=declared_s), parcels), index_s)
    assert lag(staged(parcel(lookup_lag_s=index_s), parcels), index_s) >= index_s / 2


@pytest.mark.parametrize(("declared_s", "passes"), [(3600, True), (7200, False)])
def test_a_key_that_is_forgotten_too_early_is_named(parcels: Sandbox, declared_s: float, passes: bool) -> None:
    """A repeat right before the declared end of the key must not be done again."""
    report = measured(parcel(native_key_ttl_s=declared_s), parcels)
    assert (report.grade, report.passed) == ((Grade.A, True) if passes else (Grade.C, False))
    assert {violation.rule for violation in report.violations} == (set() if passes else {"key"})


def test_a_promise_of_uniqueness_is_held_against_the_double(parcels: Sandbox) -> None:
    """Keys that are forgotten after an hour are not unique for ever."""
    report = measured(parcel(unique=True), parcels)
    assert [(violation.check, violation.rule) for violation in report.violations] == [("unique", "unique")]


def test_a_person_is_asked_only_about_nothing(parcels: Sandbox) -> None:
    """Where absence proves nothing, an empty look-up is a person's; an effect that is there has to be found."""
    unproved: dict[str, Any] = {"native_key_ttl_s": None, "absence_is_proof": False}
    run(parcel(**unproved), parcels, "fault", "504_before_commit")
    run(parcel(**unproved), parcels, "fault", "504_after_commit")
    with pytest.raises(Violation, match="found: 504_after_commit: the effect is there"):
        run(parcel(liars.WaitsForEver, **unproved), parcels, "fault", "504_after_commit")


def test_who_lies_earns_less(parcels: Sandbox) -> None:
    """A key that is not sent leaves the look-up; one that believes every answer leaves nothing."""
    forgets = measured(parcel(liars.ForgetsTheKey), parcels)
    assert (forgets.declared, forgets.grade, forgets.passed) == (Grade.A, Grade.C, False)
    believes = grade(parcel(liars.BelievesAnEmptyAnswer, native_key_ttl_s=None), parcels)
    assert (believes.declared, believes.grade, believes.passed) == (Grade.C, Grade.D, False)
    assert {violation.rule for violation in believes.violations} >= {"failed_lookup_is_absence"}
    said = str(believes)
    assert said.startswith("create_parcel: grade D, declared C: contradicted")
    assert (
        "failed_lookup[html_502]: failed_lookup_is_absence: the look-up met html_502, and says Absent(complete=True)"
        in said
    )
    assert json.loads(json.dumps(believes.to_json()))["passed"] is False


def test_who_finds_another_s_effect_can_find_nothing(parcels: Sandbox) -> None:
    """A look-up that takes another call's effect for this one's calls what was lost a success: it is worth nothing."""
    report = grade(parcel(liars.FindsTheOrder, native_key_ttl_s=None), parcels)
    assert (report.declared, report.grade, report.passed) == (Grade.C, Grade.D, False)
    assert "another" in {violation.rule for violation in report.violations}


def test_a_tool_that_nobody_can_ask_about_goes_to_a_person(parcels: Sandbox) -> None:
    """Grade D is earned by not pretending: no second effect, and each doubt is a person's."""
    blind: dict[str, Any] = {
        "native_key_ttl_s": None,
        "lookup": None,
        "lookup_lag_s": 0,
        "uncertain": "operator_review",
    }
    report = grade(parcel(liars.ForgetsTheKey, **blind), parcels)
    assert (report.grade, report.violations) == (Grade.D, ())
    assert "failed_lookup: the tool has no look-up" in report.not_shown


@pytest.mark.parametrize(("subject", "code"), [("HONEST", 0), ("FORGETS", 1)])
def test_the_command_line_says_the_same(capsys: pytest.CaptureFixture[str], subject: str, code: int) -> None:
    """`counterfoil tool grade` starts the sandbox with the subject's double; 0 = passed, 1 = contradicted."""
    with pytest.raises(SystemExit) as ended:
        main(["tool", "grade", f"tests.conformance.test_grades:{subject}", "--json"])
    assert ended.value.code == code
    [report] = json.loads(capsys.readouterr().out)
    assert (report["tool"], report["passed"]) == ("create_parcel", code == 0)


def test_a_person_sees_how_far_it_is(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """On a terminal one line counts the steps, and is gone after the last; elsewhere there is none."""
    output.progress("ship", 0, 2, "plain")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(output, "_is_decorated", lambda _stream: True)
    for done, now in enumerate(["plain", "lag"]):
        output.progress("ship", done, 2, now)
    written = capsys.readouterr().err
    assert "ship: 1 of 2: plain" in written
    assert written.endswith("ship: 2 of 2: lag\r\x1b[2K")


@pytest.mark.parametrize(
    ("place", "told"),
    [
        ("tests.conformance.nowhere:X", "module:NAME"),
        ("tests.conformance.doubles:NOTHING", "module:NAME"),
        ("nonsense", "module:NAME"),
        ("tests.conformance.test_grades:LOST", "`after` must be a Subject"),
        ("tests.conformance.test_grades:NO_DOUBLE", "the sandbox did not start"),
    ],
)
def test_a_subject_that_is_none_is_a_mistake_of_the_caller(
    place: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, with what to write."""
    with pytest.raises(SystemExit) as ended:
        main(["tool", "grade", place])
    assert ended.value.code == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    "place", ["tests.conformance.doubles:NOTHING", "no.such:X", "tests.conformance.doubles:BAD_NAME"]
)
def test_a_double_that_is_none_starts_no_sandbox(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The sandbox says what is wrong, and ends with 2; so does the command."""
    with pytest.raises(SystemExit) as refused:
        main(["sandbox", "--data", str(tmp_path / "data"), "--port", "0", "--provider", place])
    assert refused.value.code == 2
    assert place in capsys.readouterr().err
    command = [sys.executable, "-m", "counterfoil.sandbox", "--data", str(tmp_path), "--port", "0", "--provider", place]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    assert ended.returncode == 2
    assert place in ended.stderr


def test_a_subject_says_how_it_reaches_the_sandbox(parcels: Sandbox) -> None:
    """Neither adapter nor address: the author's mistake, told before anything is sent."""
    bare: dict[str, Any] = {"provider": "parcels", "operation": "parcels.create", "effect": "parcel", "arguments": {}}
    with pytest.raises(ValueError, match="needs a `name`"):
        Subject(**bare)
    with pytest.raises(ValueError, match="needs a `tool` or an `adapter`"):
        Subject(name="x", **bare)
    spec = parcel().spec
    with pytest.raises(ValueError, match="give `adapter=`"):
        grade(Subject(tool=spec, **bare), parcels)
    with pytest.raises(ValueError, match="`after` must be a Subject"):
        grade(replace(parcel(), after="another"), parcels)
    with pytest.raises(SandboxError, match="no such operation"):
        grade(replace(parcel(), operation="parcels.book"), parcels)
    with pytest.raises(ArgumentError):
        grade(replace(parcel(), arguments={"order_id": 1}), parcels)
    with pytest.raises(ValueError, match="counted as 'parcel' of 'parcels', and the subject waits for 'parcl' of"):
        grade(replace(parcel(), effect="parcl"), parcels)


def test_an_adapter_alone_is_graded_by_its_lookup(parcels: Sandbox) -> None:
    """Nothing is declared then but what the subject names: an operation that is the look-up, seen at once."""
    alone = replace(parcel(), tool=None, name="create_parcel", deduplicates=True, lags_s=(0.0,))
    report = measured(alone, parcels)
    assert (report.declared, report.grade, report.violations) == (Grade.B, Grade.B, ())


def test_a_credential_in_an_outcome_is_named(parcels: Sandbox) -> None:
    """It is told that one is there, and not which."""
    with pytest.raises(Violation, match="secrets: html_502: a credential is in the outcome") as seen:
        run(replace(parcel(liars.QuotesArguments), secrets=("order-1182",)), parcels, "fault", "html_502")
    assert "order-1182" not in str(seen.value)


def test_what_an_adapter_raises_is_told(parcels: Sandbox) -> None:
    """In a measurement, too, the grade goes on."""

    class Breaks(liars.Honest):
        def send(self, call: Call, *, timeout_s: float) -> Outcome:
            raise RuntimeError("broken")

    report = measured(parcel(Breaks), parcels)
    told = {violation.check: violation.why for violation in report.violations}
    assert told.pop("in_flight") == "the first request never arrived"
    assert set(told.values()) == {"the adapter raised RuntimeError"}
