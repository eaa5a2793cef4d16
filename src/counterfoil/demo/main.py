"""Decides what the demo plays: the incident that doubles tickets and charges, under a naive harness and under Counterfoil.

A ticket whose 504 hides a success; a model that tries again in other words; a process that dies between Stripe's answer
and its own note of it; an agent that comes back with half a transcript; a warehouse that says no; and the rollback. The
model is the same script in both halves. The counts at the end are the sandbox's own: what a customer and a support team
would see.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from counterfoil.demo.ours import TENANT
from counterfoil.demo.pause import PAUSE_MAX_S, NobodyCame
from counterfoil.demo.scene import CounterfoilScene, NaiveScene, Scene, Stuck
from counterfoil.demo.story import Story, money
from counterfoil.sandbox.client import Sandbox
from counterfoil.stack.project import SHIPPED_TOOLS
from counterfoil.stack.up import INDEX_LAG_S, Choices, LocalStack

Half = Literal["naive", "counterfoil"]

SEEN_OUTSIDE = {"tickets_created": 1, "tickets_open": 0, "charges": 1, "refunds": 1, "customer_messages": 0}
EXPECTED = {**SEEN_OUTSIDE, "workers_killed": 1}
"""Ours, and nothing less: the demo's exit code says whether it was so."""

_TITLES: dict[Half, tuple[str, str]] = {
    "naive": ("1 of 2 · NAIVE HARNESS", "cache by arguments' hash, rollback by transcript"),
    "counterfoil": ("2 of 2 · COUNTERFOIL", "the same model, the same gateway, the same kill"),
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a half has come to."""

    seen: dict[str, int]
    """The sandbox's counts."""
    kept_minor: int
    """What is taken from the card and not given back."""
    killed: int


def main(
    *,
    as_json: bool = False,
    tools: Sequence[str] = (),
    lies: bool = True,
    pause: bool = False,
    only: Half | None = None,
) -> int:
    """Plays the incident on a stack of its own, which it removes; 0 only if the sandbox counts ours as it should.

    `tools` are further modules that the workers load; without `lies` the gateway tells the truth; with `pause` a person
    does the killing; `only` plays one half. Needs no keys and no network beyond loopback.
    """
    story = Story(as_json=as_json, lies=lies)
    project = Path(tempfile.mkdtemp(prefix="counterfoil-demo-"))
    project.chmod(0o755)
    mark = project / "worker-at-its-point"
    choices = Choices(
        tools=[*SHIPPED_TOOLS, "counterfoil.demo.tools", *tools],
        tenants=[TENANT],
        worker_env={"COUNTERFOIL_CRASH_AT": "before_settle:stripe_charge", "COUNTERFOIL_CRASH_MARK": str(mark)}
        | (_HELD if pause else {}),
    )
    story.act("Setting up Postgres, Valkey, a sandbox as the outside world, and the fleet")
    stack = LocalStack(project, choices, say=story.note)
    outcomes: dict[Half, Outcome] = {}
    try:
        with stack:
            story.legend()
            began = time.monotonic()
            for half in (only,) if only else ("naive", "counterfoil"):
                scene = _scene(half, stack, story, project, mark, pause=pause)
                outcomes[half] = _played(half, scene, story, Sandbox(stack.sandbox_url), lies=lies)
            seconds = time.monotonic() - began
    finally:
        shutil.rmtree(stack.home.path, ignore_errors=True)
        shutil.rmtree(project, ignore_errors=True)
    ours = outcomes.get("counterfoil")
    is_good = ours is None or {**ours.seen, "workers_killed": ours.killed} == EXPECTED
    if as_json:
        print(json.dumps({**_as_json(outcomes), "seconds": round(seconds, 1)}))
    else:
        _show(story, outcomes, seconds, is_good=is_good)
    return 0 if is_good else 1


_HELD = {
    "COUNTERFOIL_CRASH_HOLD_S": str(PAUSE_MAX_S),
    "COUNTERFOIL_WORKERS__SOFT_LIMIT_S": str(PAUSE_MAX_S + 60),  # Celery's own limits are not to kill it before
    "COUNTERFOIL_WORKERS__HARD_LIMIT_S": str(PAUSE_MAX_S + 120),
}


def _scene(half: Half, stack: LocalStack, story: Story, place: Path, mark: Path, *, pause: bool) -> Scene:
    if half == "naive":
        return NaiveScene(stack, story, place=place, pause=pause)
    return CounterfoilScene(stack, story, place=place, pause=pause, mark=mark)


def _played(half: Half, scene: Scene, story: Story, sandbox: Sandbox, *, lies: bool) -> Outcome:
    """One half in an empty world, and what that counts afterwards."""
    story.part(*_TITLES[half])
    sandbox.reset()
    sandbox.config(search_lag_s={"stripe": INDEX_LAG_S, "jira": INDEX_LAG_S})
    if lies:
        sandbox.jira.fault("504_after_commit", on="issue.create")
    try:
        scene.play()
        scene.watch(up_to_now=True)
    except (Stuck, NobodyCame) as stuck:
        story.trouble(f"the story cannot go on: {stuck}")
    finally:
        scene.close()
    counts, effects = sandbox.counts(), sandbox.effects()
    taken, given_back = (sum(e.amount or 0 for e in effects if e.kind == kind) for kind in ("charge", "refund"))
    return Outcome({name: counts[name] for name in SEEN_OUTSIDE}, taken - given_back, scene.killed)


def _as_json(outcomes: dict[Half, Outcome]) -> dict[str, dict[str, int]]:
    """Ours first; of the naive half only what the outside world has seen."""
    told = {half: outcome.seen for half, outcome in outcomes.items()}
    if "counterfoil" in outcomes:
        told["counterfoil"] = {**told["counterfoil"], "workers_killed": outcomes["counterfoil"].killed}
    return {half: told[half] for half in sorted(told)}


def _show(story: Story, outcomes: dict[Half, Outcome], seconds: float, *, is_good: bool) -> None:
    rows: list[tuple[str, dict[str, object], object]] = [
        (title, {_NAMES[half]: outcome.seen[name] for half, outcome in outcomes.items()}, SEEN_OUTSIDE[name])
        for name, title in _ROWS.items()
    ]
    kept: dict[str, object] = {_NAMES[half]: money(outcome.kept_minor) for half, outcome in outcomes.items()}
    killed: dict[str, object] = {_NAMES[half]: outcome.killed for half, outcome in outcomes.items()}
    rows += [("still taken from the card", kept, money(0)), ("processes killed on the way", killed, 1)]
    story.table(rows, [_NAMES[half] for half in outcomes])
    if "counterfoil" in outcomes:
        verdict = "as it should be" if is_good else "NOT as it should be"
        story.end(f"Counterfoil's column is {verdict}. All of it took {seconds:.0f} s.", is_good=is_good, why=_WHY)


_NAMES: dict[Half, str] = {"naive": "naive", "counterfoil": "Counterfoil"}
_ROWS = {
    "tickets_created": "tickets created",
    "tickets_open": "tickets left open",
    "charges": "charges on the card",
    "refunds": "refunds",
    "customer_messages": "messages to the customer",
}
_WHY = (
    "The same model, the same gateway, the same kill. The naive harness believed its",
    "transcript. Counterfoil had its intents written down, and asked Jira and Stripe.",
)
