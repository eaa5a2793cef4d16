"""What people change of a running fleet, in the database: who may, in what order, and what each tenant sees of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.integration.conftest import Rows

CHANGE = "SELECT counterfoil.change_settings(%s, %s, 'alice', 'test', 'they are down')"
MODE = "providers.stripe.mode"


@pytest.fixture(scope="module")
def of_acme(shared_rows: Rows) -> dict[str, psycopg.Connection[Any]]:
    """The operator's and the reader's login of acme alone, beside operator2 and the worker, who serve all tenants."""
    shared_rows.owner.execute(
        "UPDATE counterfoil.principal SET tenant_id = 'acme' WHERE role_name IN ('cf_operator', 'cf_reader')"
    )
    return {role: shared_rows.connect(role) for role in ("operator", "reader", "operator2", "worker")}


@pytest.fixture
def rows(shared_rows: Rows) -> Rows:
    """One database for the module; every test pauses a provider, or wakes an action, of its own."""
    return shared_rows


def refused(connection: psycopg.Connection[Any], query: str, *params: object) -> str | None:
    """The SQLSTATE of its refusal; None when the statement is accepted."""
    try:
        connection.execute(query.encode(), params)
    except psycopg.Error as error:
        return error.sqlstate
    return None


def changes(rows: Rows, provider: str) -> list[tuple[str, str | None]]:
    """The provider's changes, the oldest first."""
    query = "SELECT key, value FROM counterfoil.setting_change WHERE split_part(key, '.', 2) = %s ORDER BY change_id"
    return [(row["key"], row["value"]) for row in rows.all(query, provider)]


def modes(rows: Rows, provider: str) -> list[str]:
    return [row["mode"] for row in rows.all("SELECT mode FROM counterfoil.provider_mode WHERE provider = %s", provider)]


def test_only_who_serves_all_tenants_changes_the_fleet(rows: Rows, of_acme: dict[str, psycopg.Connection[Any]]) -> None:
    """An operator of one tenant pauses nobody: refused, and nothing is written. The same call of an operator of all is."""
    given = ["providers.ours.mode"], ['"paused"']
    assert refused(of_acme["operator"], CHANGE, *given) == "CF403"
    assert (changes(rows, "ours"), modes(rows, "ours")) == ([], [])
    assert refused(of_acme["operator2"], CHANGE, *given) is None
    assert (changes(rows, "ours"), modes(rows, "ours")) == ([("providers.ours.mode", '"paused"')], ["paused"])
    said = rows.one("SELECT * FROM counterfoil.setting_change WHERE key = 'providers.ours.mode'")
    assert (said["by_person"], said["channel"], said["db_role"]) == ("alice", "test", "cf_operator2")


@pytest.mark.parametrize(
    ("keys", "values"),
    [
        (["providers.all.rate_per_s", "providers.all.mode"], ["5", '"stopped"']),
        (["providers.all.rate_per_s", "providers.all.mode"], ["5", "paused"]),
        (["providers.all.rate_per_s", "database.url"], ["5", '"postgresql://elsewhere"']),
        (["providers.all.rate_per_s", "providers.all.mode"], ["5"]),
        (["providers.all.rate_per_s", None], ["5", "1"]),
        (["providers.all.rate_per_s", "providers.all.burst"], ["5", '"' + "x" * 1000 + '"']),
    ],
    ids=["no such mode", "no JSON", "no provider's key", "a value is missing", "no key", "too long"],
)
def test_all_of_the_changes_or_none(
    rows: Rows, of_acme: dict[str, psycopg.Connection[Any]], keys: list[str | None], values: list[str]
) -> None:
    """A call of which one change cannot be made makes none, the good one before it included."""
    assert refused(of_acme["operator2"], CHANGE, keys, values) is not None
    assert (changes(rows, "all"), modes(rows, "all")) == ([], [])


def test_running_again_and_as_configured_end_a_pause(rows: Rows, of_acme: dict[str, psycopg.Connection[Any]]) -> None:
    """Both "running" and no value take the provider out of what holds claims back."""
    for ends in ('"running"', None, "null"):
        for value, left in (('"paused"', ["paused"]), ('"draining"', ["draining"]), (ends, [])):
            assert refused(of_acme["operator2"], CHANGE, ["providers.again.mode"], [value]) is None
            assert modes(rows, "again") == left


