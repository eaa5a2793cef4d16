"""Could the request have left? Every row of the table, with exceptions that real sockets made."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import requests
import stripe
from hypothesis import given
from hypothesis import strategies as st
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

from counterfoil.providers.outcomes import NotSent, Rejected, Uncertain
from counterfoil.providers.transport import classify_exception, classify_status, retry_after_of, retry_after_s

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
Behaviour = Callable[[socket.socket], None]

# A self-signed certificate for 127.0.0.1, made for these tests and worth nothing.
LOOPBACK_PEM = """-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgDbE32dIKrqln9ORQ
Ya3jtYLP4Q+kFbS9dIhP8/hga4ChRANCAAQMLWGB5dTLIfWn86U0LTmIinoKx35H
JnW5iVv5to1VeQgTDq9kLG+7MXbXj+hnArBkOHwjKUFRYAy9L89MTnzA
-----END PRIVATE KEY-----
-----BEGIN CERTIFICATE-----
MIIBjTCCATSgAwIBAgIUWIcgqBaMlfgyNWYVhF1LZIPGFCAwCgYIKoZIzj0EAwIw
EzERMA8GA1UEAwwIbG9vcGJhY2swIBcNMjYxMTMwMDkzMzU0WhgPMjEyNjExMDYw
OTMzNTRaMBMxETAPBgNVBAMMCGxvb3BiYWNrMFkwEwYHKoZIzj0CAQYIKoZIzj0D
AQcDQgAEDC1hgeXUyyH1p/OlNC05iIp6Csd+RyZ1uYlb+baNVXkIEw6vZCxvuzF2
14/oZwKwZDh8IylBUWAMvS/PTE58wKNkMGIwHQYDVR0OBBYEFH9i+YoZQIQAdhqJ
4vOhI/QGdKNWMB8GA1UdIwQYMBaAFH9i+YoZQIQAdhqJ4vOhI/QGdKNWMA8GA1Ud
EwEB/wQFMAMBAf8wDwYDVR0RBAgwBocEfwAAATAKBggqhkjOPQQDAgNHADBEAiAu
yAEcsUqJFwmk8jwNEbjG5rpezr5X1K5RJZNM937F8QIgHwHJjRJVfcnDted8pSOF
aDobkPTNd0+eLDMIiSq/ICs=
-----END CERTIFICATE-----
"""


@contextlib.contextmanager
def peer(behaviour: Behaviour) -> Iterator[int]:
    """A server on loopback that does one thing with each connection; gives its port."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                for _ in range(10):
                    connection, _ = server.accept()
                    with connection, contextlib.suppress(OSError):
                        connection.settimeout(5)
                        behaviour(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join(5)
        assert not thread.is_alive()


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def read_request(connection: socket.socket) -> bytes:
    data = b""
    for _ in range(100):
        data += connection.recv(65536)
        if b"\r\n\r\n" in data:
            return data
    raise AssertionError("no request")


def reset(connection: socket.socket) -> None:
    read_request(connection)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def finish(connection: socket.socket) -> None:
    read_request(connection)


def hold(connection: socket.socket) -> None:
    """Reads whatever comes, until the client closes."""
    for _ in range(1000):
        if not connection.recv(65536):
            return


def stall(connection: socket.socket) -> None:
    hold(connection)


def headers_then_stall(connection: socket.socket) -> None:
    read_request(connection)
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n")
    hold(connection)


def truncate(connection: socket.socket) -> None:
    read_request(connection)
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf")


def failure(call: Callable[[], object]) -> Exception:
    """The exception that `call` raises, with its traceback."""
    try:
        call()
    except Exception as exc:  # noqa: BLE001 - whatever it is, it is what we judge
        return exc
    raise AssertionError("it did not fail")


def post(url: str, **more: object) -> Callable[[], object]:
    return lambda: requests.post(url, data="x", timeout=(0.3, 0.3), **more)  # type: ignore[arg-type]


def test_refused_connection_is_not_sent() -> None:
    """Nobody listens: no byte left."""
    exc = failure(post(f"http://127.0.0.1:{closed_port()}/"))
    assert classify_exception(exc) == NotSent("connection_refused")


def test_failed_name_lookup_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host has no address: no byte left."""

    def no_address(*_args: object, **_more: object) -> object:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", no_address)
    assert classify_exception(failure(post("http://provider.invalid/"))) == NotSent("name_resolution")


def test_connect_timeout_is_not_sent() -> None:
    """The peer's backlog is full, so the handshake never ends: no byte left."""
    with socket.socket() as server, contextlib.ExitStack() as held:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for _ in range(4):
            filler = held.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(server.getsockname())
        exc = failure(post(f"http://127.0.0.1:{server.getsockname()[1]}/"))
    assert classify_exception(exc) == NotSent("connect_timeout")


def test_refused_proxy_is_not_sent() -> None:
    """The proxy does not listen: no byte left."""
    proxy = f"http://127.0.0.1:{closed_port()}"
    exc = failure(post("http://provider.invalid/", proxies={"http": proxy}))
    assert classify_exception(exc) == NotSent("proxy_refused")


@pytest.mark.parametrize("url", ["ftp://127.0.0.1/", "127.0.0.1/x", "http://", "http://*invalid/"])
def test_bad_url_is_not_sent_and_says_so(url: str) -> None:
    """A URL that the client refuses is a mistake in the configuration, with a code of its own."""
    assert classify_exception(failure(post(url))) == NotSent("invalid_url")


def test_plaintext_peer_is_not_sent() -> None:
    """The TLS handshake fails, so no byte of the request was written."""

    def plaintext(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(OK)

    with peer(plaintext) as port:
        assert classify_exception(failure(post(f"https://127.0.0.1:{port}/"))) == NotSent("tls_handshake")


def test_bad_certificate_is_not_sent(tls: ssl.SSLContext) -> None:
    """The peer's certificate is not trusted: the handshake ends before the request."""
    with peer(lambda connection: tls.wrap_socket(connection, server_side=True).close()) as port:
        assert classify_exception(failure(post(f"https://127.0.0.1:{port}/"))) == NotSent("tls_handshake")


def test_tls_error_after_the_request_is_uncertain(tls: ssl.SSLContext, pem: Path) -> None:
    """A gateway writes plain text into the TLS stream after it took the request: urllib3 wraps that like a handshake."""

    def break_record(connection: socket.socket) -> None:
        raw = socket.socket(fileno=connection.fileno())
        raw.settimeout(5)  # the descriptor does not block, and a new object does not know that
        try:
            secure = tls.wrap_socket(raw, server_side=True, suppress_ragged_eofs=True)
        except ssl.SSLError:
            raw.detach()
            raise
        secure.recv(65536)
        plain = socket.socket(fileno=secure.detach())
        plain.settimeout(5)
        plain.sendall(b"HTTP/1.1 502 Bad Gateway\r\n\r\n")
        # Until the client closes: a reset for what is unread may overtake the answer.
        with contextlib.suppress(OSError):
            while plain.recv(65536):
                pass
        plain.detach()

    with peer(break_record) as port:
        exc = failure(post(f"https://127.0.0.1:{port}/", verify=str(pem)))
    outcome = classify_exception(exc)
    assert isinstance(exc, requests.exceptions.SSLError)
    assert "MaxRetryError" in str(outcome)
    assert isinstance(outcome, Uncertain)


def test_stalled_handshake_is_uncertain() -> None:
    """It looks like a read timeout, and cannot be told from one."""
    with peer(hold) as port:
        assert isinstance(classify_exception(failure(post(f"https://127.0.0.1:{port}/"))), Uncertain)


@pytest.mark.parametrize(
    ("behaviour", "code"),
    [
        (reset, "connection_lost"),
        (finish, "connection_lost"),
        (stall, "read_timeout"),
        (headers_then_stall, "read_timeout"),
        (truncate, "connection_lost"),
    ],
)
@pytest.mark.case("A9")
def test_failure_after_the_first_byte_is_uncertain(behaviour: Behaviour, code: str) -> None:
    """Reset, closed, stalled or cut short: the request may have landed."""
    with peer(behaviour) as port:
        outcome = classify_exception(failure(post(f"http://127.0.0.1:{port}/")))
    assert isinstance(outcome, Uncertain)
    assert outcome.code == code
    assert str(port) not in outcome.evidence


def test_refused_after_a_redirect_is_uncertain() -> None:
    """The first request was answered, so it left, whatever became of the second."""
    dead = closed_port()

    def redirect(connection: socket.socket) -> None:
        read_request(connection)
        location = f"Location: http://127.0.0.1:{dead}/\r\n".encode()
        connection.sendall(b"HTTP/1.1 307 Moved\r\nContent-Length: 0\r\n" + location + b"\r\n")

    with peer(redirect) as port:
        assert isinstance(classify_exception(failure(post(f"http://127.0.0.1:{port}/"))), Uncertain)


def test_refused_after_a_retry_inside_the_client_is_uncertain() -> None:
    """The client's own retry hides what became of its first request."""
    session = requests.Session()
    session.mount("http://", HTTPAdapter(max_retries=Retry(total=1, backoff_factor=0)))
    exc = failure(lambda: session.post(f"http://127.0.0.1:{closed_port()}/", timeout=1))
    assert isinstance(classify_exception(exc), Uncertain)


def test_refused_while_handling_a_lost_answer_is_uncertain() -> None:
    """A function that tries elsewhere after a reset: the first request may have landed."""

    def try_elsewhere(port: int) -> None:
        try:
            post(f"http://127.0.0.1:{port}/")()
        except requests.ConnectionError:
            post(f"http://127.0.0.1:{closed_port()}/")()

    with peer(reset) as port:
        assert isinstance(classify_exception(failure(lambda: try_elsewhere(port))), Uncertain)


def test_read_timeout_while_handling_a_refused_connection_is_uncertain() -> None:
    """The refused connection is only the context of what really happened."""

    def try_elsewhere(port: int) -> None:
        try:
            post(f"http://127.0.0.1:{closed_port()}/")()
        except requests.ConnectionError:
            post(f"http://127.0.0.1:{port}/")()

    with peer(stall) as port:
        assert isinstance(classify_exception(failure(lambda: try_elsewhere(port))), Uncertain)


def test_a_bug_while_handling_a_refused_connection_is_uncertain() -> None:
    """The refused connection explains itself only: what the handler did before it failed is not known."""

    def fall_back() -> None:
        try:
            post(f"http://127.0.0.1:{closed_port()}/")()
        except requests.ConnectionError:
            raise ValueError("no second host") from None

    assert isinstance(classify_exception(failure(fall_back)), Uncertain)


@pytest.mark.parametrize(
    "exc", [ValueError("x"), AttributeError("x"), MemoryError(), ConnectionResetError(), OSError()]
)
def test_any_other_exception_is_uncertain(exc: BaseException) -> None:
    """Our own bugs and bare socket errors prove nothing; their text stays out of the evidence."""
    assert classify_exception(exc) == Uncertain("exception", evidence=type(exc).__name__)


def test_stripe_wrapper_is_seen_through() -> None:
    """The stripe client wraps the transport's exception; its `should_retry` is not a signal."""
    dead = f"http://127.0.0.1:{closed_port()}"
    client = stripe.StripeClient("sk_test_x", base_addresses={"api": dead}, max_network_retries=0)
    assert classify_exception(failure(client.v1.customers.create)) == NotSent("connection_refused")
    with peer(reset) as port:
        lost = stripe.StripeClient(
            "sk_test_x", base_addresses={"api": f"http://127.0.0.1:{port}"}, max_network_retries=0
        )
        assert isinstance(classify_exception(failure(lost.v1.customers.create)), Uncertain)


def test_only_listed_statuses_are_refusals() -> None:
    """Every status from 300 to 599: 429 is for now, eight are for good, all the rest say nothing."""
    outcomes = {status: classify_status(status) for status in range(300, 600)}
    refused = {status for status, outcome in outcomes.items() if isinstance(outcome, Rejected)}
    assert refused == {400, 401, 403, 404, 410, 412, 413, 422, 429}
    assert outcomes[429] == Rejected("rate_limited", retryable=True)
    assert all(isinstance(outcome, Uncertain) for status, outcome in outcomes.items() if status not in refused)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("7", 7.0),
        (" 7 ", 7.0),
        ("0", 0.0),
        ("99999999999999999999", 900.0),
        ("Mon, 30 Nov 2026 12:01:30 GMT", 90.0),
        ("Mon, 30 Nov 2026 11:00:00 GMT", 0.0),
        ("Tue, 01 Dec 2026 12:00:00 GMT", 900.0),
        ("1.5", 1.5),
        ("-5", None),
        ("nan", None),
        ("Infinity", None),
        ("1e9", None),
        ("7,5", None),
        ("0x10", None),
        ("\u0667", None),
        ("Mon, 30 Nov 2026 12:01:30 +9999", None),
        ("Monday, 30-Nov-26 12:01:30 GMT", 90.0),
        ("Mon Nov 30 12:01:30 2026", 90.0),
        ("soon", None),
        ("Mon, 01 Jan 99999999999999999999 00:00:00 GMT", None),
        ("", None),
        (None, None),
    ],
)
@pytest.mark.case("E2")
def test_retry_after_is_seconds_or_a_date_and_capped(header: str | None, seconds: float | None) -> None:
    """Both forms of the header give a delay within its cap; nonsense gives none."""
    assert retry_after_s(header, now=NOW, cap_s=900) == seconds


