"""What an error of Postgres means, and whether code and schema fit: tables."""

from __future__ import annotations

import psycopg
import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory

from counterfoil import ConfigError
from counterfoil.ledger import connecting
from counterfoil.ledger.address import Address
from counterfoil.ledger.faults import Fault, fault_of, said_of
from counterfoil.ledger.schema import OLDEST_CODE, SCHEMA, check_schema, comment_of

BY_STATE = {
    Fault.AWAY: ("08000", "08003", "08006", "08P01", "57P01", "57P02", "57P03", "53300", "25P03", "3D000"),
    Fault.READ_ONLY: ("25006",),
    Fault.STALE: ("26000", "42P05", "0A000"),
    Fault.CONFLICT: ("40001", "40P01"),
    Fault.BUSY: ("57014", "53100", "53200", "55P03", "58030"),
    Fault.REFUSED: ("42501", "28P01", "28000"),
    Fault.NO_LEDGER: ("42P01", "42703", "42883", "3F000"),
    Fault.OURS: ("42601", "22001", "23505", "CF403", "P0001"),
}


@pytest.mark.parametrize(("fault", "state"), [(fault, state) for fault, states in BY_STATE.items() for state in states])
def test_the_table(fault: Fault, state: str) -> None:
    """Each SQLSTATE that a process meets, by psycopg's own class for it where there is one."""
    try:
        error: BaseException = psycopg.errors.lookup(state)("said")
    except KeyError:
        error = RuntimeError()
        error.sqlstate = state  # type: ignore[attr-defined]
    assert fault_of(error) is fault


def test_without_a_state_it_is_the_connection_s_or_ours() -> None:
    """psycopg gives none to what it finds out itself."""
    assert fault_of(psycopg.OperationalError("server closed the connection")) is Fault.AWAY
    assert fault_of(psycopg.InterfaceError("the connection is closed")) is Fault.AWAY
    assert fault_of(connecting.AnswerOverdue("late")) is Fault.AWAY
    assert fault_of(KeyError("x")) is fault_of(None) is Fault.OURS


def test_only_what_did_nothing_is_repeated_whatever_it_is() -> None:
    """A lost connection may have committed; a refusal of the node, of the name or of the snapshot has not."""
    assert {fault for fault in Fault if fault.did_nothing} == {Fault.READ_ONLY, Fault.STALE, Fault.CONFLICT}
    assert {fault for fault in Fault if fault.drops} == {Fault.AWAY, Fault.READ_ONLY, Fault.STALE}


def test_a_connection_s_error_is_one_line() -> None:
    """libpq's hint and psycopg's prefix are left out."""
    said = 'connection failed: connection to server at "h", port 1 failed: refused\n\tIs the server running?\n'
    assert said_of(psycopg.OperationalError(said)) == 'connection to server at "h", port 1 failed: refused'


@pytest.mark.parametrize(
    ("url", "wants"),
    [
        ("postgresql://a:1,b:2/d", "read-write"),
        ("host=a,b dbname=d", "read-write"),
        ("postgresql://a:1,b:2/d?target_session_attrs=any", None),
        ("postgresql://a/d", None),
        ("postgresql+psycopg://a:1,b:2/d", "read-write"),
    ],
)
def test_of_several_hosts_the_one_that_takes_writes_is_meant(url: str, wants: str | None) -> None:
    """Unless the address says otherwise, as one for readers may."""
    given = connecting._for_hosts(Address(url), 8.0)
    assert given.get("target_session_attrs") == wants
    assert given["connect_timeout"] == (4 if "," in url else 5), "all of them fit into a call's bound"


def test_an_address_may_say_how_long_a_new_connection_takes() -> None:
    """A database that must wake up takes seconds; within a call there is no more than the call has."""
    slow = Address("postgresql://a/d?connect_timeout=30")
    assert connecting._for_hosts(slow, float("inf"))["connect_timeout"] == 30
    assert connecting._for_hosts(slow, 8.0)["connect_timeout"] == 8


def test_libpq_s_variables_count_where_the_address_leaves_them_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several hosts in PGHOST mean the writable one, too."""
    monkeypatch.setenv("PGHOST", "a,b")
    monkeypatch.setenv("PGCONNECT_TIMEOUT", "3")
    assert connecting._for_hosts(Address("postgresql:///d"), 8.0) == {
        "connect_timeout": 3,
        "target_session_attrs": "read-write",
    }


@pytest.mark.parametrize("url", ["postgresql://u:s3cr@et9@h/d", "postgresql://h/d?connect_timeout=abc", "nonsense"])
def test_an_address_that_cannot_be_read_shows_nothing_of_itself(url: str) -> None:
    """An unencoded @ of a password would be told as a host that nobody knows."""
    with pytest.raises(ConfigError, match="cannot be read") as refused:
        connecting.connect(url, application_name="test")
    assert "et9" not in f"{refused.value}{refused.value.__cause__}{refused.value.__context__}"


def test_an_address_shows_no_password() -> None:
    """In a traceback or a log of settings."""
    assert "hunter2" not in repr(Address("postgresql://u:hunter2@h/d"))


def test_the_schema_that_this_code_needs_is_the_newest_migration() -> None:
    """The constant is what agents compare with: they load no Alembic."""
    config = Config()
    config.set_main_option("script_location", "ledger/migrations")
    assert ScriptDirectory.from_config(config).get_current_head() == SCHEMA
    assert OLDEST_CODE <= SCHEMA


@pytest.mark.parametrize(
    ("has_ledger", "comment", "fix"),
    [
        (False, None, "db upgrade"),
        (True, None, "db upgrade"),
        (True, "somebody's own words", "db upgrade"),
        (True, comment_of("0001", "0001"), "db upgrade"),
        (True, comment_of("9999", "9998"), "newer version of Counterfoil"),
        (True, comment_of("9999", SCHEMA), None),
        (True, f"kept: {comment_of(SCHEMA, OLDEST_CODE)}", None),
    ],
)
def test_code_and_schema(*, has_ledger: bool, comment: str | None, fix: str | None) -> None:
    """Old code on a newer schema goes on where that schema allows it; everything else says which way to go."""
    if fix is None:
        return check_schema(has_ledger=has_ledger, comment=comment)
    with pytest.raises(ConfigError) as refused:
        check_schema(has_ledger=has_ledger, comment=comment)
    assert fix in refused.value.fix
    return None
