"""What an error of Postgres, or of the way to it, means. One table for agents, workers, relay and command line.

SQLSTATEs are Postgres' own (appendix A of its manual); poolers tell their errors in class 08 or without a state.
"""

from __future__ import annotations

from enum import StrEnum

import psycopg


class Fault(StrEnum):
    """What became of a statement that failed, and what is done next."""

    AWAY = "away"
    """The connection is gone or was not made; whether the statement took effect is unknown. Another one is tried."""
    READ_ONLY = "read_only"
    """This node takes no writes: it is a standby, or became one. Nothing happened. Every host is tried again."""
    STALE = "stale"
    """What this connection had prepared is gone, by a pooler or a migration. Nothing happened. Another one is tried."""
    CONFLICT = "conflict"
    """Another transaction was in the way. Nothing happened. The same again, at once."""
    BUSY = "busy"
    """The server gave up: a time limit, memory, disk, a recovery conflict. Nothing happened. Later."""
    REFUSED = "refused"
    """This login has no right to that, or may not log in."""
    NO_LEDGER = "no_ledger"
    """A name of the schema is not there: no `counterfoil db upgrade` yet, or an older one."""
    OURS = "ours"
    """The statement or its values are wrong, or our own function raised."""

    @property
    def drops(self) -> bool:
        """Whether the connection is of no use any more."""
        return self in (Fault.AWAY, Fault.READ_ONLY, Fault.STALE)

    @property
    def did_nothing(self) -> bool:
        """Whether the statement certainly took no effect, so that it can be run again whatever it is."""
        return self in (Fault.READ_ONLY, Fault.STALE, Fault.CONFLICT)


_BY_STATE: dict[str, Fault] = {
    "25006": Fault.READ_ONLY,  # read_only_sql_transaction
    "26000": Fault.STALE,  # invalid_sql_statement_name: prepared on another connection of a pooler
    "42P05": Fault.STALE,  # duplicate_prepared_statement: likewise
    "0A000": Fault.STALE,  # feature_not_supported: "cached plan must not change result type", after a migration
    "40001": Fault.CONFLICT,
    "40P01": Fault.CONFLICT,
    "57014": Fault.BUSY,  # query_canceled: statement_timeout
    "57P01": Fault.AWAY,  # admin_shutdown
    "57P02": Fault.AWAY,  # crash_shutdown
    "57P03": Fault.AWAY,  # cannot_connect_now
    "57P05": Fault.AWAY,  # idle_session_timeout
    "25P03": Fault.AWAY,  # idle_in_transaction_session_timeout
    "25P04": Fault.AWAY,  # transaction_timeout
    "53300": Fault.AWAY,  # too_many_connections
    "42501": Fault.REFUSED,
    "3D000": Fault.AWAY,  # invalid_catalog_name: no such database
    "3F000": Fault.NO_LEDGER,
    "42P01": Fault.NO_LEDGER,
    "42703": Fault.NO_LEDGER,
    "42883": Fault.NO_LEDGER,
}

_BY_CLASS: dict[str, Fault] = {
    "08": Fault.AWAY,
    "28": Fault.REFUSED,
    "53": Fault.BUSY,
    "55": Fault.BUSY,
    "58": Fault.BUSY,
}


def fault_of(error: BaseException | None) -> Fault:
    """By SQLSTATE; an error of psycopg's that has none and is about the connection means that it is gone."""
    state = sqlstate_of(error)
    if state:
        return _BY_STATE.get(state) or _BY_CLASS.get(state[:2], Fault.OURS)
    return Fault.AWAY if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) else Fault.OURS


def sqlstate_of(error: BaseException | None) -> str:
    """The five characters, or '' where the driver gives none."""
    return str(getattr(error, "sqlstate", None) or getattr(error, "pgcode", None) or "")


def said_of(error: BaseException) -> str:
    """What the server or the client says of a connection, in one line; it names hosts and logins, and no password."""
    primary = getattr(getattr(error, "diag", None), "message_primary", None)
    lines = [line for line in str(primary or error).splitlines() if not line.startswith(("\t", "Multiple connection"))]
    return " ".join(" ".join(lines).split()).removeprefix("connection failed: ")[:300].rstrip(".")
