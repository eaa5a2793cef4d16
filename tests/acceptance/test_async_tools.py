"""`async def` tools: run by the worker, judged by the same evidence, looked up by an `async def` look-up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest

from counterfoil import Counterfoil, Of, Status, tool
from counterfoil.testing import World


@pytest.fixture
def shipping(world: World, use_tools: Any, client: Callable[..., Counterfoil]) -> Counterfoil:
    """An API's own client in its asynchronous form, against the sandbox's warehouse."""
    warehouse = world.sandbox.warehouse.url

    async def ask(method: str, path: str, key: str, **more: Any) -> Any:
        async with (
            aiohttp.ClientSession() as session,
            session.request(
                method, f"{warehouse}{path}", headers={"Idempotency-Key": key}, allow_redirects=False, **more
            ) as reply,
        ):
            reply.raise_for_status()
            return await reply.json()

    async def find_shipments(key: str) -> Any:
        return (await ask("GET", "/shipments", key, params={"key": key}))["shipments"]

    async def find_cancelled(of: Of) -> Any:
        return [each for each in await find_shipments(of.key) if each["status"] == "cancelled"]

    async def version(order_id: str) -> str:
        return "7"

    found: dict[str, Any] = {"cls": "compensatable", "effect": "shipment", "target": "order_id", "once_per": None,
                             "audience": ["warehouse"], "provider": "warehouse", "landing_max_s": 2.0}  # fmt: skip

    @tool(lookup=find_shipments, undo="cancel_shipment", resource_version=version, **found)
    async def create_shipment(order_id: str, slow: bool = False, *, key: str) -> Any:
        """Ship an order."""
        made = await ask("POST", "/shipments", key, json={"order": order_id})
        if slow:
            await asyncio.sleep(3600)
        return made

    @tool(lookup=find_cancelled, undo=None, **found)
    async def cancel_shipment(order_id: str, *, key: str, of: Of) -> Any:
        """Take a shipment back."""
        return await ask("POST", f"/shipments/{of.receipt}/cancel", key)

    @tool(cls="pure")
    async def search(order_id: str) -> Any:
        """In the caller's own loop."""
        return {"order": order_id, "loop": id(asyncio.get_running_loop())}

    use_tools(create_shipment, cancel_shipment, search)
    return client()


def test_done_and_taken_back(world: World, shipping: Counterfoil) -> None:
    """Send, version and undo are coroutines."""
    run = shipping.run("r1", tenant="acme", actor="bot")
    run.call("create_shipment", {"order_id": "1"}, wait_s=0)
    world.settle()
    assert run.call("create_shipment", {"order_id": "1"}, wait_s=0).status is Status.SUCCEEDED
    run.unwind("changed my mind")
    world.settle()
    assert (world.sandbox.count("shipments"), world.sandbox.count("shipments_cancelled")) == (1, 1)


@pytest.mark.parametrize("fault", ["504_after_commit", "rst_after_commit"])
def test_a_lost_answer_is_looked_up(world: World, shipping: Counterfoil, fault: str) -> None:
    """One effect: what an asynchronous client raises behind an answer that is no answer proves nothing."""
    world.sandbox.warehouse.fault(fault, on="shipments.create", times=1)
    run = shipping.run("r1", tenant="acme", actor="bot")
    run.call("create_shipment", {"order_id": "1"}, wait_s=0)
    world.reconciler.read_versions()
    world.work()
    assert run.call("create_shipment", {"order_id": "1"}, wait_s=0).status is Status.UNCERTAIN
    world.settle()
    assert run.call("create_shipment", {"order_id": "1"}, wait_s=0).status is Status.SUCCEEDED
    assert world.sandbox.count("shipments") == 1


def test_one_that_never_returns_is_unknown_and_found(world: World, shipping: Counterfoil) -> None:
    """It is cancelled after the request's time: uncertain, looked up, one effect, and the worker goes on."""
    run = shipping.run("r1", tenant="acme", actor="bot")
    run.call("create_shipment", {"order_id": "1", "slow": True}, wait_s=0)
    world.reconciler.read_versions()
    world.work()
    assert world.states() == {"create_shipment/1/do": "uncertain"}
    world.settle()
    assert world.states() == {"create_shipment/1/do": "succeeded"}
    assert world.sandbox.count("shipments") == 1


def test_a_pure_one_runs_in_its_caller_s_loop(shipping: Counterfoil) -> None:
    """`acall` awaits it where it is; `call` runs it on the process's own loop. Neither leaves a row."""

    async def main() -> tuple[Any, int]:
        async with shipping.run("r1", tenant="acme", actor="bot") as run:
            return (await run.acall("search", {"order_id": "1"})).value, id(asyncio.get_running_loop())

    value, loop = asyncio.run(main())
    assert value == {"order": "1", "loop": loop}
    run = shipping.run("r1", tenant="acme", actor="bot")
    told = run.call("search", {"order_id": "1"})
    assert (told.status, told.seen is not None) == (Status.SUCCEEDED, True)
    assert run.call("search", {"order": "1"}).status is Status.FAILED
    assert run.so_far() == []
