"""Decides how a database gets the ledger's schema: Alembic's migrations, run as the owner role."""

from __future__ import annotations

from importlib.resources import as_file, files

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.pool import NullPool

from counterfoil.ledger.errors import ConfigError, LedgerUnavailable, NotAllowed

OWNER = "counterfoil_owner"


def upgrade(url: str) -> str:
    """Brings the database at `url` to the newest schema and returns its revision. Idempotent.

    The login must be able to become `counterfoil_owner` (`counterfoil db roles` prints the SQL). Concurrent callers
    wait for each other on an advisory lock. Raises `LedgerUnavailable`, `NotAllowed` or `ConfigError`, each with its fix.
    """
    with _connect(url) as connection, _config() as config:
        try:
            connection.execute(text("SELECT pg_advisory_lock(hashtext('counterfoil.migrate'))"))
            connection.execute(text(f"SET ROLE {OWNER}"))
            connection.execute(text("CREATE SCHEMA IF NOT EXISTS counterfoil"))
            connection.commit()
        except DBAPIError as error:
            raise _refused(error) from error
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
        connection.commit()
        return _revision(connection) or ""


def status(url: str) -> tuple[str | None, str]:
    """The database's revision (None: no schema yet) and the newest one that this version of Counterfoil knows."""
    with _connect(url) as connection, _config() as config:
        head = ScriptDirectory.from_config(config).get_current_head() or ""
        return _revision(connection), head


def sqlalchemy_url(url: str) -> str:
    """`url` with psycopg named as the driver, whatever form of a Postgres URL it has."""
    for prefix in ("postgresql://", "postgres://"):
        if url.startswith(prefix):
            return "postgresql+psycopg://" + url.removeprefix(prefix)
    return url


class _config:
    """Alembic's configuration with the folder of the installed package; no alembic.ini is needed."""

    def __enter__(self) -> Config:
        self._folder = as_file(files("counterfoil.ledger") / "migrations")
        config = Config()
        config.set_main_option("script_location", str(self._folder.__enter__()))
        return config

    def __exit__(self, *exc: object) -> None:
        self._folder.__exit__(None, None, None)


def _connect(url: str) -> Connection:
    engine: Engine = create_engine(sqlalchemy_url(url), poolclass=NullPool)
    try:
        return engine.connect()
    except OperationalError as error:
        raise LedgerUnavailable(
            f"cannot connect to the database {engine.url.render_as_string(hide_password=True)}.",
            fix="Is it running, and is [database] url right? `counterfoil up` starts a local one.",
        ) from error


def _revision(connection: Connection) -> str | None:
    context = MigrationContext.configure(
        connection, opts={"version_table": "schema_version", "version_table_schema": "counterfoil"}
    )
    return context.get_current_revision()


def _refused(error: DBAPIError) -> Exception:
    state = getattr(error.orig, "sqlstate", None)
    if state == "22023":
        return ConfigError(f"role {OWNER} does not exist.", fix="Run `counterfoil db roles` first.")
    if state == "42501":
        return NotAllowed(
            f"this login may not act as {OWNER}.", fix="Migrate with a login that `counterfoil db roles` granted it to."
        )
    return error
