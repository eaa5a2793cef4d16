"""Decides how a connection is broken on purpose: resets, early ends and silence, below the HTTP library."""

from __future__ import annotations

import asyncio
import socket
import struct
from http import HTTPStatus

from aiohttp import web

from counterfoil.sandbox.clock import Clock
from counterfoil.sandbox.faults import Damage


async def hurt(request: web.Request, damage: Damage, *, status: int, body: bytes, delay_s: float, clock: Clock) -> None:
    """Breaks the request's connection in that way; no answer may be sent on it afterwards."""
    transport = request.transport
    if transport is None:  # the client has gone first
        return
    head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: application/json\r\n".encode()
    length = f"Content-Length: {len(body)}\r\n\r\n".encode()
    half = body[: max(1, len(body) // 2)]
    match damage:
        case Damage.FIN:
            transport.close()
            return
        case Damage.TRUNCATE_BODY:
            transport.write(head + length + half)
            transport.close()
            return
        case Damage.STALL_HEADERS:
            transport.write(head)
            await clock.sleep(delay_s)
        case Damage.STALL_BODY:
            transport.write(head + length + half)
            await clock.sleep(delay_s)
        case Damage.RST | Damage.RST_UNREAD | Damage.NONE:
            pass
    reset(transport)


def reset(transport: asyncio.Transport) -> None:
    """Sends RST: lingering for zero seconds drops what is unsent and skips the orderly end."""
    sock: socket.socket | None = transport.get_extra_info("socket")
    if sock is not None and not transport.is_closing():
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()
