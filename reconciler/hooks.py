"""Decides how a notice leaves: on a command's standard input, or as one POST. Each way out is bounded in time.

Both give None when the notice was taken, else a code of why not; neither reads what the other side has to say.
"""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Protocol
from urllib.parse import urlsplit

OURS = "COUNTERFOIL_"
"""Variables that a hook's process does not get: they may hold the worker's secrets."""


class Hook(Protocol):
    """One way to tell people."""

    def deliver(self, document: bytes) -> str | None:
        """Hands the JSON document over. None = it was taken; else a code. Never raises for the other side's failure."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A program, without a shell, that gets the document on its standard input and ends with 0."""

    arguments: Sequence[str]
    timeout_s: float
    """Then it is killed, with whatever it has started in its process group."""

    def deliver(self, document: bytes) -> str | None:
        environment = {name: value for name, value in os.environ.items() if not name.upper().startswith(OURS)}
        try:
            process = subprocess.Popen(
                self.arguments,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                env=environment,
            )
        except OSError:
            return "cannot_start"
        with process:
            try:
                process.communicate(document, timeout=self.timeout_s)
            except subprocess.TimeoutExpired:
                return "timeout"
            finally:  # a tick's own time limit may end it, too
                if process.returncode is None:
                    os.killpg(process.pid, signal.SIGKILL)
        return None if process.returncode == 0 else f"exit_{process.returncode}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """A URL that gets the document as a POST and answers 2xx. No redirect is followed and no proxy is used."""

    url: str = field(repr=False)
    timeout_s: float
    """For all of it, however slowly the answer drips."""

    def deliver(self, document: bytes) -> str | None:
        parts = urlsplit(self.url)
        connection = _connection(parts.scheme, parts.hostname or "", parts.port, self.timeout_s)
        late = threading.Event()

        def cut() -> None:
            late.set()
            if connection.sock is not None:
                with suppress(OSError):  # TLS's own shutdown is not for other threads: the socket's is
                    socket.socket.shutdown(connection.sock, socket.SHUT_RDWR)

        timer = threading.Timer(self.timeout_s, cut)
        timer.daemon = True
        timer.start()
        try:
            path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            connection.connect()
            if late.is_set():  # before there was anything to cut: a name was slow to resolve
                return "timeout"
            connection.request(
                "POST", path, body=document, headers={"Content-Type": "application/json", "User-Agent": "counterfoil"}
            )
            status = connection.getresponse().status
        except (OSError, HTTPException, ValueError) as error:
            return "timeout" if late.is_set() or isinstance(error, TimeoutError) else "unreachable"
        finally:
            timer.cancel()
            connection.close()
        return None if 200 <= status < 300 else f"http_{status}"


def _connection(scheme: str, host: str, port: int | None, timeout_s: float) -> HTTPConnection:
    if scheme == "https":
        return HTTPSConnection(host, port, timeout=timeout_s, context=ssl.create_default_context())
    return HTTPConnection(host, port, timeout=timeout_s)
