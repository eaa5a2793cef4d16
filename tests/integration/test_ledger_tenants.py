"""No way leads from one tenant to another: not by reading, not by a setting, not by a guessed id."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql

if TYPE_CHECKING:
    from tests.integration.conftest import Rows

ROLES = ("agent", "worker", "operator", "reader")


@pytest.fixture
def rows(shared_rows: Rows) -> Rows:
    """One database for the module: every test here looks at rows of its own."""
    return shared_rows


@pytest.fixture(scope="module")
def logins(shared_rows: Rows) -> dict[str, psycopg.Connection[Any]]:
    """A connection for each role; agent acts for acme and globex, agent2 for globex alone."""
    return {role: shared_rows.connect(role) for role in (*ROLES, "agent2")}


def sqlstate(connection: psycopg.Connection[Any], query: str | sql.Composed, params: Any = None) -> str | None:
    """None when the statement is accepted (and undone), else the SQLSTATE of its refusal."""
    try:
        with connection.transaction(force_rollback=True):
            connection.execute(query.encode() if isinstance(query, str) else query, params)
    except psycopg.Error as error:
        return error.sqlstate
    return None


TENANT_TABLES = ("run", "action", "step_ref", "attempt", "history", "actions")


def tenants_seen(connection: psycopg.Connection[Any], name: str) -> set[str]:
    found = connection.execute(f"SELECT DISTINCT tenant FROM counterfoil.{name}".encode()).fetchall()
    return {row["tenant"] for row in found}


@pytest.fixture(scope="module")
def acme(shared_rows: Rows) -> dict[str, str]:
    """Rows of both tenants in every table, and the ids of acme's, by state."""
    for tenant in ("acme", "globex"):
        shared_rows.propose(tenant=tenant, run="both", ref=f"ref-{tenant}")
        shared_rows.build("executing", tenant=tenant, run="both")
    states = ("awaiting_approval", "ready", "executing", "uncertain", "permanent_failure")
    return {state: shared_rows.build(state, tenant="acme", run="secret", step=f"known-{state}") for state in states}


@pytest.mark.case("J1")
def test_tenants_do_not_see_each_other(
    rows: Rows, logins: dict[str, psycopg.Connection[Any]], acme: dict[str, str]
) -> None:
    """The same run and step of two tenants are two rows, and a login sees its own tenants' rows only."""
    both = {tenant: rows.propose(tenant=tenant, run="same", step="same") for tenant in ("acme", "globex")}
    assert all(row["created"] for row in both.values())
    assert both["acme"]["action_id"] != both["globex"]["action_id"]
    for name in TENANT_TABLES:
        assert tenants_seen(logins["agent2"], name) == {"globex"}, name
        assert tenants_seen(logins["agent"], name) == {"acme", "globex"}, name
    assert sum(row["actions"] for row in logins["agent2"].execute("SELECT * FROM counterfoil.open_work")) < sum(
        row["actions"] for row in logins["agent"].execute("SELECT * FROM counterfoil.open_work")
    )


@pytest.mark.case("J1")
def test_identity_is_not_a_joined_string(rows: Rows) -> None:
    """("a:b", "c") and ("a", "b:c") are two identities, for the database too."""
    pairs = [rows.propose(run=run, step=step) for run, step in (("a:b", "c"), ("a", "b:c"), ('a","b', "c"))]
    assert all(row["created"] for row in pairs)
    assert len({row["action_id"] for row in pairs}) == 3


