"""Decides where each value of a configuration comes from: a default, the profile, a line of the file, a variable.

The same order as `Settings.load` reads them in, told after the fact. A line is found by reading the file as people do; where
that fails, the line of the table around it is told.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from counterfoil.settings import FAST, FAST_PROVIDER
from counterfoil.settings_sources import NESTING, PREFIX, read_file

Key = tuple[str, ...]
"""The parts of a key, which may themselves hold dots."""

_PART = r"""(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')"""
_DOTTED = rf"{_PART}(?:\s*\.\s*{_PART})*"
_HEADER = re.compile(rf"\s*\[\[?\s*({_DOTTED})\s*\]\]?\s*(?:#.*)?$")
_ASSIGNMENT = re.compile(rf"\s*({_DOTTED})\s*=")


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value comes from; `where`: the profile's name, FILE:LINE, the variable, or nothing."""

    kind: Literal["default", "profile", "file", "environment", "local stack"]
    where: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.where}".rstrip() if self.kind == "profile" else self.where or self.kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Origins:
    """What settings were made of."""

    profile: str
    environ: Mapping[str, str]
    file: Path | None = None
    written: Mapping[str, Any]
    """What the file says."""
    over: Mapping[str, Any]
    """What stands in place of its tables, from the local stack."""
    lines: Mapping[Key, int]

    def of(self, key: Key) -> Origin:
        """Where the value of this key comes from."""
        for length in range(len(key), 0, -1):
            variable = PREFIX + NESTING.join(key[:length]).upper()
            if variable in self.environ:
                return Origin("environment", variable)
        if key[0] in self.over:
            if _holds(self.over, key):
                return Origin("local stack")
        elif self.file is not None and _holds(self.written, key):
            known = (self.lines[key[:length]] for length in range(len(key), 0, -1) if key[:length] in self.lines)
            line = next(known, None)
            return Origin("file", str(self.file) if line is None else f"{self.file}:{line}")
        fast = _holds(FAST_PROVIDER, key[2:]) if key[0] == "providers" else _holds(FAST, key)
        return Origin("profile", self.profile) if self.profile == "fast" and fast else Origin("default")


def origins(*, profile: str, file: Path | None, over: Mapping[str, Any] | None, environ: Mapping[str, str]) -> Origins:
    """What `Settings.load` has read: the file that was found, what stands over it, the environment. Raises ConfigError."""
    return Origins(
        profile=profile,
        environ={name.upper(): value for name, value in environ.items()},
        file=file,
        written={} if file is None else read_file(file),
        over=over or {},
        lines={} if file is None else lines_in(file.read_text(encoding="utf-8")),
    )


def flat(table: Mapping[str, Any], above: Key = ()) -> Iterator[tuple[Key, object]]:
    """Each key with its value, tables inside tables resolved."""
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from flat(value, (*above, name))
        else:
            yield (*above, name), value


def lines_in(text: str) -> dict[Key, int]:
    """The line of each table and each key of a TOML document."""
    found: dict[Key, int] = {}
    table: Key = ()
    quotes = ""
    for number, line in enumerate(text.splitlines(), 1):
        if quotes:  # inside of a text of several lines
            quotes = "" if quotes in line else quotes
            continue
        header, assignment = _HEADER.match(line), _ASSIGNMENT.match(line)
        if header:
            table = _parts(header[1])
            found.setdefault(table, number)
        elif assignment:
            found.setdefault((*table, *_parts(assignment[1])), number)
            quotes = next((mark for mark in ('"""', "'''") if line.count(mark) % 2), "")
    return found


def _parts(dotted: str) -> Key:
    """The parts as TOML itself reads them."""
    parts: list[str] = []
    table: Any = tomllib.loads(f"{dotted} = 0")
    while isinstance(table, dict):
        name, table = next(iter(table.items()))
        parts.append(name)
    return tuple(parts)


def _holds(table: object, key: Key) -> bool:
    for part in key:
        if not isinstance(table, Mapping) or part not in table:
            return False
        table = table[part]
    return True
