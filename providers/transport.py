"""Decides whether a failed request could have left: one table for every client built on requests and urllib3.

Only a whitelisted connect-phase fault is NotSent, only a whitelisted status is a refusal; everything else is Uncertain.
Exceptions are judged by class name and module: no client is imported here. Measured on requests 2.34, urllib3 2.8:

    refused, unreachable    ConnectionError <- MaxRetryError <- NewConnectionError      NotSent
    name look-up            ... <- NameResolutionError <- gaierror                      NotSent
    connect timeout         ConnectTimeout <- MaxRetryError <- ConnectTimeoutError      NotSent
    TLS handshake refused   SSLError <- MaxRetryError <- SSLError out of do_handshake   NotSent
    proxy refused           ProxyError <- MaxRetryError <- NewConnectionError           NotSent
    bad URL                 InvalidURL, InvalidSchema, MissingSchema                    NotSent, code invalid_url

A marker counts only if the *whole* chain is of the connect phase: urllib3 also puts TLS errors that it met while
reading inside MaxRetryError, and a refused connection after a redirect, or after a retry inside the client, follows a
request that did leave. The traceback tells these apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from types import TracebackType

from counterfoil.providers.outcomes import PRECONDITION_FAILED, NotSent, Rejected, Uncertain

NODES_MAX = 50
FRAMES_MAX = 500
EVIDENCE_CHARS_MAX = 300

_SECONDS = re.compile(r"[0-9]{1,100}(\.[0-9]{1,100})?")

REFUSALS: Mapping[int, str] = {
    400: "invalid_request",
    401: "unauthenticated",
    403: "forbidden",
    404: "not_found",
    410: "gone",
    412: PRECONDITION_FAILED,
    413: "too_large",
    422: "unprocessable",
}
"""The statuses that say that nothing was done, for good. 429 says it for now; every other status says nothing."""

_CONNECT_FAULTS = {
    "requests.ConnectTimeout": "connect_timeout",
    "urllib3.ConnectTimeoutError": "connect_timeout",
    "urllib3.NameResolutionError": "name_resolution",
    "urllib3.NewConnectionError": "connection_refused",
}
CONNECT_CODES = frozenset({*_CONNECT_FAULTS.values(), "proxy_refused", "tls_handshake"})
"""The codes of `NotSent` that are about the way to the provider, and no mistake of ours."""
_URL_FAULTS = frozenset(
    {"requests.InvalidURL", "requests.InvalidSchema", "requests.MissingSchema", "requests.InvalidProxyURL"}
)
_TLS_FAULTS = frozenset({"ssl.SSLError", "ssl.SSLCertVerificationError", "ssl.SSLEOFError", "ssl.SSLZeroReturnError"})
_WRAPPERS = frozenset(
    {
        "requests.ConnectionError",
        "requests.SSLError",
        "requests.ProxyError",
        "urllib3.MaxRetryError",
        "urllib3.SSLError",
        "urllib3.ProxyError",
        "urllib3.LocationParseError",
        "stripe.APIConnectionError",
        "builtins.OSError",
        "builtins.TimeoutError",
        "builtins.ConnectionRefusedError",
        "socket.gaierror",
    }
)
_UNCERTAIN_CODES = {
    "requests.TooManyRedirects": "redirected",
    "requests.ReadTimeout": "read_timeout",
    "urllib3.ReadTimeoutError": "read_timeout",
    "counterfoil.DeadlinePassed": "read_timeout",
    "urllib3.ProtocolError": "connection_lost",
    "requests.ChunkedEncodingError": "connection_lost",
    "http.RemoteDisconnected": "connection_lost",
    "http.IncompleteRead": "connection_lost",
    "requests.JSONDecodeError": "malformed",
    "json.JSONDecodeError": "malformed",
    "counterfoil.ReplyTooLarge": "reply_too_large",
}


def classify_exception(exc: BaseException) -> NotSent | Uncertain:
    """What an exception out of one call proves; evidence holds class names only. Needs the exception's traceback."""
    nodes = list(_nodes(exc))
    names = [_name(node) for node in nodes]
    code = _not_sent_code(nodes, names)
    if code is not None:
        return NotSent(code)
    uncertain = next((_UNCERTAIN_CODES[name] for name in names if name in _UNCERTAIN_CODES), "exception")
    return Uncertain(uncertain, evidence=" <- ".join(type(node).__name__ for node in nodes)[:EVIDENCE_CHARS_MAX])


