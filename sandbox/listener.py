"""Decides how a server that is no HTTP server listens: a port of its own, one task a connection, all cut when it stops."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

Session = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
_LINE_BYTES_MAX = 1 << 16


class SessionEnded(Exception):
    """The session is over: by a fault, or because its client has gone."""


class Listener:
    """A port whose connections are sessions."""

    def __init__(self, session: Session) -> None:
        self.port = 0
        self._session = session
        self._server: asyncio.Server | None = None
        self._running: set[asyncio.Task[None]] = set()

    async def start(self, host: str, port: int) -> None:
        """Listens; `port` 0 takes a free one, which `port` is then."""
        self._server = await asyncio.start_server(self._serve, host, port, limit=_LINE_BYTES_MAX)
        self.port = self._server.sockets[0].getsockname()[1]

    def stop(self) -> None:
        """At once; sessions under way are cut."""
        if self._server is not None:
            self._server.close()
        for session in self._running:
            session.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        try:
            await self._session(reader, writer)
        except (SessionEnded, ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
            pass
        finally:
            self._running.discard(task)
            writer.close()
