"""Stripe's and Jira's real clients against random lies, kills and unwinds; the oracle is the sandbox's own store."""

from __future__ import annotations

import os
import random
from collections import Counter

from counterfoil.testing import World

EPISODES = -(-int(os.environ.get("CF_SIMULATION_STEPS", "1200")) // 120)
SEED = int(os.environ.get("CF_SIMULATION_SEED", "1"))
WRITES = ["payment_intents.create", "refunds.create", "issue.create", "issue.transition", "issue.comment",
          "issue.comment.delete"]  # fmt: skip
LIES = ["504_before_commit", "504_after_commit", "504_then_commit_after", "html_502", "302_login", "rst_mid_request",
        "rst_before_commit", "rst_after_commit", "fin_after_commit", "truncate_body", "empty_2xx", "204", "html_2xx",
        "bad_json_2xx", "object_2xx", "500_unstored", "500_stored", "409_in_use", "429_bare", "429_retry_after",
        "503_retry_after"]  # fmt: skip
POINTS = ["before_claim", "after_claim", "before_settle", "after_settle"]
KIND = {"stripe_charge": "charge", "stripe_refund": "refund", "jira_create": "ticket", "jira_close": "transition",
        "jira_comment": "comment", "jira_delete_comment": "comment_deletion"}  # fmt: skip
NEGATIVE = {"permanent_failure", "not_executed", "cancelled", "stale"}


def test_no_lie_of_a_provider_doubles_or_hides_an_effect(world: World, enqueue, sql) -> None:
    """Whatever gateways answer and whenever workers die: each action has the effect that its row tells of, and no other."""
    enqueue("jira_create", {"project": "SUP", "summary": "Commented on", "order_id": "first"}, "s0", "r0")
    world.settle()
    for seed in range(SEED, SEED + EPISODES):
        rng = random.Random(seed)
        story: list[str] = []
        try:
            _play(world, enqueue, sql, rng, seed, story)
            _check(world, sql)
        except BaseException as error:
            raise AssertionError(f"CF_SIMULATION_SEED={seed} CF_SIMULATION_STEPS=1 {story}") from error


def _play(world, enqueue, sql, rng, seed, story) -> None:
    world.sandbox.clear_faults()
    run = f"r{seed}"
    for number in range(rng.randint(1, 3)):
        order = f"{seed}-{number}"
        charge = {"customer": f"cus_{rng.randrange(2)}", "amount_minor": 500, "currency": "usd", "order_id": order}
        ticket = {"project": "SUP", "summary": f"Order {order}", "order_id": order}
        comment = {"issue": "SUP-1", "body": f"Order {order}"}
        tool, given = rng.choice([("stripe_charge", charge), ("jira_create", ticket), ("jira_comment", comment)])
        enqueue(tool, given, f"s{number}", run)
    for _ in range(rng.randint(1, 4)):
        lie, operation = rng.choice(LIES), rng.choice(WRITES)
        more = {"delay_s": rng.uniform(0, 1.9)} if lie == "504_then_commit_after" else {}
        story.append(f"{lie} {operation} {more}")
        world.sandbox.fault(lie, operation=operation, times=rng.randint(1, 2), **more)
    if rng.random() < 0.4:
        world.sandbox.fault("lookup_429", times=rng.randint(1, 3))
    if rng.random() < 0.4:
        world.sandbox.fault("search_500", times=rng.randint(1, 3))
    point = rng.choice(POINTS)
    story.append(point)
    with world.crash_after(point, times=rng.randint(0, 2)):
        for _ in range(rng.randrange(4)):
            world.work()
            world.advance(rng.uniform(0, 2))
            world.reconcile()
        if rng.random() < 0.6:
            story.append("unwind")
            sql("UPDATE counterfoil.run SET state = 'unwinding' WHERE run = %s", run)
        world.settle()
    world.advance(10)


def _check(world, sql) -> None:
    effects = Counter((effect.kind, effect.key) for effect in world.sandbox.effects())
    rows = sql("SELECT a.tool, a.state, a.key, a.action_id, p.receipt FROM counterfoil.action AS a"
               " LEFT JOIN counterfoil.action AS p ON p.action_id = a.parent_action_id")  # fmt: skip
    about = Counter((effect.kind, effect.object_id) for effect in world.sandbox.effects())
    for tool, state, key, action_id, of_receipt in rows:
        keyless = tool in ("jira_close", "jira_delete_comment")
        count = about[KIND[tool], of_receipt] if keyless else effects[KIND[tool], key]
        assert count <= 1, f"{count} effects of {tool} {state} {action_id}"
        assert state not in ("succeeded", "compensated") or count == 1, f"no effect of {tool} {state} {action_id}"
        assert state not in NEGATIVE or count == 0, f"an effect of {tool} {state} {action_id}"
        assert state in NEGATIVE | {"succeeded", "compensated", "operator_review"}, f"{tool} {state} {action_id}"
    runs = sql("SELECT run, state FROM counterfoil.run WHERE state NOT IN ('open', 'unwound', 'unwind_blocked')")
    assert not runs
