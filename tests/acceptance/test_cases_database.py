"""Handed cases of the database: connections that end in the middle of a COMMIT, and conflicts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from counterfoil import Counterfoil
from counterfoil.ledger.connection import CONFLICTS_MAX, RECONNECTS_MAX
from counterfoil.ledger.errors import LedgerUnavailable
from counterfoil.testing import World
from counterfoil.workers.points import no_points

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.acceptance.conftest import Proxy
    from tests.conftest import Database

CHARGE = {"customer": "cus_1", "amount_minor": 500, "currency": "usd", "order_id": "1182"}
TICKET = {"project": "SUP", "summary": "Refund for order 1182", "order_id": "1182"}

LOST = pytest.mark.parametrize("passes", [pytest.param(0, id="undone"), pytest.param(None, id="done-unheard")])
"""The statement did not arrive, or it committed and its answer was lost: the client sees the same."""
COMMIT = b"COMMIT\0"
CLAIM, SETTLE, REREAD = (
    b"change_reason = 'claimed'",
    b"change_reason = 'succeeded'",
    b"a.state = 'executing' AND a.fence",
)


@pytest.fixture
def proxy(database: Database, proxy_to: Callable[[str], Proxy]) -> Proxy:
    """Between the worker and its database."""
    return proxy_to(database.url("worker"))


@pytest.fixture
def worker(world: World, proxy: Proxy) -> Iterator[Any]:
    """A worker whose connection can be cut."""
    before = world.settings
    through = before.database.model_copy(update={"url": type(before.database.url)(proxy.url)})  # type: ignore[misc]
    world.settings = before.model_copy(update={"database": through})
    made = world.new_worker("w1", no_points)
    world.settings = before
    yield made
    made.ledger.close()


EVER = float("inf")


@pytest.mark.case("I3")
@LOST
def test_connection_lost_in_the_claim(
    world: World, enqueue: Any, proxy: Proxy, worker: Any, sql: Any, passes: int | None
) -> None:
    """Lost during the claim's COMMIT: the worker calls only if the row turns out to be its own; one request, one effect."""
    enqueue("jira_create", TICKET)
    proxy.cut(CLAIM, passes=passes)
    worker.run(world.due(), stop_at=EVER)
    assert proxy.cuts == 1
    owned = passes is None
    assert world.states() == {"jira_create/s1/do": "succeeded" if owned else "ready"}
    assert len(world.sandbox.requests("jira", "issue.create")) == owned
    world.settle()
    assert world.states() == {"jira_create/s1/do": "succeeded"}
    assert sql("SELECT count(*) FROM counterfoil.attempt") == [(1,)]
    assert len(world.sandbox.requests("jira", "issue.create")) == world.sandbox.count("tickets_created") == 1


@pytest.mark.case("I3")
def test_database_away_after_the_claim(world: World, enqueue: Any, proxy: Proxy, worker: Any) -> None:
    """The claim committed and the row cannot be read again: nothing is sent; the lease's end and evidence bring it on."""
    enqueue("jira_create", TICKET)
    proxy.cut(CLAIM, passes=None)
    proxy.cut(REREAD, passes=0, times=RECONNECTS_MAX)
    with pytest.raises(LedgerUnavailable):
        worker.run(world.due(), stop_at=EVER)
    assert world.states() == {"jira_create/s1/do": "executing"}
    assert world.sandbox.requests() == []
    world.settle()
    assert world.states() == {"jira_create/s1/do": "succeeded"}
    assert len(world.sandbox.requests("jira", "issue.create")) == world.sandbox.count("tickets_created") == 1


@pytest.mark.case("I3")
@LOST
def test_connection_lost_in_the_settle(
    world: World, enqueue: Any, proxy: Proxy, worker: Any, passed: Any, passes: int | None
) -> None:
    """Lost during the settle's COMMIT: it is written again, once, and nothing is sent again."""
    action_id = enqueue("jira_create", TICKET)
    proxy.cut(SETTLE, passes=passes)
    assert worker.run(world.due(), stop_at=EVER) == 1
    assert proxy.cuts == 1
    assert passed(action_id) == ["ready", "executing", "succeeded"]
    world.settle()
    assert passed(action_id) == ["ready", "executing", "succeeded"]
    assert len(world.sandbox.requests("jira", "issue.create")) == world.sandbox.count("tickets_created") == 1


