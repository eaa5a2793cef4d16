"""The pytest plugin as an application's tests use it: in a project of its own, by a pytest of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

from counterfoil.workers.points import Point

PAGE = (Path(__file__).parents[2] / "docs" / "testing.md").read_text(encoding="utf-8")
PLUGIN, AGENT = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
PROJECT = {
    "counterfoil.toml": """
tools = ["counterfoil.providers.stripe.tools", "shop"]

[notify]
command = ["touch", "a-person-was-told"]
""",
    "shop.py": """
import os

import requests

from counterfoil import tool


def find(key: str) -> list:
    return ask("GET", params={"key": key})["shipments"]


@tool(cls="reversible", effect="shipment", target="order", audience=[], lookup=find, native_key_ttl_s=3600)
def ship(order: str, *, key: str) -> dict:
    return ask("POST", json={"order": order}, headers={"Idempotency-Key": key})


@tool(
    cls="irreversible",
    effect="letter",
    target="order",
    once_per="order",
    audience=["customer"],
    approval="always",
    uncertain="operator_review",
)
def write(order: str) -> dict:
    raise RuntimeError("nobody has approved it")


def ask(method: str, **more) -> dict:
    url = os.environ["COUNTERFOIL_SANDBOX_URL"] + "/warehouse/shipments"
    reply = requests.request(method, url, timeout=3, allow_redirects=False, **more)
    reply.raise_for_status()
    return reply.json()
""",
    "test_own.py": """
CHARGE = {"customer": "cus_1", "amount_minor": 500, "currency": "usd", "order_id": "1182"}


def agent(counterfoil, ticket):
    with counterfoil.run(ticket, tenant="acme", actor="bot") as run:
        return run.call("stripe_charge", CHARGE), run.call("ship", {"order": "1182"})


def test_a_tool_of_one_s_own(counterfoil, sandbox):
    sandbox.provider("warehouse").fault("504_after_commit", on="shipments.create")
    assert [done.status for done in agent(counterfoil, "ticket-1182")] == ["succeeded", "succeeded"]
    assert (sandbox.stripe.count("charges"), sandbox.count("shipments")) == (1, 1)


def test_the_next_one_sees_nothing_of_it(counterfoil, sandbox, clock):
    assert sandbox.stripe.count("charges") == 0
    before = sandbox.now()
    clock.advance(3600)
    assert sandbox.now() - before >= 3600
    sandbox.stripe.fault("500_unstored", on="payment_intents.create", times=None)
    with counterfoil.run("ticket-1182", tenant="acme", actor="bot") as run:
        assert run.call("stripe_charge", CHARGE, wait_s=0).status == "pending"
    counterfoil.settle()
    with counterfoil.run("ticket-1182", tenant="acme", actor="bot") as run:
        assert run.call("stripe_charge", CHARGE, wait_s=20).status != "succeeded"
    assert sandbox.stripe.count("charges") == 0
""",
    "test_handler.py": """
import psycopg


def handler(counterfoil, url, ends):
    with psycopg.connect(url) as conn:
        conn.execute("CREATE TABLE IF NOT EXISTS orders (id text)")
        conn.execute("INSERT INTO orders VALUES ('1182')")
        counterfoil.enqueue(conn, "ship", {"order": "1182"}, tenant="acme", run="order-1182", step="ship", actor="shop")
        getattr(conn, ends)()


def test_a_handler_s_own_connection(counterfoil, counterfoil_url, sandbox):
    for ends, shipments in (("rollback", 0), ("commit", 1), ("commit", 1)):
        handler(counterfoil, counterfoil_url, ends)
        counterfoil.settle()
        assert sandbox.count("shipments") == shipments
""",
    "test_person.py": """
def test_what_waits_for_a_person(counterfoil):
    with counterfoil.run("ticket-1182", tenant="acme", actor="bot") as run:
        assert run.call("write", {"order": "1182"}, wait_s=1).status == "awaiting_approval"
    counterfoil.settle()
""",
    "conftest.py": PLUGIN,
    "test_agent.py": AGENT,
    "test_idle.py": """
import sys


def test_nothing_is_loaded():
    heavy = {"psycopg", "sqlalchemy", "celery", "redis", "pydantic", "counterfoil.testing.world", "counterfoil.client"}
    assert not heavy & set(sys.modules)
""",
}


def run(folder: Path, *files: str) -> subprocess.CompletedProcess[str]:
    for name, text in PROJECT.items():
        (folder / name).write_text(text, encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "COUNTERFOIL"))}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", "--durations=5", *files]
    return subprocess.run(
        command,
        cwd=folder,
        env={**environment, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_an_agent_s_tests_run_the_fleet_without_a_wait(tmp_path: Path) -> None:
    """The page's tests, and a tool of one's own: one effect each; every test has an empty ledger and an empty world."""
    done = run(tmp_path, "test_agent.py", "test_own.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout


def test_a_handler_that_opens_its_own_connection(tmp_path: Path) -> None:
    """By the public address: its own table and the intent commit together or not at all."""
    done = run(tmp_path, "test_handler.py")
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_real_person_is_told_by_a_test(tmp_path: Path) -> None:
    """The project's command for notices is for people who have to act; what a test plays is no reason to."""
    done = run(tmp_path, "test_person.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (tmp_path / "a-person-was-told").exists()


def test_the_page_names_every_point() -> None:
    """Where a worker can be made to die."""
    [told] = re.findall(r"lets the worker die at ([^.]+)\.", PAGE)
    assert re.findall(r"`(\w+)`", told) == list(get_args(Point))


def test_whoever_asks_for_no_fixture_loads_nothing(tmp_path: Path) -> None:
    """The plugin costs a suite that does not use it no import and no process."""
    done = run(tmp_path, "test_idle.py")
    assert done.returncode == 0, done.stdout + done.stderr
