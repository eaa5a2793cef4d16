"""Valkey of the local stack: a password, an append-only file, nothing evicted, loopback only."""

from __future__ import annotations

import signal
import socket

from counterfoil.stack.binaries import valkey_server
from counterfoil.stack.home import Home
from counterfoil.stack.server import HOST, Server

SECRET = "valkey"


class Valkey(Server):
    """The Valkey of a home."""

    program = "valkey-server"
    stop_signals = ((signal.SIGTERM, 10.0),)

    def __init__(self, home: Home) -> None:
        super().__init__(home, home.valkey)

    def prepare(self) -> None:
        """Make the data folder."""
        if not self.data.exists():
            self.data.mkdir(mode=0o700)
            self.give(self.data)

    def argv(self, port: int) -> list[str]:
        """`valkey-server`, with the rest of its configuration on standard input."""
        return [str(valkey_server(self.home)), "-", "--port", str(port)]

    def config(self) -> str:
        """No eviction: a full broker refuses, it never drops a message. One second of writes may be lost in a crash."""
        return "\n".join(
            [
                f"bind {HOST}",
                f'requirepass "{self.home.secret(SECRET)}"',
                f'dir "{self.data}"',
                "appendonly yes",
                "appendfsync everysec",
                'save ""',
                "maxmemory-policy noeviction",
                "set-proc-title no",
                "",
            ]
        )

    def answers(self, port: int) -> bool:
        """Log in and ping."""
        request = f"AUTH {self.home.secret(SECRET)}\r\nPING\r\n".encode()
        expected = b"+OK\r\n+PONG\r\n"
        answer = b""
        try:
            with socket.create_connection((HOST, port), timeout=2) as connection:
                connection.sendall(request)
                while len(answer) < len(expected):
                    piece = connection.recv(64)
                    if not piece:
                        return False
                    answer += piece
        except OSError:
            return False
        return answer == expected
