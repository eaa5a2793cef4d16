"""What the documents say against what the code has: links, diagrams, verbs, settings, guards, moves."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer.main
from pydantic import BaseModel

from counterfoil.cli.main import app
from counterfoil.ledger.states import ARROWS
from counterfoil.outbox.results import Status
from counterfoil.settings import Settings
from counterfoil.settings_http import HttpTool
from counterfoil.settings_providers import EffectSettings, ProviderSettings, RetryBudget, ToolSettings
from counterfoil.settings_sources import NESTING, NO_SETTINGS, PREFIX

ROOT = Path(__file__).parents[2]
PAGES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
}
README = PAGES["README.md"]
FOLDERS = ("ledger", "outbox", "providers", "workers", "reconciler", "src/counterfoil")


def load(path: str) -> ModuleType:
    """A script of the repository as a module."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def code_in(page: str) -> str:
    """Everything that the page shows as code, a line each."""
    fenced = re.findall(r"^```\w*\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    inline = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", page, flags=re.DOTALL | re.MULTILINE))
    return "\n".join([*fenced, *inline])


def commands_in(page: str) -> Iterator[list[str]]:
    """The words of each `counterfoil …` in the page's code, as a shell would pass them."""
    for line in code_in(page).splitlines():
        for found in re.findall(r"(?:^|&& |\"\$\()counterfoil ([a-z][^&|;)#]*)", line):
            yield shlex.split(found)


def verbs() -> dict[str, Any]:
    """`noun verb` → its command, for every command that there is."""
    top: Any = typer.main.get_command(app)
    found = {}
    for name, command in top.commands.items():
        for verb, inner in getattr(command, "commands", {"": command}).items():
            found[f"{name} {verb}".strip()] = inner
    return found


TABLES: dict[str, type[BaseModel]] = {
    "providers": ProviderSettings,
    "tool": ToolSettings,
    "effect": EffectSettings,
    "http": HttpTool,
}
"""Settings that are tables by a name of the user's."""


def settings_keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Every key of the configuration, dotted; a retry budget counts as one."""
    for name, field in model.model_fields.items():
        kind: Any = TABLES.get(prefix + name, field.annotation)
        if isinstance(kind, type) and issubclass(kind, BaseModel) and kind is not RetryBudget:
            between = ".NAME." if kind in TABLES.values() else "."
            yield from settings_keys(kind, prefix + name + between)
        else:
            yield prefix + name


KEYS = frozenset(settings_keys(Settings))


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    """A relative link names a file or folder of the repository, a fragment a heading of the page that it is in."""
    for link in re.findall(r"\]\(([^)\s]+)\)", PAGES[page]):
        if link.startswith("https://"):
            continue
        path, _, fragment = link.partition("#")
        there = ((ROOT / page).parent / path).resolve() if path else ROOT / page
        assert there.exists(), link
        headings = [
            re.sub(r"[^\w -]", "", h).lower().replace(" ", "-")
            for h in re.findall(r"^#+ (.+)$", there.read_text() if fragment else "", re.MULTILINE)
        ]
        assert not fragment or fragment in headings, link


def test_the_states_page_is_current() -> None:
    """The table and the diagram are what `python docs/generate.py` would write."""
    page = PAGES["docs/states.md"]
    made = load("docs/generate.py")
    assert made.written(page) == page
    assert made.diagram() in page
    assert made.table() in page


def test_the_providers_page_is_current() -> None:
    """The table of tools is what `python docs/generate.py` would write: every shipped tool with what it promises."""
    page = PAGES["docs/providers.md"]
    made = load("docs/generate.py")
    assert made.written_providers(page) == page
    assert made.grades() in page


def test_readme_s_diagram_has_real_moves_only() -> None:
    """The main road that README draws is a part of the table of moves."""
    moves = re.findall(r"^  (\w+) --> (\w+)", README, re.MULTILINE)
    assert len(moves) > 10
    assert [move for move in moves if move[1] not in ARROWS[move[0]]] == []  # type: ignore[index] - a StrEnum's value


def test_readme_tells_every_status() -> None:
    """The table of statuses has each of them."""
    section = README.partition("## What the caller and the model are told")[2].partition("\n## ")[0]
    first_cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    assert sorted(re.findall(r"`(\w+)`", "".join(first_cells))) == sorted(Status)


@pytest.mark.parametrize("page", PAGES)
def test_commands_exist(page: str) -> None:
    """Every `counterfoil …` that a page shows is a command, and has the options that it is given."""
    known = verbs()
    for words in commands_in(PAGES[page]):
        name = next((n for n in (" ".join(words[:2]), words[0]) if n in known), None)
        assert name is not None, words
        options = {o for p in known[name].params for o in [*p.opts, *p.secondary_opts]}
        assert [w for w in words if w.startswith("-") and w.partition("=")[0] not in options] == [], words


def test_readme_lists_every_command() -> None:
    """The command line's table is complete."""
    section = README.partition("## Command line")[2].partition("\n## ")[0]
    listed = [re.sub(r"^counterfoil ", "", c) for c in re.findall(r"`(counterfoil [a-z -]+)`", section)]
    assert sorted(listed) == sorted(verbs())


