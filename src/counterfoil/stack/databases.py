"""The ledger's database on the local Postgres: created, migrated, with a login of its own for each role."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import psycopg
from psycopg import sql

from counterfoil.ledger import migrate, roles
from counterfoil.stack.home import Home
from counterfoil.stack.services import Urls


@dataclass(frozen=True, slots=True)
class Login:
    """A login: `name` in Postgres, member of the ledger's group `as_`, for these tenants (None = those asked for)."""

    role: str
    """What its URL goes by in the answer of `prepare_database`."""
    name: str
    as_: roles.Group
    tenants: tuple[str, ...] | None = ("*",)
    schema: str | None = None
    """A schema of its own, where it makes its tables and finds them first."""


LOGINS = (
    Login("agent", "cf_agent", "agent", None),
    Login("worker", "cf_worker", "worker"),
    Login("operator", "cf_operator", "operator"),
    Login("reader", "cf_reader", "reader"),
)
"""Every process logs in under the role of its job, on one machine too: what it must not do is refused there as well."""

APP = Login("app", "cf_app", "agent", None, schema="app")
"""An application that keeps its own tables beside the ledger, and records intents in its own transactions."""

LOCAL_LOGINS = (*LOGINS, Login("operator2", "cf_operator2", "operator"), APP)
"""What `counterfoil up` makes: a second person's as well, since two of one login are one where two must approve."""


def prepare_database(
    home: Home,
    urls: Urls,
    name: str = "counterfoil",
    tenants: Sequence[str] = ("acme",),
    *,
    logins: Sequence[Login] = LOGINS,
) -> dict[str, str]:
    """Make the database, its groups, the newest schema and the logins; give a libpq URL for each role and "owner".

    `tenants` are those that the agent's login may act for; more may be added by calling again, none is taken away.
    Passwords are generated once and kept in the home (0600). Idempotent, and safe in several processes at once: they
    wait for each other. "owner" is the superuser.
    """
    owner_url = database_url(home, urls, name, "owner")
    with home.lock("databases"):
        _create_database(urls, name)
        roles.create_groups(owner_url)
        migrate.upgrade(owner_url)
        for login in logins:
            _set_password(urls, login.name, home.secret(login.name))
            for tenant in tenants if login.tenants is None else login.tenants:
                roles.grant(owner_url, login.name, as_=login.as_, tenant=tenant)
            if login.schema is not None:
                _give_schema(owner_url, login.name, login.schema)
    return {role: database_url(home, urls, name, role, logins=logins) for role in ("owner", *(x.role for x in logins))}


def database_url(home: Home, urls: Urls, name: str, role: str, *, logins: Sequence[Login] = LOGINS) -> str:
    """The libpq URL under which `role` reaches the database; raises KeyError for a role that has no login."""
    if role == "owner":
        return urls.postgres_as(urls.user, urls.password, name)
    login = {login.role: login.name for login in logins}[role]
    return urls.postgres_as(login, home.secret(login), name)


def _create_database(urls: Urls, name: str) -> None:
    with psycopg.connect(urls.postgres, autocommit=True) as connection:
        if connection.execute("SELECT FROM pg_database WHERE datname = %s", (name,)).fetchone() is None:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))


def _give_schema(owner_url: str, login: str, schema: str) -> None:
    with psycopg.connect(owner_url) as connection:
        names = sql.Identifier(schema), sql.Identifier(login)
        connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {} AUTHORIZATION {}").format(*names))
        connection.execute(sql.SQL("ALTER ROLE {1} SET search_path = {0}").format(*names))


def _set_password(urls: Urls, login: str, password: str) -> None:
    """Make the login where there is none; the password on file is the one that holds."""
    with psycopg.connect(urls.postgres) as connection:
        exists = connection.execute("SELECT FROM pg_roles WHERE rolname = %s", (login,)).fetchone() is not None
        statement = sql.SQL("ALTER ROLE {} LOGIN PASSWORD {}" if exists else "CREATE ROLE {} LOGIN PASSWORD {}")
        encrypted = connection.pgconn.encrypt_password(password.encode(), login.encode(), b"scram-sha-256")
        connection.execute(statement.format(sql.Identifier(login), sql.Literal(encrypted.decode())))