@pytest.mark.case("I3")
@LOST
def test_connection_lost_in_the_enqueue(
    world: World,
    client: Callable[..., Counterfoil],
    database: Database,
    proxy_to: Callable[[str], Proxy],
    enqueue: Any,
    sql: Any,
    passes: int | None,
) -> None:
    """Lost during the caller's COMMIT: enqueuing again returns the same row, whichever way the first ended; one effect."""
    proxy = proxy_to(database.url("agent"))
    proxy.cut(COMMIT, passes=passes)
    with psycopg.connect(proxy.url) as connection:
        first = client().enqueue(connection, "stripe_charge", CHARGE, tenant="acme", run="r1", step="s1", actor="bot")
        with pytest.raises(psycopg.OperationalError):
            connection.commit()
    assert proxy.cuts == 1
    assert sql("SELECT count(*) FROM counterfoil.action") == [(1 if passes is None else 0,)]
    assert [enqueue("stripe_charge", CHARGE) for _ in range(2)] == [first, first]
    assert sql("SELECT count(*) FROM counterfoil.action") == sql("SELECT count(*) FROM counterfoil.outbox") == [(1,)]
    world.settle()
    assert world.sandbox.count("charges") == 1


@pytest.mark.case("I3")
@LOST
def test_connection_lost_in_a_models_call(
    world: World,
    client: Callable[..., Counterfoil],
    database: Database,
    proxy_to: Callable[[str], Proxy],
    sql: Any,
    passes: int | None,
) -> None:
    """The same in `run.call`: it finds by itself what the first COMMIT recorded, or records it; one action, one effect."""
    proxy = proxy_to(database.url("agent"))
    with client(url=proxy.url).run("r1", tenant="acme", actor="bot") as run:
        proxy.cut(COMMIT, passes=passes)
        told = run.call("stripe_charge", CHARGE, wait_s=0)
        assert proxy.cuts == 1
        assert sql("SELECT action_id FROM counterfoil.action") == [(told.action_id,)]
        world.settle()
        assert run.call("stripe_charge", CHARGE, wait_s=0).action_id == told.action_id
    world.settle()
    assert world.sandbox.count("charges") == 1


CONFLICT = """
CREATE SEQUENCE public.conflicts;
CREATE FUNCTION public.raise_conflict() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
  IF nextval('public.conflicts') <= {times} THEN RAISE EXCEPTION 'a conflict' USING ERRCODE = '{sqlstate}'; END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER zz_conflict BEFORE UPDATE ON counterfoil.action
  FOR EACH ROW WHEN (NEW.state = '{state}') EXECUTE FUNCTION public.raise_conflict();
"""
"""The first statements that bring a row into the state fail; a sequence counts them, since no rollback undoes it."""

CONFLICTS = pytest.mark.parametrize(
    "sqlstate", [pytest.param("40001", id="serialisation"), pytest.param("40P01", id="deadlock")]
)


@pytest.mark.case("I5")
@CONFLICTS
@pytest.mark.parametrize("state", ["executing", "succeeded"], ids=["claim", "settle"])
def test_conflict_at_claim_or_settle(
    world: World, enqueue: Any, sql: Any, passed: Any, state: str, sqlstate: str
) -> None:
    """A conflict changed nothing and is run again: one attempt is counted, and the provider is called once."""
    sql(CONFLICT.format(times=CONFLICTS_MAX - 1, sqlstate=sqlstate, state=state))
    action_id = enqueue("jira_create", TICKET)
    assert world.work() == 1
    assert passed(action_id) == ["ready", "executing", "succeeded"]
    assert sql("SELECT last_value FROM public.conflicts") == [(CONFLICTS_MAX,)]
    assert sql("SELECT attempt_count FROM counterfoil.action") == [(1,)]
    assert len(world.sandbox.requests("jira", "issue.create")) == world.sandbox.count("tickets_created") == 1


@pytest.mark.case("I5")
@CONFLICTS
@pytest.mark.parametrize("state", ["executing", "succeeded"], ids=["claim", "settle"])
def test_conflict_that_does_not_end(world: World, enqueue: Any, sql: Any, state: str, sqlstate: str) -> None:
    """The retries end: an unclaimed row is not called, an unsettled one is not called again, and evidence settles it."""
    sql(CONFLICT.format(times=1000, sqlstate=sqlstate, state=state))
    enqueue("jira_create", TICKET)
    sent = state == "succeeded"
    if sent:
        with pytest.raises(LedgerUnavailable):
            world.work()
    else:
        assert world.work() == 0
    assert world.states() == {"jira_create/s1/do": "executing" if sent else "ready"}
    assert len(world.sandbox.requests("jira", "issue.create")) == sent
    [(runs,)] = sql("SELECT last_value FROM public.conflicts")
    assert runs <= CONFLICTS_MAX * 25  # tried until the lease has ended, with a pause of a twentieth of it
    sql("DROP TRIGGER zz_conflict ON counterfoil.action")
    world.settle()
    assert world.states() == {"jira_create/s1/do": "succeeded"}
    assert len(world.sandbox.requests("jira", "issue.create")) == world.sandbox.count("tickets_created") == 1