def test_two_people_at_once_leave_what_the_newest_change_says(
    rows: Rows, at_once: Callable[[Sequence[Callable[[], Any]]], list[Any]]
) -> None:
    """Pauses and resumptions that meet: claims are held back exactly if the last change on record says so."""
    people = [rows.connect("operator2") for _ in range(4)]
    for turn in range(10):
        wanted = ['"paused"', '"running"', '"draining"', '"running"']
        calls = [
            lambda who=who, value=value: who.execute(CHANGE, (["providers.met.mode"], [value]))
            for who, value in zip(people, wanted, strict=True)
        ]
        at_once(calls)
        key, last = changes(rows, "met")[-1]
        assert [f'"{mode}"' for mode in modes(rows, "met")] == ([] if last == '"running"' else [last]), (turn, key)


def test_what_was_changed_is_on_record_for_good(rows: Rows, of_acme: dict[str, psycopg.Connection[Any]]) -> None:
    """Nobody edits, deletes or empties the record of changes, the owner included."""
    assert refused(of_acme["operator2"], CHANGE, ["providers.kept.rate_per_s"], ["5"]) is None
    for statement in (
        "UPDATE counterfoil.setting_change SET by_person = 'bob'",
        "DELETE FROM counterfoil.setting_change",
        "TRUNCATE counterfoil.setting_change",
    ):
        assert refused(rows.owner, statement) is not None, statement
    assert changes(rows, "kept") == [("providers.kept.rate_per_s", "5")]


def test_who_serves_one_tenant_sees_that_it_is_paused_not_why(
    rows: Rows, of_acme: dict[str, psycopg.Connection[Any]]
) -> None:
    """Reasons, other accounts' health and alarms of the fleet or of another tenant stay with who serves all tenants."""
    assert refused(of_acme["operator2"], CHANGE, ["providers.seen.mode"], ['"paused"']) is None
    rows.owner.execute(
        "INSERT INTO counterfoil.provider_health (provider, account, way)"
        " VALUES ('p', 'default', 'send'), ('p', 'eu', 'send')"
    )
    rows.owner.execute(
        "INSERT INTO counterfoil.alarm (kind, subject, tenant)"
        " VALUES ('outage', 'p', '*'), ('duplicate', 'act_1', 'acme'), ('duplicate', 'act_2', 'globex')"
    )
    queries = {
        "mode": "SELECT mode AS v FROM counterfoil.provider_mode WHERE provider = 'seen'",
        "change": "SELECT value AS v FROM counterfoil.setting_change WHERE key = 'providers.seen.mode'",
        "health": "SELECT account AS v FROM counterfoil.provider_health ORDER BY account",
        "alarm": "SELECT subject AS v FROM counterfoil.alarm ORDER BY subject",
    }

    def seen(role: str) -> dict[str, list[str]]:
        return {
            name: [row["v"] for row in of_acme[role].execute(query.encode()).fetchall()]
            for name, query in queries.items()
        }

    own = {"mode": ["paused"], "change": [], "health": ["default"], "alarm": ["act_1"]}
    everything = {
        "mode": ["paused"],
        "change": ['"paused"'],
        "health": ["default", "eu"],
        "alarm": ["act_1", "act_2", "p"],
    }
    assert {role: seen(role) for role in of_acme} == {
        "operator": own,
        "reader": own,
        "operator2": everything,
        "worker": everything,
    }


def test_a_dead_wake_up_is_its_own_tenant_s_to_revive(rows: Rows, of_acme: dict[str, psycopg.Connection[Any]]) -> None:
    """An operator revives what is its tenant's, once, as a retry if it was tried; another tenant's is as if it were not."""
    revive = "SELECT counterfoil.revive(%s) AS revived"
    dead = {
        "acme": rows.build("retryable_failure", run="dead"),
        "globex": rows.build("ready", tenant="globex", run="dead"),
    }
    for tenant, action_id in dead.items():
        rows.owner.execute("DELETE FROM counterfoil.outbox WHERE action_id = %s", (action_id,))
        rows.owner.execute(
            "INSERT INTO counterfoil.outbox_dead (action_id, generation, tenant, queue, publish_count, waited_since)"
            " VALUES (%s, 1, %s, 'cf-stripe', 8, counterfoil.now())",
            (action_id, tenant),
        )

    def revived(role: str, tenant: str) -> bool:
        row = of_acme[role].execute(revive.encode(), (dead[tenant],)).fetchone()
        return bool(row and row["revived"])

    assert not revived("operator", "globex")
    assert [revived("operator", "acme") for _ in range(2)] == [True, False]
    assert revived("operator2", "globex")
    retries = {i: rows.one("SELECT is_retry FROM counterfoil.outbox WHERE action_id = %s", i) for i in dead.values()}
    assert [row["is_retry"] for row in retries.values()] == [True, False]
    assert rows.all("SELECT * FROM counterfoil.outbox_dead") == []
