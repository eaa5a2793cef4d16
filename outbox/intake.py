"""Decides what becomes of a row that another language has inserted: `enqueue`'s checks, then an action or a refusal.

Any number of relays may take rows at once. A row that is bad is told so and is gone from the queue; it stops no other. Rows
of a tenant that has too much waiting wait here, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import psycopg
import structlog

from counterfoil.ledger.connection import Ledger, Row
from counterfoil.ledger.errors import ArgumentError, ConfigError, CounterfoilError, LimitReached
from counterfoil.ledger.queries import load
from counterfoil.outbox.backlog import SETTING
from counterfoil.outbox.enqueue import intent_of
from counterfoil.outbox.intents import DOOR_RULES, DoorRules
from counterfoil.providers.registry import Registry

_SQL = load("counterfoil.outbox", "sql/intake.sql")

PATH_CHARS_MAX = 200

FULL_FOR_S = 5.0
"""A tenant that had too much waiting is looked at again after this long."""

log: structlog.stdlib.BoundLogger = structlog.get_logger("counterfoil.intake")


@dataclass(frozen=True, slots=True, kw_only=True)
class Intake:
    """Takes rows in. Its login is a worker's that serves the rows' tenants."""

    ledger: Ledger
    registry: Registry
    rules: DoorRules = DOOR_RULES
    batch: int = 100
    """Rows of one pass: a second's work at most, since the relay has others to do."""
    per_tenant: int = 20
    """Of these, rows of one tenant."""
    monotonic: Callable[[], float] = time.monotonic
    _full: dict[str, float] = field(default_factory=dict, repr=False)
    """Tenants that had too much waiting: until when they are left alone."""

    def take(self) -> int:
        """One pass; returns how many rows it looked at.

        Each row is recorded and marked in one transaction of its own. Raises `LedgerUnavailable`; what was not taken then
        is taken later, and what was taken is not taken again.
        """
        now = self.monotonic()
        for tenant in [tenant for tenant, until in self._full.items() if until <= now]:
            del self._full[tenant]
        rows = self.ledger.rows(
            _SQL["waiting_intake"], {"batch": self.batch, "per_tenant": self.per_tenant, "full": list(self._full)}
        )
        for row in rows:
            if row["tenant"] not in self._full:
                self._take(row)
        return len(rows)

    def _take(self, row: Row) -> None:
        try:
            spec = self.registry.get(row["tool"])
            asked = {name: row[name] for name in ("tenant", "run", "step", "actor", "not_before")}
            intent = intent_of(spec, row["arguments"], **asked, rules=self.rules)
            params = {**intent.parameters(), "intake_id": row["intake_id"]}
            done = self.ledger.row(_SQL["propose_intake"], params)
        except ConfigError:
            self._refuse(row, "unknown_tool")
        except ArgumentError as error:
            self._refuse(row, error.code, error.path)
        except psycopg.Error as error:  # neither a conflict nor a lost connection: the ledger refuses this row for good
            self._refuse(row, "refused_by_ledger")
            log.error("intake_refused_by_ledger", intake_id=row["intake_id"], sqlstate=error.sqlstate)
        except CounterfoilError:  # our own outage, or a login that may not: of every row
            raise
        except Exception as error:  # noqa: BLE001 - a tool author's code; whatever it raises concerns this row alone
            self._refuse(row, "tool_error")
            log.error("intake_tool_error", intake_id=row["intake_id"], tool=row["tool"], error=type(error).__name__)
        else:
            if done is not None and done["error_code"] == LimitReached.code:
                self.rules.backlog.is_full(row["tenant"])
                self._full[row["tenant"]] = self.monotonic() + FULL_FOR_S
                log.warning("intake_waits", tenant=row["tenant"], limit=SETTING)
            elif done is not None:
                log.info("intake_taken", intake_id=row["intake_id"], **done)

    def _refuse(self, row: Row, code: str, path: str | None = None) -> None:
        printable = "".join(char for char in (path or "")[:PATH_CHARS_MAX] if char.isprintable())
        self.ledger.row(_SQL["refuse_intake"], {"intake_id": row["intake_id"], "code": code, "path": printable or None})
        log.warning("intake_refused", intake_id=row["intake_id"], code=code)