def classify_status(status: int, *, retry_after_s: float | None = None) -> Rejected | Uncertain:
    """What an HTTP status other than 2xx proves about the request it answers."""
    if status == 429:
        return Rejected("rate_limited", retryable=True, retry_after_s=retry_after_s)
    if status in REFUSALS:
        return Rejected(REFUSALS[status])
    return Uncertain(f"http_{status}", evidence=f"HTTP {status}")


def retry_after_s(header_value: str | None, *, now: datetime, cap_s: float) -> float | None:
    """Seconds to wait by a Retry-After header (seconds or an HTTP date), within 0 and `cap_s`; None = it says nothing."""
    text = (header_value or "").strip()
    if not text:
        return None
    if _SECONDS.fullmatch(text):  # the standard has whole seconds; some providers send parts of one
        return min(float(text), cap_s)
    try:
        until = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    if until.tzinfo is None:
        until = until.replace(tzinfo=UTC)
    return min(max((until - now).total_seconds(), 0.0), cap_s)


def retry_after_of(headers: Mapping[str, str], *, cap_s: float) -> float | None:
    """`retry_after_s` by a reply's own headers: its Date is "now", so no clock of ours takes part."""
    lowered = {str(name).lower(): str(value) for name, value in headers.items()}
    return retry_after_s(lowered.get("retry-after"), now=answered_at(lowered) or datetime.now(UTC), cap_s=cap_s)


def answered_at(headers: Mapping[str, str]) -> datetime | None:
    """When the reply was made, by the provider's own clock: its Date, to the second. None where it says none."""
    said = next((str(value) for name, value in headers.items() if str(name).lower() == "date"), None)
    try:
        at = parsedate_to_datetime(said) if said is not None else None
    except (ValueError, OverflowError):
        return None
    return at.replace(tzinfo=UTC) if at is not None and at.tzinfo is None else at


def _not_sent_code(nodes: list[BaseException], names: list[str]) -> str | None:
    """The code of the connect-phase fault that explains the whole chain, None where anything else took part."""
    if _sent_before(nodes):
        return None
    tls = False
    for node, name in zip(nodes, names, strict=True):
        if name in _TLS_FAULTS:
            if "urllib3.MaxRetryError" not in names or not _out_of_handshake(node):
                return None
            tls = True
        elif name not in _WRAPPERS and name not in _CONNECT_FAULTS and name not in _URL_FAULTS:
            return None
    for name in names:
        if name in _URL_FAULTS:
            return "invalid_url"
    connect = next((code for fault, code in _CONNECT_FAULTS.items() if fault in names), None)
    if connect is not None and "requests.ProxyError" in names:
        return "proxy_refused"
    return connect or ("tls_handshake" if tls else None)


def _nodes(exc: BaseException) -> Iterator[BaseException]:
    """`exc` and everything it was made of, outermost first: reason, cause, context and arguments."""
    seen: set[int] = set()
    queue: list[object] = [exc]
    while queue and len(seen) < NODES_MAX:
        node = queue.pop(0)
        if not isinstance(node, BaseException) or id(node) in seen:
            continue
        seen.add(id(node))
        yield node
        queue += [getattr(node, "reason", None), node.__cause__, node.__context__, *node.args]


def _name(node: BaseException) -> str:
    return f"{type(node).__module__.partition('.')[0]}.{type(node).__name__}"


def _out_of_handshake(node: BaseException) -> bool:
    """The handshake never completed, so no byte of the request was written."""
    frames = list(_frames(node.__traceback__))
    return bool(frames) and frames[-1][1] == "do_handshake"


def _sent_before(nodes: list[BaseException]) -> bool:
    """The client followed a redirect, or tried again by itself: an earlier request of this call may have left."""
    for node in nodes:
        frames = list(_frames(node.__traceback__))
        if any(name == "resolve_redirects" for _, name in frames):
            return True
        if sum(file.endswith("connectionpool.py") and name == "urlopen" for file, name in frames) > 1:
            return True
    return False


def _frames(traceback: TracebackType | None) -> Iterator[tuple[str, str]]:
    """(file, function) of each frame, outermost first."""
    for _ in range(FRAMES_MAX):
        if traceback is None:
            return
        code = traceback.tb_frame.f_code
        yield code.co_filename, code.co_name
        traceback = traceback.tb_next
