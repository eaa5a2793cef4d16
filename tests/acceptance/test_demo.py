"""The demo as a user runs it, and that its counts can be wrong: they are read from the outside world, not written down."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from counterfoil.demo import script
from counterfoil.demo.agent import Transcript
from counterfoil.demo.script import Answer, Entry, Said

RETRY_504 = """
from counterfoil.providers import transport
from counterfoil.providers.jira import outcomes
from counterfoil.providers.outcomes import Rejected

def classify_status(status, *, retry_after_s=None):
    if status == 504:
        return Rejected("gateway_timeout", retryable=True)
    return transport.classify_status(status, retry_after_s=retry_after_s)

outcomes.classify_status = classify_status
outcomes.is_jira_s_own = lambda exc: True  # a gateway's page, too
"""

NO_SWEEPS = """
from counterfoil.reconciler.ticks import Reconciler

Reconciler.sweep_leases = Reconciler.sweep_uncertain = lambda self: 0
"""

GOOD = {
    "tickets_created": 1,
    "tickets_open": 0,
    "charges": 1,
    "refunds": 1,
    "customer_messages": 0,
    "workers_killed": 1,
}
NAIVE = {"tickets_created": 2, "tickets_open": 1, "charges": 2, "refunds": 1, "customer_messages": 1}

COLUMNS = 80
"""Of a terminal in which no line may break."""

KILL = re.compile(r"^ +kill -9 (\d+)$")

TICKET, REWORDED = script.TICKET
FEE = script.FEE[0]
OK: Answer = ("succeeded", {})
ERROR: Answer = ("error", "HTTP 504")


def run_demo(*options: str, path: Path | None = None) -> tuple[int, dict, str]:
    environ = {**os.environ, "PYTHONPATH": str(path or "")}
    command = [sys.executable, "-m", "counterfoil.cli", "demo", "--json", *options]
    run = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=180, check=False)
    assert run.stdout, run.stderr[-3000:]
    return run.returncode, json.loads(run.stdout), run.stderr


@contextmanager
def paused_demo(*options: str) -> Iterator[subprocess.Popen[str]]:
    """The demo with a person at its keyboard, who reads standard error."""
    command = [sys.executable, "-m", "counterfoil.cli", "demo", "--json", "--pause", *options]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as demo:
        try:
            yield demo
        finally:
            demo.kill()


def read_invitation(demo: subprocess.Popen[str]) -> int:
    """Reads on to the next command that the person is given; the process that it names."""
    assert demo.stderr is not None
    told = []
    for line in demo.stderr:
        told.append(line)
        if found := KILL.match(line.rstrip("\n")):
            return int(found[1])
    raise AssertionError(f"nobody was asked to kill anything: {''.join(told)[-3000:]}")


def says(transcript: Sequence[Entry], *answers: Answer) -> tuple[list[Said], str | None]:
    """What the model says when it is answered like this, and what it has given up on."""
    model = script.play(transcript)
    said = [next(model)]
    for answer in answers:
        try:
            said.append(model.send(answer))
        except StopIteration as end:
            return said, end.value
    return said, None


def test_the_model_rewords_and_then_gives_up() -> None:
    """The script tries again in other words after whatever is no success, and gives up after the last of them."""
    assert says([], OK, ERROR) == ([script.LOOK_UP[0], TICKET, REWORDED], None)
    assert says([], OK, ("uncertain", {"next_step": "wait"})) == says([], OK, ERROR)
    assert says([], OK, ERROR, ERROR) == ([script.LOOK_UP[0], TICKET, REWORDED], "jira_create")


def test_the_model_knows_what_its_transcript_says() -> None:
    """After a crash the script says the turn that was cut off again, in its last words, and charges once more."""
    transcript = [
        Entry(*script.LOOK_UP[0], *OK),
        Entry(*TICKET, *ERROR),
        Entry(*REWORDED, *OK),
        Entry(*FEE),
    ]
    assert says(transcript, OK, OK) == ([REWORDED, FEE, script.RESHIP[0]], None)


def test_a_transcript_that_was_cut_off_ends_with_a_decision(tmp_path: Path) -> None:
    """What was answered is read back once, with its answer; what was only decided on, without one."""
    transcript = Transcript(tmp_path / "t.jsonl")
    transcript.decided(*TICKET)
    transcript.answered(*TICKET, OK)
    transcript.decided(*FEE)
    assert Transcript(tmp_path / "t.jsonl").entries == [Entry(*TICKET, *OK), Entry(*FEE)] == transcript.entries


@pytest.mark.chaos
def test_the_demo_tells_it_twice() -> None:
    """`counterfoil demo --json` prints one JSON object: ours as it should be, exit code 0, and the naive harness's."""
    code, told, story = run_demo()
    assert told["counterfoil"] == GOOD
    assert told["naive"] == NAIVE
    assert set(told) == {"counterfoil", "naive", "seconds"}
    assert told["seconds"] < 60
    assert code == 0
    assert max(map(len, story.splitlines())) <= COLUMNS
    assert "\x1b" not in story
    assert story.count("← the second one") == 2


@pytest.mark.chaos
def test_without_the_504_the_naive_harness_makes_one_ticket() -> None:
    """With a gateway that tells the truth, both have one ticket, closed; the kill still doubles the naive charge."""
    code, told, _ = run_demo("--no-504")
    assert told["counterfoil"] == GOOD
    assert told["naive"] == {**NAIVE, "tickets_created": 1, "tickets_open": 0}
    assert code == 0


@pytest.mark.chaos
@pytest.mark.parametrize(
    ("what", "wrong"),
    [(RETRY_504, {"tickets_created": 2, "tickets_open": 1}), (NO_SWEEPS, {"tickets_open": 1, "charges": 0})],
    ids=["a 504 is retried", "nobody sweeps"],
)
def test_the_demo_shows_what_a_broken_fleet_does(tmp_path: Path, what: str, wrong: dict[str, int]) -> None:
    """With a 504 taken for retryable, or the sweeps switched off, the counts are wrong and the exit code is 1."""
    tmp_path.chmod(0o755)
    (tmp_path / "broken_fleet.py").write_text(
        what + "\nfrom counterfoil.demo.tools import search_orders  # a module of tools has some\n"
    )
    code, told, _ = run_demo("--tools", "broken_fleet", "--only", "counterfoil", path=tmp_path)
    assert {name: told["counterfoil"][name] for name in wrong} == wrong
    assert code == 1


@pytest.mark.chaos
def test_a_person_may_do_the_killing() -> None:
    """With `--pause` the demo waits: the first time for Enter, the second for a `kill -9` of the process that it names."""
    with paused_demo() as demo:
        agent = psutil.Process(read_invitation(demo))
        assert "counterfoil.demo.agent" in agent.cmdline()
        assert demo.stdin is not None
        demo.stdin.write("\n")
        demo.stdin.flush()
        os.kill(read_invitation(demo), signal.SIGKILL)
        assert not agent.is_running()
        told, _ = demo.communicate(timeout=120)
        assert json.loads(told)["counterfoil"] == GOOD
        assert json.loads(told)["naive"] == NAIVE
        assert demo.returncode == 0


@pytest.mark.chaos
def test_ctrl_c_ends_a_paused_demo() -> None:
    """An interrupt while it waits stops all that was started, the process to be killed among it, with exit code 130."""
    with paused_demo("--only", "counterfoil") as demo:
        worker = psutil.Process(read_invitation(demo))
        demo.send_signal(signal.SIGINT)
        told, _ = demo.communicate(timeout=60)
        assert told == ""
        assert demo.returncode == 130
        worker.wait(timeout=10)
