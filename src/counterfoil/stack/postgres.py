"""Postgres of the local stack: durable, checksummed, passwords only, TCP on loopback only."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import psycopg

from counterfoil.stack.binaries import postgres_bin
from counterfoil.stack.errors import StackError
from counterfoil.stack.home import Home, write_private
from counterfoil.stack.processes import open_log
from counterfoil.stack.server import HOST, Server

SUPERUSER = "postgres"
SECRET = "postgres"

SETTINGS = {
    "listen_addresses": HOST,
    "unix_socket_directories": "",  # a path under a deep project folder is longer than a socket's may be
    "max_connections": "200",
    "fsync": "on",
    "synchronous_commit": "on",
    "timezone": "UTC",
    "log_timezone": "UTC",
    # A failing statement's text and details hold arguments and passwords, which reach no log.
    "log_min_error_statement": "panic",
    "log_error_verbosity": "terse",
}
"""Given on the command line, so that they hold for data of every age."""

INITDB_WAIT_S = 60.0


class Postgres(Server):
    """The Postgres of a home, in the major version that the home names."""

    program = "postgres"
    helpers = ("initdb",)
    stop_signals = ((signal.SIGINT, 20.0), (signal.SIGQUIT, 10.0))  # "fast", then "immediate"

    def __init__(self, home: Home) -> None:
        super().__init__(home, home.postgres)

    def argv(self, port: int) -> list[str]:
        """`postgres` on its data and port, under SETTINGS."""
        settings = [part for name, value in SETTINGS.items() for part in ("-c", f"{name}={value}")]
        return [str(postgres_bin(self.home) / "postgres"), "-D", str(self.data), "-p", str(port), *settings]

    def answers(self, port: int) -> bool:
        """Log in as the superuser, as any client would."""
        password = self.home.secret(SECRET)
        try:
            with psycopg.connect(
                host=HOST, port=port, user=SUPERUSER, password=password, dbname="postgres", connect_timeout=2
            ):
                return True
        except psycopg.OperationalError:
            return False

    def prepare(self) -> None:
        """Run initdb beside the data folder's place and move the result there: no half cluster is taken for one."""
        for abandoned in self.folder.glob("new.*"):
            shutil.rmtree(abandoned)
        if self.data.exists():
            if not self.home.has_secret(SECRET):
                raise StackError(
                    f"The superuser's password of {self.data} is lost.", fix=f"Move {self.folder} away to start anew."
                )
            return
        fresh = Path(tempfile.mkdtemp(prefix="new.", dir=self.folder))
        self.give(fresh)
        self._initdb(fresh / "data", fresh / "password")
        (fresh / "data").rename(self.data)
        shutil.rmtree(fresh)

    def leftovers(self) -> Sequence[Path]:
        """The lock file: Postgres believes it when its id now belongs to a zombie or to another process.

        It is there to keep two servers off the same data, and no process of this data is left when it is removed.
        """
        return (self.data / "postmaster.pid",)

    def _initdb(self, data: Path, password_file: Path) -> None:
        write_private(password_file, self.home.secret(SECRET))
        self.give(password_file)
        argv = [
            str(postgres_bin(self.home) / "initdb"),
            f"--pgdata={data}",
            f"--username={SUPERUSER}",
            f"--pwfile={password_file}",
            "--auth=scram-sha-256",
            "--encoding=UTF8",
            f"--locale={'C.UTF-8' if sys.platform == 'linux' else 'C'}",  # macOS has no C.UTF-8
            "--data-checksums",
        ]
        process = self.run(argv, self.folder, stdin=subprocess.DEVNULL, output=subprocess.PIPE)
        try:
            output, _ = process.communicate(timeout=INITDB_WAIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
        with open(open_log(self.log), "wb") as log:
            log.write(output)
        if process.returncode != 0:
            raise StackError("initdb failed.", fix=f"See {self.log}.")
