"""Decides what is durable in the sandbox: objects, effects, search index, idempotency rows, settings; one SQLite file.

A committed effect survives `kill -9` of the sandbox (WAL; the operating system keeps what was written). One process and
one thread use it, so that a handler's writes are one transaction and never interleave.
"""

from __future__ import annotations

import json
import random
import secrets
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from counterfoil.sandbox.clock import Clock
from counterfoil.sandbox.config import Config

_SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS objects (
  seq INTEGER PRIMARY KEY, kind TEXT NOT NULL, account TEXT NOT NULL, id TEXT NOT NULL, parent TEXT NOT NULL,
  created INTEGER NOT NULL, data TEXT NOT NULL, UNIQUE (kind, account, id));
CREATE INDEX IF NOT EXISTS objects_by_parent ON objects (kind, account, parent, seq);
CREATE TABLE IF NOT EXISTS effects (
  seq INTEGER PRIMARY KEY, provider TEXT NOT NULL, kind TEXT NOT NULL, key TEXT, object_id TEXT NOT NULL,
  amount INTEGER, currency TEXT, created REAL NOT NULL, data TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS effects_by_kind ON effects (kind);
CREATE INDEX IF NOT EXISTS effects_by_key ON effects (key);
CREATE TABLE IF NOT EXISTS snapshots (
  seq INTEGER PRIMARY KEY, kind TEXT NOT NULL, account TEXT NOT NULL, id TEXT NOT NULL, visible_at REAL NOT NULL,
  data TEXT);
CREATE INDEX IF NOT EXISTS snapshots_by_object ON snapshots (kind, account, id, seq);
CREATE TABLE IF NOT EXISTS terms (
  kind TEXT NOT NULL, account TEXT NOT NULL, term TEXT NOT NULL, id TEXT NOT NULL,
  PRIMARY KEY (kind, account, term, id)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS idempotency (
  account TEXT NOT NULL, key TEXT NOT NULL, fingerprint TEXT NOT NULL, path TEXT NOT NULL, state TEXT NOT NULL,
  status INTEGER, headers TEXT, body BLOB, created REAL NOT NULL, PRIMARY KEY (account, key));
"""
Announced = tuple[str, dict[str, Any]]
"""A provider's name and what happened there: an effect as it is recorded, or an event in the provider's own words."""

_TABLES = ("meta", "objects", "effects", "snapshots", "terms", "idempotency")


class Store:
    """All state of the sandbox, with its clock and configuration. Times are virtual, in seconds."""

    def __init__(self, path: Path) -> None:
        self.db = sqlite3.connect(path, isolation_level=None)
        self.db.execute("PRAGMA journal_mode=WAL")
        self.db.execute("PRAGMA synchronous=NORMAL")
        self.db.executescript(_SCHEMA)
        # A key in flight belonged to a process that is gone; its handler's transaction never committed.
        self.db.execute("DELETE FROM idempotency WHERE state = 'in_flight'")
        self.clock = Clock(float(self._meta("clock_offset_s") or 0))
        self.config = Config.from_json(json.loads(self._meta("config") or "{}"))
        self.generation = 0
        self.announce_to: Callable[[Sequence[Announced]], None] = lambda announced: None
        self._announced: list[Announced] = []
        self._lags = random.Random(self.config.seed)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Everything inside is committed at its end, or nothing of it is."""
        self.db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self.db.execute("ROLLBACK")
            self._announced.clear()
            raise
        self.db.execute("COMMIT")
        self._tell()

    def now(self) -> float:
        return self.clock.now()

    def close(self) -> None:
        self.db.close()

    # Objects: what the provider knows at once, by id and in lists.

    def put(self, kind: str, object_id: str, data: Mapping[str, Any], *, account: str = "", parent: str = "") -> None:
        """Writes or replaces one object; its place in lists stays that of its first write."""
        self.db.execute(
            "INSERT INTO objects (kind, account, id, parent, created, data) VALUES (?, ?, ?, ?, ?, ?)"
            " ON CONFLICT (kind, account, id) DO UPDATE SET data = excluded.data",
            (kind, account, object_id, parent, int(self.now()), json.dumps(data)),
        )

    def get(self, kind: str, object_id: str, *, account: str = "") -> dict[str, Any] | None:
        row = self.db.execute(
            "SELECT data FROM objects WHERE kind = ? AND account = ? AND id = ?", (kind, account, object_id)
        ).fetchone()
        return json.loads(row[0]) if row else None

    def delete(self, kind: str, object_id: str, *, account: str = "") -> None:
        self.db.execute("DELETE FROM objects WHERE kind = ? AND account = ? AND id = ?", (kind, account, object_id))

    def page(
        self,
        kind: str,
        *,
        account: str = "",
        parent: str | None = None,
        after_id: str | None = None,
        created_min: int | None = None,
        created_max: int | None = None,
        limit: int = 1000,
    ) -> list[dict[str, Any]]:
        """Objects, newest first; `after_id` starts below that object; the bounds include their own second."""
        values = {
            "kind": kind,
            "account": account,
            "parent": parent,
            "created_min": created_min,
            "created_max": created_max,
            "after_id": after_id,
            "limit": limit,
        }
        optional = {
            "parent": "parent = :parent",
            "created_min": "created >= :created_min",
            "created_max": "created <= :created_max",
            "after_id": "seq < (SELECT seq FROM objects WHERE kind = :kind AND account = :account AND id = :after_id)",
        }
        narrowed = [clause for name, clause in optional.items() if values[name] is not None]
        where = " AND ".join(["kind = :kind", "account = :account", *narrowed])
        rows = self.db.execute(f"SELECT data FROM objects WHERE {where} ORDER BY seq DESC LIMIT :limit", values)
        return [json.loads(row[0]) for row in rows]

    def new_id(self, prefix: str) -> str:
        return prefix + secrets.token_hex(12)

    def next_number(self, name: str, first: int) -> int:
        """1, 2, 3 … per name, beginning with `first`; committed with the transaction."""
        number = int(self._meta(f"number:{name}") or first)
        self._set_meta(f"number:{name}", str(number + 1))
        return number

    # Effects: what has really happened, in order, for ever. The oracle of every test.

    def record_effect(
        self,
        provider: str,
        kind: str,
        object_id: str,
        *,
        key: str | None = None,
        amount: int | None = None,
        currency: str | None = None,
        data: Mapping[str, Any] | None = None,
    ) -> None:
        self.db.execute(
            "INSERT INTO effects (provider, kind, key, object_id, amount, currency, created, data)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (provider, kind, key, object_id, amount, currency, self.now(), json.dumps(data or {})),
        )
        self.announce(provider, {"kind": kind, "object_id": object_id, "data": dict(data or {})})

    def announce(self, provider: str, what: dict[str, Any]) -> None:
        """Tells whoever listens that this happened, once it is committed."""
        self._announced.append((provider, what))
        if not self.db.in_transaction:
            self._tell()

    def effects(self, **wanted: str | None) -> list[dict[str, Any]]:
        """Effects in order; `provider`, `kind`, `key` and `object_id` narrow them."""
        given = {name: value for name, value in wanted.items() if value is not None}
        where = " AND ".join(f"{name} = :{name}" for name in given) or "1"
        columns = ("seq", "provider", "kind", "key", "object_id", "amount", "currency", "created", "data")
        rows = self.db.execute(f"SELECT {', '.join(columns)} FROM effects WHERE {where} ORDER BY seq", given)
        found = [dict(zip(columns, row, strict=True)) for row in rows]
        return [effect | {"data": json.loads(effect["data"])} for effect in found]

    def count_effects(self) -> dict[tuple[str, str], int]:
        rows = self.db.execute("SELECT provider, kind, count(*) FROM effects GROUP BY provider, kind")
        return {(provider, kind): count for provider, kind, count in rows}

    # Search index: the same objects as searches see them, late.

    def index(
        self,
        provider: str,
        kind: str,
        object_id: str,
        data: Mapping[str, Any] | None,
        terms: Iterable[str] = (),
        *,
        account: str = "",
        at: float | None = None,
    ) -> None:
        """Makes this state of the object (None = deleted) visible to searches after the provider's lag, from `at` or now."""
        now = self.now()
        since = now if at is None else at
        self.db.execute(
            "DELETE FROM snapshots WHERE kind = ?1 AND account = ?2 AND id = ?3 AND seq < (SELECT max(seq) FROM snapshots"
            " WHERE kind = ?1 AND account = ?2 AND id = ?3 AND visible_at <= ?4)",
            (kind, account, object_id, now),
        )
        self.db.execute(
            "INSERT INTO snapshots (kind, account, id, visible_at, data) VALUES (?, ?, ?, ?, ?)",
            (kind, account, object_id, since + self._lag_s(provider), None if data is None else json.dumps(data)),
        )
        self.db.executemany(
            "INSERT OR IGNORE INTO terms (kind, account, term, id) VALUES (?, ?, ?, ?)",
            [(kind, account, term, object_id) for term in terms],
        )

    def indexed(self, kind: str, *, account: str = "", terms: Sequence[str] = ()) -> list[dict[str, Any]]:
        """What a search sees now, in no order. With `terms`, only objects that once had one: the caller checks again."""
        sql, values = "SELECT id, data, max(seq) FROM snapshots WHERE kind = ? AND account = ?", [kind, account]
        if terms:
            marks = ", ".join("?" * len(terms))
            sql += f" AND id IN (SELECT id FROM terms WHERE kind = ? AND account = ? AND term IN ({marks}))"
            values += [kind, account, *terms]
        # SQLite takes the other columns of a group from the row that holds its max().
        rows = self.db.execute(f"{sql} AND visible_at <= ? GROUP BY id", (*values, self.now()))
        return [json.loads(data) for _, data, _ in rows if data is not None]

    # Settings and time.

    def configure(self, changes: Mapping[str, Any]) -> None:
        """Changes settings for good; ValueError names an unknown one."""
        self.config = self.config.changed(changes)
        self._set_meta("config", json.dumps(self.config.to_json()))
        self._lags = random.Random(self.config.seed)

    def advance(self, seconds: float) -> None:
        self._set_meta("clock_offset_s", str(self.clock.offset_s + seconds))
        self.clock.advance(seconds)

    def reset(self, *, keep_clock: bool = False) -> None:
        """An empty world with default settings; requests that are still under way are dropped, not landed."""
        self.generation += 1
        offset_s = self.clock.offset_s
        with self.transaction():
            for table in _TABLES:
                self.db.execute(f"DELETE FROM {table}")
        self.config = Config()
        self._lags = random.Random(self.config.seed)
        self.clock.reset()
        if keep_clock:
            self.advance(offset_s)

    def _tell(self) -> None:
        announced, self._announced = self._announced, []
        if announced:
            self.announce_to(announced)

    def _lag_s(self, provider: str) -> float:
        low, high = self.config.search_lag(provider)
        return low if low == high else self._lags.uniform(low, high)

    def _meta(self, name: str) -> str | None:
        row = self.db.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
        return str(row[0]) if row else None

    def _set_meta(self, name: str, value: str) -> None:
        self.db.execute("INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)", (name, value))
