"""The supervisor of `up`: its children are restarted, stopped in order, and never left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from counterfoil.stack.children import Child, Supervisor
from counterfoil.stack.errors import StackError
from counterfoil.stack.home import Home
from counterfoil.stack.processes import is_alive, remember

IDLE = ("sleep", "1000")


def until(condition: Callable[[], object], within_s: float = 10.0) -> None:
    """Wait until the condition holds."""
    pause = threading.Event()
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        pause.wait(0.01)


@pytest.fixture
def place(tmp_path: Path) -> Home:
    """A home for children; no server is started in it."""
    made = Home(path=tmp_path)
    made.run.mkdir()
    made.log.mkdir()
    return made


def child(place: Home, name: str, *argv: str) -> Child:
    """A child that logs to the home."""
    return Child(name, argv, {}, place.log / f"{name}.log")


def shell(place: Home, name: str, script: str) -> Child:
    """A child that runs a script and then waits; its log says `up` when it is ready."""
    waits = "echo up; while :; do sleep 0.05; done"
    return child(place, name, "sh", "-c", f"{script}; {waits}")


def is_up(given: Child) -> bool:
    """Whether the script has come to its wait."""
    return given.log_path.exists() and "up" in given.log_path.read_text()


def test_killed_child_is_restarted(place: Home) -> None:
    """A child that is killed is running again soon, under a new id, and the others are left alone."""
    with Supervisor([child(place, "a", *IDLE), child(place, "b", *IDLE)], place) as supervisor:
        before, other = supervisor.pid("a"), supervisor.pid("b")
        supervisor.kill("a", signal.SIGKILL)
        until(lambda: supervisor.pid("a") is None)
        until(lambda: "a" in supervisor.poll())
        assert supervisor.pid("a") not in (None, before)
        assert supervisor.pid("b") == other
        assert (supervisor.restarts("a"), supervisor.restarts("b")) == (1, 0)


def test_backoff_doubles_and_is_forgotten(place: Home) -> None:
    """Restarts of a child that keeps dying come after 0.2, 0.4, … 10 s; thirty healthy seconds begin anew."""
    now = [1000.0]
    with Supervisor([child(place, "a", "sh", "-c", "exit 1")], place, clock=lambda: now[0]) as supervisor:

        def waited_s() -> float:
            until(lambda: supervisor.pid("a") is None)
            assert supervisor.poll() == []
            began = now[0]
            while not supervisor.poll():
                now[0] += 0.1
                assert now[0] < began + 11
            return now[0] - began

        assert [waited_s() for _ in range(8)] == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10], abs=0.11)
        until(lambda: supervisor.pid("a") is None)
        now[0] += 30
        assert waited_s() == pytest.approx(0.2, abs=0.11)


def test_children_stop_in_reverse_order(place: Home, tmp_path: Path) -> None:
    """Each child may finish on SIGTERM, and the one started last is gone before the one before it is asked."""
    told = tmp_path / "told"
    children = [shell(place, name, f"trap 'sleep 0.05; echo {name} >> {told}; exit 0' TERM") for name in "abc"]
    supervisor = Supervisor(children, place)
    supervisor.start()
    until(lambda: all(map(is_up, children)))
    supervisor.stop()
    assert told.read_text().split() == ["c", "b", "a"]
    assert [supervisor.pid(name) for name in "abc"] == [None, None, None]
    assert not list(place.run.glob("child-*"))
    supervisor.stop()  # nothing left to stop


def test_child_that_ignores_sigterm_is_killed_with_its_own(place: Home) -> None:
    """After the grace a stubborn child is killed, together with the processes that it has started."""
    stubborn = shell(place, "a", "trap '' TERM; sleep 999 & echo $!")
    supervisor = Supervisor([stubborn], place, grace_s=0.1)
    supervisor.start()
    until(lambda: is_up(stubborn))
    grandchild = psutil.Process(int(stubborn.log_path.read_text().split()[0]))
    assert is_alive(grandchild)
    supervisor.stop()
    until(lambda: not is_alive(grandchild))


def test_environment_and_log(place: Home) -> None:
    """A child has the supervisor's environment and its own, and what it prints is in its log alone, closed to others."""
    given = Child(
        "a", ["sh", "-c", 'echo "$GREETING $HOME"; exec sleep 1000'], {"GREETING": "hello"}, place.log / "a.log"
    )
    with Supervisor([given], place):
        until(lambda: given.log_path.read_text() == f"hello {os.environ['HOME']}\n")
    assert given.log_path.stat().st_mode & 0o077 == 0
    assert "hello" not in repr(given)


