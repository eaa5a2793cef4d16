"""The life of one server of a home: find it, launch it where it is not alive, wait until it answers, stop it.

A server outlives the process that started it, whatever that one dies of; the next start finds it and uses it again.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from counterfoil.stack.errors import StackError
from counterfoil.stack.home import Home, write_private
from counterfoil.stack.processes import Belongs, end, find, holds, open_log, recall, remember

HOST = "127.0.0.1"
READY_WAIT_S = 60.0
"""Crash recovery replays the log first: a server may take long to answer and be well."""
LAUNCHES_MAX = 3
"""A port may be taken between our look and the server's; the next launch takes another."""


class Server(ABC):
    """One server of one home. Every method may be called again at any time, under the home's lock."""

    program: str
    """The name of its program: what the system calls its processes."""
    helpers: Sequence[str] = ()
    """Other programs that run in its folder."""
    stop_signals: Sequence[tuple[int, float]]
    """How it is asked to stop: signals, gentlest first, each with the seconds it gets."""

    def __init__(self, home: Home, folder: Path) -> None:
        self.home = home
        self.folder = folder
        self.data = folder / "data"
        """Its data, and the server's working directory, by which it is known."""
        self._record = home.run / f"{folder.name}.json"
        self._port_file = home.run / f"{folder.name}.port"
        self.log = home.log / f"{folder.name}.log"

    @abstractmethod
    def prepare(self) -> None:
        """Make the data folder where there is none."""

    @abstractmethod
    def argv(self, port: int) -> list[str]:
        """The command line. Holds no secret: everybody can read it."""

    @abstractmethod
    def answers(self, port: int) -> bool:
        """Whether a server there takes our password and answers; any other reason not to is False, too."""

    def config(self) -> str:
        """What the server is to read from its standard input."""
        return ""

    def leftovers(self) -> Sequence[Path]:
        """Files that a killed server leaves and the next would stumble over; removed when none of it is alive."""
        return ()

    @property
    def port(self) -> int | None:
        """The port of the last launch."""
        try:
            return int(self._port_file.read_text())
        except (FileNotFoundError, ValueError):
            return None

    def process(self) -> psutil.Process | None:
        """The live server. A record that was lost does not hide it: its working directory shows it."""
        recorded = recall(self._record, self._is_main)
        if recorded:
            return recorded
        return next((process for process in find(self._is_ours) if holds(process, self._is_main)), None)

    def launch(self) -> None:
        """Start the server unless it is alive; does not wait for it."""
        if self.process() and self.port:
            return
        self.stop()
        self.prepare()
        self._spawn()

    def relaunch(self) -> bool:
        """Launch a server that died, on its port of before; False if it lives, or cannot have that port now."""
        if self.process():
            return False
        self.stop()  # what is left of it may still have the port
        if self.port is None or not is_free(self.port):
            return False
        self.launch()
        return True

    def wait(self, deadline_s: float = READY_WAIT_S) -> int:
        """Wait until the server answers; give its port. Raises StackError if it does not, or dies again and again."""
        deadline = time.monotonic() + deadline_s
        launches = 1
        while time.monotonic() < deadline:
            port = self.port
            if port and self.answers(port):
                return port
            if self.process() is None:
                if launches == LAUNCHES_MAX:
                    raise StackError(f"{self.program} does not start.", fix=f"See {self.log}.")
                launches += 1
                self.launch()
            time.sleep(0.02)
        raise StackError(
            f"{self.program} has not answered for {deadline_s:.0f} s.",
            fix=f"See {self.log}; if its password file was removed, its data cannot be opened any more.",
        )

    def stop(self) -> None:
        """End the server and whatever is left of an earlier one. Raises StackError if a process survives SIGKILL."""
        main = self.process()
        if main:
            end([main], self.stop_signals)
        if not end(find(self._is_ours), [(signal.SIGKILL, 10.0)]):
            raise StackError(f"A process of {self.program} cannot be ended.", fix=f"Its folder is {self.folder}.")
        self._record.unlink(missing_ok=True)
        for path in self.leftovers():
            path.unlink(missing_ok=True)

    @property
    def _is_ours(self) -> Belongs:
        """Any process of this server: workers, helpers, and what is left of a server or a start that was killed."""

        def belongs(process: psutil.Process) -> bool:
            if process.name() not in (self.program, *self.helpers):
                return False
            return Path(process.cwd()).is_relative_to(self.folder)

        return belongs

    @property
    def _is_main(self) -> Belongs:
        """The server itself: its workers have another title, or the server as their parent."""

        def belongs(process: psutil.Process) -> bool:
            if not self._is_ours(process) or Path(process.cwd()) != self.data:
                return False
            title = process.cmdline()[:1]  # empty while a killed process is on its way out
            if not title or Path(title[0]).name != self.program:
                return False
            parent = process.parent()
            return parent is None or not holds(parent, self._is_ours)

        return belongs

    def _spawn(self) -> None:
        port = self.port
        if port is None or not is_free(port):
            port = free_port()
            write_private(self._port_file, str(port))
        log = open_log(self.log)
        try:
            process = self.run(self.argv(port), self.data, stdin=subprocess.PIPE, output=log)
        finally:
            os.close(log)
        assert process.stdin is not None
        with suppress(BrokenPipeError), process.stdin as stdin:  # a server that dies at once is noticed by `wait`
            stdin.write(self.config().encode())
        process.returncode = 0  # it is to outlive this object: or Popen warns about it, and waits for it
        remember(self._record, process.pid)

    def give(self, path: Path) -> None:
        """Hand a new file or folder to the user that the server runs as."""
        if self.home.user:
            os.chown(path, self.home.user.uid, self.home.user.gid)

    def run(self, argv: list[str], cwd: Path, *, stdin: int, output: int) -> subprocess.Popen[bytes]:
        """Start a program of this server as the home's user, in a session of its own (Ctrl-C does not reach it).

        It is in `cwd` from its first moment, so that a server is known by its folder as soon as it exists.
        """
        user = self.home.user
        return subprocess.Popen(
            argv,
            stdin=stdin,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            env={"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"},  # the caller's PGDATA, PGPORT … are not ours
            start_new_session=True,
            umask=0o077,
            user=user.uid if user else None,
            group=user.gid if user else None,
            extra_groups=[] if user else None,
        )


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port