@given(st.text(max_size=60) | st.from_regex(r"[A-Za-z]{3}, \d{1,3} [A-Za-z]{3} \d{1,9} \d\d:\d\d:\d\d [-+GMT0-9]{0,6}"))
def test_no_retry_after_hurts(header: str) -> None:
    """Whatever a provider writes there, it is a delay within the cap or none, and never an exception."""
    wait_s = retry_after_s(header, now=NOW, cap_s=900)
    assert wait_s is None or 0 <= wait_s <= 900


def test_retry_after_date_is_measured_from_the_replys_own_date() -> None:
    """The provider's clock decides, so ours may be wrong."""
    headers = {"Date": "Wed, 01 Jan 2020 00:00:00 GMT", "retry-after": "Wed, 01 Jan 2020 00:00:42 GMT"}
    assert retry_after_of(headers, cap_s=900) == 42.0


def test_a_date_that_is_none_hurts_no_answer() -> None:
    """Whatever a header holds, what the answer itself says is judged."""
    beyond = "Mon, 01 Jan 99999999999999999999 00:00:00 GMT"
    assert retry_after_of({"Date": beyond, "Retry-After": "7"}, cap_s=900) == 7.0


@pytest.fixture
def pem(tmp_path: Path) -> Path:
    path = tmp_path / "loopback.pem"
    path.write_text(LOOPBACK_PEM)
    return path


@pytest.fixture
def tls(pem: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    return context
