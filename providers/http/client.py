"""Decides how an HTTP API is called and asked: one request an attempt, its look-up one GET a call. Workers only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http.cookiejar import DefaultCookiePolicy

import requests

from counterfoil.ledger.errors import ConfigError
from counterfoil.providers.contract import OTHER_KEY, Call
from counterfoil.providers.http.config import HttpConfig
from counterfoil.providers.http.outcomes import answered, found
from counterfoil.providers.http.wire import Unfillable, body_of, headers_of, path_of
from counterfoil.providers.oneshot import OneShot
from counterfoil.providers.outcomes import (
    Finding,
    Found,
    NotSent,
    Outcome,
    Reading,
    Rejected,
    Succeeded,
    Unknown,
    Unreadable,
)
from counterfoil.providers.transport import classify_exception, retry_after_of
from counterfoil.settings_http import HttpTool


class HttpAdapter:
    """Calls one HTTP API. Used by one thread at a time, in the process that made it."""

    def __init__(self, config: HttpConfig) -> None:
        self._config = config
        self._base = config.base_url.rstrip("/")
        self._transport = OneShot()
        self._session = requests.Session()
        self._session.headers.clear()
        self._session.headers["User-Agent"] = "counterfoil"
        self._session.cookies.set_policy(
            DefaultCookiePolicy(allowed_domains=())
        )  # no call carries what another was given
        self._transport.mount_on(self._session)

    def send(self, call: Call, *, timeout_s: float) -> Outcome:
        """Makes the one request of this attempt."""
        tool = self._config.tools.get(call.tool)
        if tool is None:
            return NotSent("unknown_tool")
        with self._transport.attempt(timeout_s=timeout_s, writes_max=1) as transport:
            try:
                return self._send(tool, call)
            except Unfillable as exc:
                return NotSent(exc.code) if exc.code == "of_unresolved" else Rejected(exc.code)
            except ConfigError:
                return NotSent("no_secret")
            except Exception as exc:  # noqa: BLE001 - judged by the error table, where everything unknown is Uncertain
                if not transport.wrote:
                    return NotSent(f"before_write_{type(exc).__name__}")
                return classify_exception(exc)

    def lookup(self, calls: Sequence[Call], *, timeout_s: float) -> Mapping[str, Finding]:
        """One GET a call, all within `timeout_s`; what fails is Unknown."""
        with self._transport.attempt(timeout_s=timeout_s, writes_max=0, request_s=self._config.timeout_s):
            return {call.action_id: self._find(call) for call in calls}

    def fetch(self, call: Call, receipt: str, *, timeout_s: float) -> Finding | None:
        """Looks up what happened under the call's key: Found only where it is the object of that receipt."""
        tool = self._config.tools.get(call.tool)
        if tool is None or tool.lookup is None:
            return None
        with self._transport.attempt(timeout_s=timeout_s, writes_max=0, request_s=self._config.timeout_s):
            finding = self._find(call, named=receipt)
        match finding:
            case Found(Succeeded(known)) if known != receipt:
                return Unknown(OTHER_KEY)
            case _:
                return finding

    def version(self, call: Call, *, timeout_s: float) -> Reading:
        """None: these tools depend on no version."""
        del call, timeout_s
        return Unreadable("no_version")

    def _send(self, tool: HttpTool, call: Call) -> Outcome:
        path, body, headers = (
            path_of(tool.path, call, receipt=_receipt(call)),
            body_of(tool, call),
            headers_of(tool, call, self._config.secrets),
        )
        if body is not None:
            headers["Content-Type"] = "application/json"
        reply = self._request(tool.method, path, headers, body)
        wait_s = retry_after_of(reply.headers, cap_s=self._config.retry_after_cap_s)
        return answered(tool, call, reply.status_code, reply.content, wait_s=wait_s)

    def _find(self, call: Call, *, named: str | None = None) -> Finding:
        tool = self._config.tools.get(call.tool)
        if tool is None or tool.lookup is None:
            return Unknown("no_lookup")
        try:
            path = path_of(tool.lookup.path, call, receipt=_receipt(call))
            reply = self._request("GET", path, headers_of(tool, None, self._config.secrets), None)
            return found(tool, tool.lookup, call, reply.status_code, reply.content, named=named)
        except Unfillable as exc:
            return Unknown(exc.code)
        except Exception as exc:  # noqa: BLE001 - a failed look-up proves nothing, whatever failed in it
            return Unknown(type(exc).__name__)

    def _request(self, method: str, path: str, headers: dict[str, str], body: bytes | None) -> requests.Response:
        return self._session.request(method, self._base + path, headers=headers, data=body, allow_redirects=False)


def _receipt(call: Call) -> str | None:
    return call.of.receipt if call.of is not None else None
