"""Decides what happens to every request to a provider: fault, wait, idempotency layer, handler, answer, in that order.

Faults are applied here, once for all providers. The handler and its commit do not depend on the connection: a client that
gives up does not stop the effect.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl

from aiohttp import web

from counterfoil.sandbox.attempts import Attempt, Attempts
from counterfoil.sandbox.damage import hurt
from counterfoil.sandbox.faults import ERROR, HTML, Commit, Damage, Rule, Rules
from counterfoil.sandbox.store import Store
from counterfoil.sandbox.wire import Provider, Refused, Reply, Request, Route, nested, parse_body

HttpHandler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Gateway:
    """The one way into the providers."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.rules = Rules()
        self.attempts = Attempts()
        self._running: set[asyncio.Task[Reply]] = set()

    def handler(self, provider: Provider, route: Route) -> HttpHandler:
        """An HTTP handler for one route of one provider."""

        async def handle(http: web.Request) -> web.StreamResponse:
            return await self._serve(http, provider, route)

        return handle

    async def _serve(self, http: web.Request, provider: Provider, route: Route) -> web.StreamResponse:
        if route.choose is not None:
            route = route.chosen(await http.read())
        rule = self.rules.choose(provider.name, route, http.method, http.path)
        attempt = self.attempts.arrived(
            arrived=self.store.now(),
            provider=provider.name,
            operation=route.operation,
            method=http.method,
            path=http.path,
            query=http.query_string,
            headers=http.headers,
            fault=rule.name if rule else None,
        )
        damage = rule.fault.damage if rule else Damage.NONE
        reply = Reply(200, b"")
        if damage is not Damage.RST_UNREAD:
            raw = await http.read()
            attempt.body = raw.decode(errors="replace")
            # A task of its own, held here: the client's going away must not undo a charge that takes long.
            task = asyncio.create_task(self._answer(http, raw, provider, route, rule, attempt))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
            reply = await asyncio.shield(task)
        if rule is not None and damage is not Damage.NONE:
            body = reply.encoded()
            await hurt(http, damage, status=reply.status, body=body, delay_s=rule.wait_s, clock=self.store.clock)
            return web.Response()  # cannot be sent any more; the HTTP library asks for one
        attempt.status = reply.status
        return _response(reply)

    async def _answer(
        self, http: web.Request, raw: bytes, provider: Provider, route: Route, rule: Rule | None, attempt: Attempt
    ) -> Reply:
        try:
            request = _read(http, raw, provider, route)
        except ValueError as problem:
            return Reply(400, provider.error(400, "invalid_request", str(problem)))
        delivery = _Delivery(self.store, provider, route, request, attempt)
        latency_s = self.store.config.latency_s.get(provider.name, 0.0)
        if rule is None:
            return await delivery.execute(latency_s)
        if rule.fault.wait_before:
            latency_s += rule.wait_s
        real: Reply | None = None
        match rule.commits:
            case Commit.YES:
                real = await delivery.execute(latency_s)
            case Commit.TWICE:
                real = await delivery.execute(latency_s)
                await delivery.execute(0.0)
            case Commit.LATER:
                self.store.clock.call_at(self.store.now() + rule.wait_s, delivery.land)
            case Commit.STORED_ANSWER:
                return delivery.store_answer(_altered(None, rule, provider, http.path_qs, self.store.now()))
            case Commit.NO:
                await self.store.clock.sleep(latency_s)
        if rule.fault.wait_after:
            await self.store.clock.sleep(rule.wait_s)
        return _altered(real, rule, provider, http.path_qs, self.store.now())