def test_missing_program_is_reported(place: Home) -> None:
    """A program that does not exist says so in its log (or at once), and the supervisor goes on trying."""
    missing = child(place, "a", "/no/such/program")
    if sys.platform != "linux":
        with pytest.raises(StackError, match="a cannot be started"):
            Supervisor([missing], place).start()
        return
    with Supervisor([missing], place) as supervisor:
        until(lambda: supervisor.pid("a") is None)
    assert missing.log_path.read_text() == "/no/such/program: No such file or directory\n"


def test_one_supervisor_at_a_time(place: Home) -> None:
    """A second supervisor of the same home is refused and touches nothing; after the first has stopped it may start."""
    children = [child(place, "a", *IDLE)]
    with Supervisor(children, place) as first:
        with pytest.raises(StackError, match="lock"):
            Supervisor(children, place).start()
        assert first.pid("a") is not None
    with Supervisor(children, place):
        pass
    with pytest.raises(ValueError, match="same name"):
        Supervisor([*children, *children], place)


def test_orphan_of_a_killed_supervisor_is_ended(place: Home) -> None:
    """Where the kernel does not end orphans, the next start does, by record, start time and command line."""
    orphan = subprocess.Popen(IDLE)
    stranger = subprocess.Popen(["sleep", "2000"])
    try:
        remember(place.run / "child-a.json", orphan.pid)
        remember(place.run / "child-b.json", stranger.pid)
        with Supervisor([child(place, "a", *IDLE), child(place, "b", *IDLE)], place) as supervisor:
            assert not psutil.pid_exists(orphan.pid)
            assert stranger.poll() is None
            assert supervisor.pid("a") != orphan.pid
    finally:
        for process in (orphan, stranger):
            process.kill()
            process.wait()


def foreground(place: Home) -> subprocess.Popen[str]:
    """A supervisor with two idle children in a process of its own; prints the signal that has ended it."""
    code = f"""
        from pathlib import Path
        from counterfoil.stack.children import Child, Supervisor
        from counterfoil.stack.home import Home
        place = Home(path=Path({str(place.path)!r}))
        children = [Child(name, {IDLE!r}, {{}}, place.log / name) for name in ("a", "b")]
        print(Supervisor(children, place).run_until_signal())
    """
    return subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True)


def recorded_children(place: Home) -> list[psutil.Process]:
    """The two children of the supervisor, once it has started them."""
    records = [place.run / f"child-{name}.json" for name in ("a", "b")]
    until(lambda: all(record.exists() for record in records))
    return [psutil.Process(json.loads(record.read_text())["pid"]) for record in records]


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_foreground_stops_on_a_signal(place: Home, signum: int) -> None:
    """SIGTERM and Ctrl-C end the children and then the supervisor, which tells what it was."""
    supervisor = foreground(place)
    children = recorded_children(place)
    assert all(is_alive(process) for process in children)
    supervisor.send_signal(signum)
    assert supervisor.communicate(timeout=10)[0] == f"{int(signum)}\n"
    assert supervisor.returncode == 0
    assert not any(is_alive(process) for process in children)


def test_children_do_not_outlive_a_killed_supervisor(place: Home) -> None:
    """After kill -9 of the supervisor its children are gone (Linux) or are ended by the next start, which is not blocked."""
    supervisor = foreground(place)
    children = recorded_children(place)
    supervisor.kill()
    supervisor.communicate()
    if sys.platform == "linux":
        until(lambda: not any(is_alive(process) for process in children))
    with Supervisor([child(place, "a", *IDLE), child(place, "b", *IDLE)], place):
        assert not any(is_alive(process) for process in children)
