"""Every shipped tool, and every subject of `subjects/`, each with the tool that it is about and what comes before it."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from pathlib import Path

from tests.conformance.subjects.warehouse import HTTP

from counterfoil import providers
from counterfoil.providers.registry import Registry
from counterfoil.testing import Subject

MODULES = [
    f"counterfoil.providers.{folder.name}.tools"
    for folder in sorted(Path(providers.__file__).parent.iterdir())
    if (folder / "tools.py").is_file() and folder.name != "http"
]
SECRETS = ("sk_test_sandbox", "re_sandbox", "Bearer ", "Basic ")
"""Credentials of the subjects' clients, and what stands before them on the wire."""
TOOLS = Registry.load(MODULES, HTTP)


def subjects() -> dict[str, Subject]:
    """Of every module beside `subjects/subject.py`."""
    folder = Path(__file__).parent / "subjects"
    modules = [import_module(f"tests.conformance.subjects.{path.stem}") for path in sorted(folder.glob("*.py"))]
    given = {subject.name: subject for module in modules for subject in getattr(module, "SUBJECTS", ())}
    return {name: _linked(subject, given) for name, subject in given.items()}


def _linked(subject: Subject, given: dict[str, Subject]) -> Subject:
    after = given[subject.after] if isinstance(subject.after, str) else subject.after
    return replace(
        subject,
        tool=subject.tool or TOOLS.find(subject.name),
        after=None if after is None else _linked(after, given),
        secrets=(*subject.secrets, *SECRETS),
    )


SUBJECTS = subjects()
