"""Decides how a named query in a `.sql` file becomes text for psycopg (workers) or SQLAlchemy (agents).

A file holds queries under `-- name: some_name` lines, each with a line of why below it, and `:named` parameters.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

_NAME = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)
_PARAMETER = re.compile(r"(?<![:\w]):([a-z][a-z0-9_]*)\b(?!:)")  # casts are CAST(:x AS t): SQLAlchemy misreads :x::t
_COMMENT = re.compile(r"--[^\n]*")


@dataclass(frozen=True, slots=True)
class Query:
    """One named statement, the same in both drivers' parameter styles."""

    name: str
    text: str
    """With `:named` parameters, as SQLAlchemy's `text()` takes it."""
    psycopg: str
    """With `%(named)s` parameters."""
    parameters: frozenset[str]


@cache
def load(package: str, file: str) -> dict[str, Query]:
    """The named queries of `file` in `package`, e.g. `load("counterfoil.ledger", "sql/worker.sql")`."""
    source = (files(package) / file).read_text(encoding="utf-8")
    parts = _NAME.split(source)
    return {name: _query(name, body) for name, body in zip(parts[1::2], parts[2::2], strict=True)}


def _query(name: str, body: str) -> Query:
    text = _COMMENT.sub("", body).strip().removesuffix(";")
    return Query(
        name=name,
        text=text,
        psycopg=_PARAMETER.sub(r"%(\1)s", text.replace("%", "%%")),
        parameters=frozenset(_PARAMETER.findall(text)),
    )
