"""Decides what the demo plays: the incident that doubles tickets and charges elsewhere, through Counterfoil.

A ticket whose 504 hides a success; a model that tries again in other words; a worker that dies between Stripe's answer and
its own note of it; an agent that comes back with half a transcript; a warehouse that says no; and the unwind. The counts at
the end are the sandbox's own: what a customer and a support team would see.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from counterfoil.client import Counterfoil
from counterfoil.demo.scene import Scene
from counterfoil.demo.story import Story
from counterfoil.outbox.results import Result, Status
from counterfoil.sandbox.client import Sandbox
from counterfoil.stack.project import SHIPPED_TOOLS
from counterfoil.stack.up import Choices, LocalStack

EXPECTED = {
    "tickets_created": 1,
    "tickets_open": 0,
    "charges": 1,
    "refunds": 1,
    "customer_messages": 0,
    "workers_killed": 1,
}

TENANT, RUN, ACTOR = "acme", "ticket-1182", "support-bot"
ORDER = "1182"


class Stuck(Exception):
    """An act did not end as it must for the next one."""


def main(*, as_json: bool = False, tools: Sequence[str] = ()) -> int:
    """Plays the incident on a stack of its own, which it removes; 0 only if the sandbox counts what it should.

    `tools` are further modules that the workers load. Needs no keys and no network beyond loopback.
    """
    story = Story(as_json=as_json)
    project = Path(tempfile.mkdtemp(prefix="counterfoil-demo-"))
    project.chmod(0o755)
    mark = project / "worker-at-its-point"
    choices = Choices(
        tools=[*SHIPPED_TOOLS, "counterfoil.demo.tools", *tools],
        tenants=[TENANT],
        worker_env={"COUNTERFOIL_CRASH_AT": "before_settle:stripe_charge", "COUNTERFOIL_CRASH_MARK": str(mark)},
    )
    story.head("Setting up: Postgres, Valkey, a sandbox for the outside world, relay, worker, beat")
    stack = LocalStack(project, choices, say=story.note)
    try:
        with stack:
            began = time.monotonic()
            scene = Scene(stack, story, tenant=TENANT, run=RUN, mark=mark)
            try:
                _play(stack, scene, story)
            except Stuck as stuck:
                story.trouble(f"the story cannot go on: {stuck}")
            finally:
                scene.close()
            seconds = time.monotonic() - began
            counted = _count(Sandbox(stack.sandbox_url), scene)
    finally:
        shutil.rmtree(stack.home.path, ignore_errors=True)
        shutil.rmtree(project, ignore_errors=True)
    if as_json:
        print(json.dumps({"counterfoil": counted, "seconds": round(seconds, 1)}))
    else:
        story.counts(counted, EXPECTED, seconds)
    return 0 if counted == EXPECTED else 1


def _play(stack: LocalStack, scene: Scene, story: Story) -> None:
    """The incident, act by act."""
    sandbox = Sandbox(stack.sandbox_url)
    cf = Counterfoil(stack.database_url("agent"), settings=stack.settings_for("agent"))
    run = cf.run(RUN, tenant=TENANT, actor=ACTOR)

    def call(tool: str, arguments: dict[str, object], wait_s: float = 20) -> Result | None:
        story.model(tool, arguments)
        result = scene.play(lambda: run.call(tool, arguments, wait_s=wait_s))
        story.answer(result)
        return result

    def settle(tool: str, arguments: dict[str, object]) -> None:
        result = call(tool, arguments)
        if result is None or result.status not in (Status.SUCCEEDED, Status.FAILED):
            raise Stuck(f"{tool} did not end")

    story.head("1 · A ticket, and a gateway that answers 504 although Jira has made it")
    call("search_orders", {"order_id": ORDER})
    sandbox.jira.fault("504_after_commit", on="issue.create")
    ticket: dict[str, object] = {"project": "SUP", "order_id": ORDER, "summary": "Refund for order 1182"}
    call("jira_create", ticket, wait_s=1)
    story.head("2 · The model tries again, in other words: the same intent, so Jira is asked, and nothing is sent")
    settle("jira_create", {**ticket, "summary": "Order #1182 refund"})
    story.head("3 · The re-shipping fee: Stripe takes the money, and the worker dies before it can write that down")
    fee: dict[str, object] = {"customer": "cus_1182", "amount_minor": 500, "currency": "usd", "order_id": ORDER}
    call("stripe_charge", fee, wait_s=3)
    story.head("4 · The agent dies too; its transcript ends before the charge, so it decides to charge again")
    run = cf.run(RUN, tenant=TENANT, actor=ACTOR, seen=1)
    settle("stripe_charge", {**fee, "description": "re-shipping fee"})
    story.head("5 · The warehouse refuses to ship again")
    settle("warehouse_reship", {"order_id": ORDER})
    story.head("6 · So the run is taken back: from the ledger, never from the transcript")
    story.answer(scene.play(lambda: run.unwind("the warehouse refused the reship").result(wait_s=30)))
    scene.watch()
    cf.close()


def _count(sandbox: Sandbox, scene: Scene) -> dict[str, int]:
    counts = sandbox.counts()
    return {name: scene.workers_killed if name == "workers_killed" else counts[name] for name in EXPECTED}