class _Delivery:
    """One arrival of one request at the provider's own servers, behind the gateway."""

    def __init__(self, store: Store, provider: Provider, route: Route, request: Request, attempt: Attempt) -> None:
        self.store, self.provider, self.route, self.request, self.attempt = store, provider, route, request, attempt
        self.generation = store.generation

    async def execute(self, wait_s: float) -> Reply:
        """Admission, idempotency layer, `wait_s` with the key in flight, then the handler."""
        early = self._begin()
        if early is not None:
            return early
        await self.store.clock.sleep(wait_s)
        return self._run()

    def land(self) -> None:
        """The request arrives now, after its client was told something else; nobody reads the answer."""
        if self._begin() is None:
            self._run()

    def store_answer(self, answer: Reply) -> Reply:
        """The provider began, failed, and remembers that failure as the key's result."""
        early = self._begin()
        if early is None and self.provider.idempotency is not None:
            with self.store.transaction():
                self.provider.idempotency.finish(self.store, self.request, answer, executed=True)
        return self._decorated(early or answer)

    def _begin(self) -> Reply | None:
        if self.store.generation != self.generation:
            return _of_before_the_reset()
        refused = self.provider.admit(self.request)
        if refused is None and self.provider.idempotency is not None:
            with self.store.transaction():
                refused = self.provider.idempotency.begin(self.store, self.request)
        return None if refused is None else self._decorated(refused)

    def _run(self) -> Reply:
        if self.store.generation != self.generation:
            return _of_before_the_reset()
        layer = self.provider.idempotency
        try:
            with self.store.transaction():
                reply, executed = self._handle()
                reply = self._decorated(reply)
                if layer is not None:
                    layer.finish(self.store, self.request, reply, executed=executed)
        except Exception:
            # A bug of the sandbox: the key must not stay in flight for ever. The HTTP server logs the trace and sends 500.
            if layer is not None:
                layer.finish(self.store, self.request, Reply(500), executed=False)
            raise
        return reply

    def _handle(self) -> tuple[Reply, bool]:
        self.attempt.executed += 1
        try:
            return self.route.handler(self.store, self.request), True
        except Refused as refusal:
            return refusal.reply, refusal.executed

    def _decorated(self, reply: Reply) -> Reply:
        return Reply(reply.status, reply.body, {**self.provider.decorate(reply), **reply.headers})


def _read(http: web.Request, raw: bytes, provider: Provider, route: Route) -> Request:
    headers = {name.lower(): value for name, value in http.headers.items()}
    return Request(
        operation=route.operation,
        method=http.method,
        path=http.path.removeprefix(f"/{provider.name}"),
        match=dict(http.match_info),
        query=nested(parse_qsl(http.query_string, keep_blank_values=True))
        if provider.encoding == "form"
        else _repeated(http.query_string),
        body=parse_body(_encoding(provider, headers), raw),
        headers=headers,
        account=hashlib.sha256(headers.get("authorization", "").encode()).hexdigest()[:16],
    )


def _encoding(provider: Provider, headers: Mapping[str, str]) -> str:
    if provider.encoding != "by_type":
        return provider.encoding
    return "json" if headers.get("content-type", "").startswith("application/json") else "form"


def _repeated(query: str) -> dict[str, Any]:
    """A query whose names may repeat: every value is a list."""
    values: dict[str, Any] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        values.setdefault(name, []).append(value)
    return values


def _altered(real: Reply | None, rule: Rule, provider: Provider, path_qs: str, now: float) -> Reply:
    """The answer that the client gets in place of the real one."""
    fault = rule.fault
    status = rule.status or fault.status or (real.status if real else 200)
    headers = rule.answer_headers(now)
    if fault.status == 302:
        headers.setdefault("Location", f"/_sandbox/login?next={path_qs}")
    if fault.status == 307:
        headers.setdefault("Location", path_qs)
    body = fault.body if rule.body is None else rule.body
    if body is None:
        return Reply(status, real.body if real else b"", {**(real.headers if real else {}), **headers})
    if body == HTML:
        phrase = HTTPStatus(status).phrase
        page = f"<html><head><title>{status} {phrase}</title></head><body><h1>{phrase}</h1></body></html>"
        return Reply(status, page.encode(), {"Content-Type": "text/html; charset=utf-8", **headers})
    if body == ERROR:
        problem = Reply(status, provider.error(status, fault.code, f"The sandbox answers {rule.name}."), headers)
        return Reply(status, problem.body, {**provider.decorate(problem), **headers})
    return Reply(status, body.encode() if isinstance(body, str) else body, headers)


def _of_before_the_reset() -> Reply:
    return Reply(503, b"the sandbox was reset while this request was under way")


def _response(reply: Reply) -> web.Response:
    headers = dict(reply.headers)
    headers.setdefault("Content-Type", "application/json;charset=UTF-8")
    return web.Response(status=reply.status, body=reply.encoded(), headers=headers)
