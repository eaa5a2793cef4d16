"""Decides how answers look: JSON alone with --json, tables in a terminal, plain lines anywhere else.

Targets, run ids and codes come from models and providers. Here they are inert: no markup, no control characters.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import NoReturn, TextIO

from counterfoil.ledger.errors import CounterfoilError

_SILENT = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Control, format (direction overrides among them), surrogates, line and paragraph separators."""


def clean(value: object) -> str:
    """The value on one line, without a character that a terminal would act on; "-" for None."""
    if value is None:
        return "-"
    if isinstance(value, datetime):
        return stamp(value)
    text = str(value)
    return "".join(c if unicodedata.category(c) not in _SILENT else " " if c in "\t\n\r" else "" for c in text)


def value_text(value: object) -> str:
    """A setting's value as a person writes it: 10, not 10.0."""
    return "none" if value is None else f"{value:.12g}" if isinstance(value, float) else str(value)


def stamp(at: datetime) -> str:
    """A time as people and programs read it: UTC, whole seconds."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def distance(at: datetime, now: datetime) -> str:
    """How far away a time is, in one unit: "in 4 s", "12 min ago"."""
    seconds = (at - now).total_seconds()
    size, unit = next((size, unit) for size, unit in _UNITS if abs(seconds) >= size or size == 1)
    count = f"{abs(seconds) / size:.0f} {unit}"
    return f"in {count}" if seconds > 0 else f"{count} ago"


_UNITS = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def say(text: str = "") -> None:
    """One line of an answer; whatever is not ours in it went through `clean`."""
    print(text)


def note(text: str) -> None:
    """Progress, for a person: on standard error, so that the answer stays alone on standard output."""
    print(text, file=sys.stderr, flush=True)


def progress(what: str, done: int, of: int, now: str) -> None:
    """How far a long work is, on one line of a person's terminal, which the next takes the place of."""
    if _is_decorated(sys.stderr):
        last = done + 1 == of
        print(f"\r\x1b[2K{what}: {done + 1} of {of}: {now}" + "\r\x1b[2K" * last, end="", file=sys.stderr, flush=True)


def as_json(value: object) -> None:
    """The one JSON document of an answer; times in ISO form, no ASCII control character unescaped."""
    print(json.dumps(value, ensure_ascii=True, default=_jsonable, indent=2 if sys.stdout.isatty() else None))


def facts(pairs: Sequence[tuple[str, object]]) -> None:
    """Names and values, one pair a line; pairs without a value are left out."""
    shown = [(name, value) for name, value in pairs if value is not None and value != ""]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        say(f"{name:<{width}}  {clean(value)}")


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, empty: str) -> None:
    """Rows under column names; `empty` where there are none."""
    cells = [[clean(value) for value in row] for row in rows]
    if not cells:
        say(empty)
    elif _is_decorated(sys.stdout):
        _rich_table(columns, cells)
    else:
        widths = [max(len(row[i]) for row in [list(columns), *cells]) for i in range(len(columns))]
        for row in [[name.upper() for name in columns], *cells]:
            say("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())


def is_plain() -> bool:
    """Whether standard output gets plain ASCII: pipes, files, NO_COLOR."""
    return not _is_decorated(sys.stdout)


def width() -> int:
    """Columns of the terminal, or COLUMNS, or 100."""
    return shutil.get_terminal_size((100, 24)).columns


def picture(lines: Sequence[Sequence[tuple[str, str]]]) -> None:
    """Lines made of pieces of text, each with a style; in columns, so none is broken."""
    if is_plain():
        for line in lines:
            say("".join(text for text, _ in line).rstrip())
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, markup=False, emoji=False)
    for line in lines:
        console.print(Text.assemble(*line), no_wrap=True, overflow="ignore", crop=False)


def complain(error: CounterfoilError) -> None:
    """Code and cause on one line of standard error, the fix on a second."""
    print(f"counterfoil: {_bold(error.code)}: {clean(error.message)}", file=sys.stderr)
    if error.fix:
        print(f"  fix: {clean(error.fix)}", file=sys.stderr)


def stop(code: int) -> NoReturn:
    """End with this exit code; what there was to say has been said."""
    raise SystemExit(code)


def _bold(text: str) -> str:
    return f"\x1b[1;31m{text}\x1b[0m" if _is_decorated(sys.stderr) else text


def _is_decorated(stream: TextIO) -> bool:
    """For a person's terminal; NO_COLOR, pipes and files get plain lines."""
    return stream.isatty() and not os.environ.get("NO_COLOR")


_WHOLE = frozenset({"action", "tool", "state"})
"""Columns that people copy from or look for: never broken over two lines. They have short names by the ledger's rules."""


def _rich_table(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, pad_edge=False, header_style="bold")
    for i, name in enumerate(columns):
        widest = max(len(row[i]) for row in cells) if name in _WHOLE else None
        drawn.add_column(name, no_wrap=name in _WHOLE, min_width=widest)
    for row in cells:
        drawn.add_row(*(Text(cell, overflow="fold") for cell in row))  # Text: nothing in it is markup
    Console(highlight=False, markup=False, emoji=False).print(drawn)


def _jsonable(value: object) -> object:
    if isinstance(value, datetime):
        return stamp(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple | frozenset | set):
        return sorted(value) if isinstance(value, frozenset | set) else list(value)
    return str(value)
