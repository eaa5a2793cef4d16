"""Decides who may act: the five database groups, and which login belongs to which group and tenant."""

from __future__ import annotations

from typing import Literal

import psycopg
from psycopg import sql

from counterfoil.ledger.address import Address
from counterfoil.ledger.connecting import LedgerConnection, connect
from counterfoil.ledger.errors import ConfigError, NotAllowed

Group = Literal["agent", "worker", "operator", "reader"]
GROUPS: tuple[Group, ...] = ("agent", "worker", "operator", "reader")
OWNER = "counterfoil_owner"


def groups_sql(database: str) -> str:
    """The SQL that `create_groups` runs, for a database administrator to read or run by hand."""
    names = [OWNER, *(f"counterfoil_{group}" for group in GROUPS)]
    lines = [
        f"DO $$ BEGIN CREATE ROLE {name} NOLOGIN; EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$;"
        for name in names
    ]
    lines.append(f"GRANT {OWNER} TO CURRENT_USER;")
    lines.append(
        sql.SQL("GRANT CREATE ON DATABASE {} TO {};")
        .format(sql.Identifier(database), sql.Identifier(OWNER))
        .as_string()
    )
    return "\n".join(lines)


def create_groups(url: str | Address) -> None:
    """Makes the five NOLOGIN groups (kept where they exist) and lets the owner create the schema in this database.

    The login needs CREATEROLE. Safe to run again and at the same time.
    """
    with _connect(url) as connection, connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(hashtext('counterfoil.roles'))")
        connection.execute(groups_sql(connection.info.dbname).encode())


def grant(url: str | Address, login: str, *, as_: Group, tenant: str) -> None:
    """Adds an existing `login` to a group and lets it act for `tenant` ('*' = every tenant). Idempotent.

    Raises `ConfigError` when the login does not exist, `NotAllowed` when the caller may not grant.
    """
    if as_ not in GROUPS:
        raise ConfigError(f"no role {as_!r}.", fix=f"One of: {', '.join(GROUPS)}.")
    with _connect(url) as connection:
        try:
            with connection.transaction():
                connection.execute("SELECT pg_advisory_xact_lock(hashtext('counterfoil.roles'))")
                connection.execute(
                    sql.SQL("GRANT {} TO {}").format(sql.Identifier(f"counterfoil_{as_}"), sql.Identifier(login))
                )
                connection.execute(sql.SQL("SET LOCAL ROLE {}").format(sql.Identifier(OWNER)))
                connection.execute(
                    "INSERT INTO counterfoil.principal (role_name, tenant_id) VALUES (%s, %s) ON CONFLICT DO NOTHING",
                    (login, tenant),
                )
        except psycopg.errors.UndefinedObject as error:
            raise ConfigError(
                f"login {login!r} (or the group) does not exist.",
                fix=f"Create it: `CREATE ROLE {login} LOGIN …`; the groups are made by `counterfoil db roles`.",
            ) from error
        except psycopg.errors.UndefinedTable as error:
            raise ConfigError("this database has no ledger.", fix="Run `counterfoil db upgrade` first.") from error
        except psycopg.errors.InsufficientPrivilege as error:
            raise NotAllowed("this login may not grant roles.", fix="Use the login that made the groups.") from error


def _connect(database: str | Address) -> LedgerConnection:
    return connect(database, application_name="counterfoil db", needs_schema=False, autocommit=False)