def test_no_setting_widens_a_login(
    rows: Rows, logins: dict[str, psycopg.Connection[Any]], acme: dict[str, str]
) -> None:
    """Custom settings, row_security, search_path with look-alike tables, and SET ROLE leave a login with its tenants."""
    with rows.connect("agent2") as connection:
        for name in ("counterfoil.tenant", "app.tenant_id", "request.jwt.claims", "counterfoil.principal"):
            connection.execute("SELECT set_config(%s, 'acme', false)", (name,))
        connection.execute("CREATE TEMP TABLE principal (role_name text, tenant_id text)")
        connection.execute("INSERT INTO principal VALUES (session_user, '*')")
        connection.execute(
            "CREATE FUNCTION pg_temp.my_tenants() RETURNS text[] LANGUAGE sql AS $$ SELECT '{*}'::text[] $$"
        )
        connection.execute("SET search_path = pg_temp, counterfoil")
        for name in TENANT_TABLES:
            assert tenants_seen(connection, name) == {"globex"}, name
        assert sqlstate(connection, "SELECT counterfoil.open_run('acme', 'r', 'mallory')") == "CF403"
        connection.execute("SET row_security = off")
        assert sqlstate(connection, "SELECT FROM counterfoil.action") == "42501"
    for group in ("owner", "worker", "operator", "reader"):
        assert sqlstate(logins["agent2"], f"SET ROLE counterfoil_{group}") == "42501"
    for role in (logins["agent"].info.user, rows.owner.info.user):
        assert sqlstate(logins["agent2"], f"SET ROLE {role}") == "42501"
        assert sqlstate(logins["agent2"], f"SET SESSION AUTHORIZATION {role}") == "42501"
    assert sqlstate(logins["agent2"], "SET session_replication_role = replica") == "42501"
    with rows.connect("agent2") as connection:  # a right that its own group gives is not a tenant
        connection.execute("SET ROLE counterfoil_agent")
        assert tenants_seen(connection, "action") == {"globex"}


def test_one_tenant_cannot_touch_another(
    rows: Rows, logins: dict[str, psycopg.Connection[Any]], acme: dict[str, str]
) -> None:
    """Every door that an agent has is closed for another tenant's run, id or step, and a guess tells nothing."""
    agent2 = logins["agent2"]
    before = {state: rows.read(action_id) for state, action_id in acme.items()}
    unknown = "act_" + "y" * 26
    assert sqlstate(agent2, "SELECT counterfoil.open_run('acme', 'secret', 'mallory')") == "CF403"
    assert sqlstate(agent2, "SELECT counterfoil.lock_and_read('acme', 'secret', 0)") == "CF403"
    assert sqlstate(agent2, "SELECT counterfoil.lock_and_read('acme', 'unheard of', 0)") == "CF403"
    assert sqlstate(agent2, "SELECT counterfoil.close_run('acme', 'secret')") == "CF403"
    assert sqlstate(agent2, "SELECT counterfoil.request_unwind('acme', 'secret', 'x')") == "CF403"
    assert (
        sqlstate(agent2, "SELECT counterfoil.add_ref('acme', 'secret', '', 'ref', %s, '')", (acme["ready"],)) == "CF403"
    )
    for action_id in (*acme.values(), unknown):
        assert sqlstate(agent2, "SELECT counterfoil.look_now(%s)", (action_id,)) == "CF403"
        row = agent2.execute("SELECT counterfoil.request_cancel(%s, 'm', 'x') AS state", (action_id,)).fetchone()
        assert row == {"state": None}
        agent2.execute("SELECT counterfoil.add_ref('globex', 'both', '', 'stolen', %s, '')", (action_id,))
    assert rows.all("SELECT FROM counterfoil.step_ref WHERE ref = 'stolen'") == []
    with pytest.raises(psycopg.DatabaseError) as refused:
        rows.propose(agent2, tenant="acme", run="secret")
    assert refused.value.sqlstate == "CF403"
    for state, action_id in acme.items():  # as "the revision before" of a row of one's own
        made = rows.propose(agent2, tenant="globex", run="secret", step=f"known-{state}", supersedes=action_id)
        assert made["created"]
    assert {state: rows.read(action_id) for state, action_id in acme.items()} == before


def test_made_up_id_is_refused(rows: Rows, logins: dict[str, psycopg.Connection[Any]]) -> None:
    """An agent cannot squat on the id that another tenant's action will have, nor on any other."""
    victim = rows.identity(tenant="acme", run="future", step="pay")["action_id"]
    for action_id in (
        victim,
        "act_" + "a" * 26,
        rows.identity(tenant="globex", run="future", step="other")["action_id"],
    ):
        with pytest.raises(psycopg.DatabaseError) as refused:
            rows.propose(logins["agent2"], tenant="globex", run="future", step="pay", action_id=action_id)
        assert refused.value.sqlstate == "CF403"
    assert rows.propose(tenant="acme", run="future", step="pay")["created"]


def test_worker_sees_every_tenant(rows: Rows, acme: dict[str, str]) -> None:
    """A worker claims rows of all tenants: it holds the providers' secrets anyway."""
    worker = rows.ledger()
    for tenant in ("acme", "globex"):
        assert rows.claimed(worker, rows.build("ready", tenant=tenant)).tenant == tenant