def test_make_targets_exist() -> None:
    """Every `make …` that a page shows is a target."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES.values():
        for line in code_in(page).splitlines():
            assert set(re.findall(r"^make ([a-z-]+)", line)) <= targets, line


def test_readme_tells_every_extra() -> None:
    """The table of extras has each of pyproject's."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    section = README.partition("| extra |")[2].partition("\n\n")[0]
    listed = re.findall(r"`([a-z_]+)`", "".join(line.split("|")[1] for line in section.splitlines()[2:]))
    assert sorted(listed) == sorted(project["optional-dependencies"])


def test_readme_tells_every_folder() -> None:
    """The table of folders has each one that the wheel is made of."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    for folder in project["tool"]["hatch"]["build"]["targets"]["wheel"]["only-include"]:
        assert f"| `{folder}/` |" in README


@pytest.mark.parametrize("page", PAGES)
def test_settings_exist(page: str) -> None:
    """Every variable and every dotted key that a page names can be set."""
    for variable in re.findall(rf"{PREFIX}[A-Z0-9_]*[A-Z0-9]", PAGES[page]):
        key = variable.removeprefix(PREFIX).lower().replace(NESTING, ".")
        assert variable in NO_SETTINGS or key in KEYS, variable
    sections = "|".join(Settings.model_fields)
    for key in re.findall(rf"`((?:{sections})\.[A-Za-z_.]+)`", PAGES[page]):
        assert key in KEYS, key


SPARED = {
    "database.key_secret_file": "read by a method of the settings",
    "providers.NAME.api_key_file": "read by a method of the settings",
    "providers.NAME.token_file": "read by a method of the settings",
    "notify.url_file": "read by a method of the settings",
}
"""Keys that no code outside the settings names, and why they are in force all the same."""


def test_settings_without_effect_are_told() -> None:
    """The page lists exactly the keys that nothing reads: whoever puts one in force takes it off the list."""
    code = "\n".join(
        path.read_text()
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*.py")
        if not path.name.startswith("settings")
    )
    unread = {key for key in KEYS if not re.search(rf"\.{key.rpartition('.')[2]}\b", code)}
    section = PAGES["docs/configuration.md"].partition("## Accepted, and not in force yet")[2]
    told = set(re.findall(r"`([\w.]+)`", "".join(line.split("|")[1] for line in section.splitlines() if "|" in line)))
    assert unread >= set(SPARED)
    assert told == unread - set(SPARED)

    sample = (ROOT / "examples" / "counterfoil.toml").read_text()
    lines = re.sub(r"(?s)\[providers\.stripe\.retry_budget\].*?\n\n", "", sample).splitlines()
    shown = {line.partition(" = ")[0]: "(not in force yet)" in line for line in lines if " = " in line}
    names = {key.rpartition(".")[2] for key in told}
    assert {name for name, marked in shown.items() if marked} == names & set(shown)


def test_guards_are_told() -> None:
    """docs/guards.md has each guard that can be switched off, in order, beside the test that is marked with it."""
    guards = list(load("tests/guards/switched_off.py").GUARDS)
    rows = re.findall(r"^\| `(\w+)` \|.*\| `(\w+)` \|$", PAGES["docs/guards.md"], re.MULTILINE)
    assert [guard for guard, _ in rows] == guards
    tests = (ROOT / "tests" / "acceptance" / "test_guards.py").read_text()
    for guard, test in rows:
        assert re.search(rf'guard\("{guard}"\)\ndef {test}\(', tests), guard


NOT_OURS = re.compile(
    r"\.\./shared|(?<![\w/])/wor[k]/|(?:DESIGN|CONVENTIONS)\.md|\u00a7 ?\d"
    r"|(?:p[y]pi|np[m]js|pythonhoste[d]|cr[a]tes)\.(?:org|io|com)|proxy\.golang|\bissues? #?\d"
)


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="the list of tracked files is git's")
def test_files_speak_of_the_project_alone() -> None:
    """No tracked file names a place outside the repository, a registry's host or a tracker's numbers."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    found = []
    for name in listed.split("\0"):
        path = ROOT / name
        if name and path.is_file() and path != Path(__file__) and name != "LICENSE":
            text = path.read_text(encoding="utf-8", errors="replace")
            found += [f"{name}: {match[0]}" for match in NOT_OURS.finditer(text)]
    assert found == []
