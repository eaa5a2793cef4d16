"""Decides how a database gets the ledger's schema: Alembic's migrations, run as the owner role."""

from __future__ import annotations

from importlib.resources import as_file, files

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from counterfoil.ledger.address import Address
from counterfoil.ledger.connecting import connect
from counterfoil.ledger.errors import ConfigError, LedgerUnavailable, NotAllowed
from counterfoil.ledger.faults import Fault, fault_of, said_of
from counterfoil.ledger.schema import OLDEST_CODE, SCHEMA, comment_of

OWNER = "counterfoil_owner"


POSTGRES_MIN = 16

MIGRATIONS_MAX = 1000
"""Steps of one upgrade."""


def upgrade(database: str | Address) -> str:
    """Brings the database to the newest schema and returns its revision. Idempotent.

    The login must be able to become `counterfoil_owner` (`counterfoil db roles` prints the SQL). Each step is one
    transaction, under a lock for which concurrent callers wait. Raises `LedgerUnavailable`, `NotAllowed` or `ConfigError`,
    each with its fix.
    """
    with _connect(database) as connection, _config() as config:
        _check_server(connection)
        config.attributes["connection"] = connection
        for _ in range(MIGRATIONS_MAX):
            with connection.begin():
                _begin_as_owner(connection)
                found = _revision(connection) or ""
                if found >= SCHEMA:  # newer where a newer version was here; its comment stays
                    if found == SCHEMA:
                        comment = comment_of(SCHEMA, OLDEST_CODE)
                        connection.exec_driver_sql(f"COMMENT ON SCHEMA counterfoil IS '{comment}'")
                    return found
                _step(config)
    raise AssertionError("unreachable")


def status(database: str | Address) -> tuple[str | None, str]:
    """The database's revision (None: no schema yet) and the newest one that this version of Counterfoil knows."""
    with _connect(database) as connection:
        return _revision(connection), SCHEMA


def _begin_as_owner(connection: Connection) -> None:
    """All of it ends with the transaction: behind a pooler the next one may have another session."""
    try:
        connection.execute(text("SET LOCAL statement_timeout = 0"))  # a login's own is for statements of every day
        connection.execute(text("SELECT pg_advisory_xact_lock(hashtext('counterfoil.migrate'))"))
        connection.execute(text(f"SET LOCAL ROLE {OWNER}"))
        connection.execute(text("CREATE SCHEMA IF NOT EXISTS counterfoil"))
    except DBAPIError as error:
        raise _refused(error) from error


def _step(config: Config) -> None:
    try:
        command.upgrade(config, "+1")
    except DBAPIError as error:
        raise _refused(error) from error


def _check_server(connection: Connection) -> None:
    encoding = connection.execute(text("SHOW server_encoding")).scalar_one()
    version = connection.execute(text("SHOW server_version_num")).scalar_one()
    connection.rollback()
    if int(version) < POSTGRES_MIN * 10_000:
        raise ConfigError(
            f"this server is Postgres {int(version) // 10_000}, and {POSTGRES_MIN} or newer is needed.",
            key="database.url",
            fix="The ledger's statements use what older ones do not have (IS JSON).",
        )
    if encoding != "UTF8":
        raise ConfigError(
            f"this database's encoding is {encoding}, and arguments may hold any text.",
            key="database.url",
            fix="Make one that is UTF8: CREATE DATABASE name TEMPLATE template0 ENCODING 'UTF8'.",
        )


class _config:
    """Alembic's configuration with the folder of the installed package; no alembic.ini is needed."""

    def __enter__(self) -> Config:
        self._folder = as_file(files("counterfoil.ledger") / "migrations")
        config = Config()
        config.set_main_option("script_location", str(self._folder.__enter__()))
        return config

    def __exit__(self, *exc: object) -> None:
        self._folder.__exit__(None, None, None)


def _connect(database: str | Address) -> Connection:
    """A migration may take minutes, so its statements have no limit."""
    engine = create_engine(
        "postgresql+psycopg://",
        creator=lambda: connect(
            database, application_name="counterfoil db", needs_schema=False, limits=False, autocommit=False
        ),
        poolclass=NullPool,
    )
    return engine.connect()


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
    fault = fault_of(error.orig)
    if fault is not Fault.OURS and fault is not Fault.NO_LEDGER and error.orig is not None:
        return LedgerUnavailable(
            f"the database did not finish this step of the upgrade: {said_of(error.orig)}.",
            fix="Nothing of the step is kept: run it again.",
        )
    return error
