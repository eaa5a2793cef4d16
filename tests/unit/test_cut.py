"""The time of one mail session: what it bounds before there is a connection."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from counterfoil.providers.email.cut import Cut

Place = tuple[str, int]


@pytest.fixture
def hole() -> Iterator[Callable[[], Place]]:
    """Makes addresses at which nobody answers, not even with a refusal: their queues of connections are full."""
    with ExitStack() as open_sockets:

        def make() -> Place:
            server = open_sockets.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
            place: Place = server.getsockname()
            for _ in range(3):
                client = open_sockets.enter_context(socket.socket())
                client.setblocking(False)
                client.connect_ex(place)
            return place

        yield make


@pytest.fixture
def resolve(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Gives the name `mail.example` these addresses, in this order."""
    look_up = socket.getaddrinfo

    def resolve(*places: Place) -> None:
        def answer(host: Any, *args: Any, **more: Any) -> Any:
            if host != "mail.example":
                return look_up(host, *args, **more)
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", place) for place in places]

        monkeypatch.setattr(socket, "getaddrinfo", answer)

    return resolve


def test_many_addresses_that_hang(hole: Callable[[], Place], resolve: Callable[..., None]) -> None:
    """A name with many addresses has the time of one session, not that of a session for each."""
    resolve(*(hole() for _ in range(5)))
    before = time.monotonic()
    with pytest.raises(TimeoutError), Cut(0.5) as cut:
        cut.connect("mail.example", 25)
    assert 0.4 < time.monotonic() - before < 1


def test_a_good_address_behind_others(hole: Callable[[], Place], resolve: Callable[..., None]) -> None:
    """One that hangs and one that refuses leave time for the next; then the session has all that is left."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        resolve(hole(), closed.getsockname(), server.getsockname())
        with Cut(3.0) as cut, cut.connect("mail.example", 25) as connection:
            assert connection.getpeername() == server.getsockname()
            assert 1.5 < (connection.gettimeout() or 0) <= 2.1


def test_all_addresses_refuse(resolve: Callable[..., None]) -> None:
    """Said as it is, at once; and so is a name without any address."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        resolve(closed.getsockname(), closed.getsockname())
        with pytest.raises(ConnectionRefusedError), Cut(3.0) as cut:
            cut.connect("mail.example", 25)
    resolve()
    with pytest.raises(OSError, match="no address"), Cut(3.0) as cut:
        cut.connect("mail.example", 25)
