"""A caller that was told of ends which the ledger does not have, since it was restored: refused, with an alarm."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from counterfoil.ledger.errors import LedgerLostTime
from counterfoil.ledger.queries import load
from counterfoil.outbox.pool import LedgerPool, Row
from counterfoil.outbox.seen import Seen, told

_SQL = load("counterfoil.ledger", "sql/agent.sql")


def check_recorded(had: Seen, rows: Mapping[str, Row], past: list[Row]) -> None:
    """Raises `LedgerLostTime` if the caller was told an end that is not on record.

    `rows` are the newest revisions of the run's steps, `past` those that others have replaced. What was told may have been
    done at a provider, so going on would do it again.
    """
    if not had.ends:
        return
    recorded = told((str(row["action_id"]), int(str(row["ends_count"]))) for row in (*rows.values(), *past))
    lost = had.beyond(recorded)
    if lost:
        raise LedgerLostTime(
            f"this run's caller was told {len(lost)} end(s) that the ledger does not have.",
            fix="Stop the agents and find out whether the database was restored to an earlier time: what was done since then"
            " stands at the providers. A new task needs a run with another id.",
        )


@contextmanager
def reporting_lost_time(pool: LedgerPool, tenant: str, run: str) -> Iterator[None]:
    """Raises the alarm `ledger_lost_time` when the block ends by that."""
    try:
        yield
    except LedgerLostTime:
        pool.row(_SQL["report_lost_time"], {"tenant": tenant, "run": run})
        raise
