"""Which schema this code needs, and which code a schema can live with. Both are told in the schema's own comment."""

from __future__ import annotations

import re

from counterfoil.ledger.errors import ConfigError

SCHEMA = "0007"
"""The newest revision of `migrations/versions`, which this code needs."""

OLDEST_CODE = "0007"
"""The oldest code, by its SCHEMA, that goes on working on this schema: what a rolling deployment may still run."""

_COMMENT = re.compile(r"ledger at (\d{4}), works with code from (\d{4}) on")


def comment_of(revision: str, oldest_code: str) -> str:
    """What stands on the schema: for people, and for every process that connects."""
    return f"Counterfoil ledger at {revision}, works with code from {oldest_code} on"


def check_schema(*, has_ledger: bool, comment: str | None) -> None:
    """Raises `ConfigError` where this code and the database's schema do not fit, with the way to go."""
    if not has_ledger:
        raise ConfigError(
            "this database has no ledger.", key="database.url", fix="Run `counterfoil db upgrade`, or name another one."
        )
    found = _COMMENT.search(comment or "")
    revision, oldest_code = found.groups() if found else ("", "")
    if revision < SCHEMA:
        raise ConfigError(
            f"the ledger's schema is at {revision or 'a version before 0007'}, and this version needs {SCHEMA}.",
            key="database.url",
            fix="Run `counterfoil db upgrade` with this version.",
        )
    if oldest_code > SCHEMA:
        raise ConfigError(
            f"the ledger's schema is at {revision}, which needs code for {oldest_code} or later; this is for {SCHEMA}.",
            key="database.url",
            fix="Start the newer version of Counterfoil here.",
        )
