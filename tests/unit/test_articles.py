"""docs/articles.md against the tests that it names."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "articles.md").read_text(encoding="utf-8")
ENTRIES = {
    "Sagas for LLM agents": range(1, 11),
    "Make Retried Agent Actions Idempotent Before Adding Autonomy": range(12),
}
"""By title: the lines of its checklist; its opening (0) and its sections."""


def entries_of(title: str) -> dict[int, list[str]]:
    """Number → the tests named under it, in the part of the page that is about this article."""
    part = re.split(r"^## ", PAGE.partition(f"\n## {title}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    _, *pieces = re.split(r"^### (\d+)\. ", part, flags=re.MULTILINE)
    numbers, texts = pieces[::2], pieces[1::2]
    return {int(n): re.findall(r"^- `([^`]+)`$", t, re.MULTILINE) for n, t in zip(numbers, texts, strict=True)}


def names_in(path: Path) -> set[str]:
    """The names of a file's test functions."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef) if n.name[:5] == "test_"}


@pytest.mark.parametrize("title", ENTRIES)
def test_every_entry_is_there_and_shown(title: str) -> None:
    """All ten lines, and all sections, in order; at least one test under each."""
    entries = entries_of(title)
    assert list(entries) == list(ENTRIES[title])
    assert [number for number, tests in entries.items() if not tests] == []


@pytest.mark.parametrize("title", ENTRIES)
def test_every_named_test_exists(title: str) -> None:
    """Each `path::name` is a test function of that file."""
    for named in (name for tests in entries_of(title).values() for name in tests):
        path, _, function = named.partition("::")
        assert (ROOT / path).is_file(), named
        assert function in names_in(ROOT / path), named


def test_the_page_has_nothing_else() -> None:
    """Whatever looks like a test's name on the page is checked by the tests above."""
    checked = [name for title in ENTRIES for tests in entries_of(title).values() for name in tests]
    assert sorted(re.findall(r"[\w/]+\.py::\w+", PAGE)) == sorted(checked)
