"""Decides which statuses an issue may have and which transitions lead there."""

from __future__ import annotations

from dataclasses import dataclass

from counterfoil.sandbox.wire import Json

FIRST_STATUS = "To Do"


@dataclass(frozen=True, slots=True)
class _Status:
    id: str
    category: str
    transition_id: str
    comes_from: tuple[str, ...]
    resolution: str | None = None


_STATUSES = {
    "Staged": _Status("10004", "new", "51", ("To Do",)),
    "To Do": _Status("10000", "new", "11", ("Staged", "In Progress", "Done", "Won't do")),
    "In Progress": _Status("10001", "indeterminate", "21", ("To Do", "Staged")),
    "Done": _Status("10002", "done", "31", ("To Do", "In Progress"), "Done"),
    "Won't do": _Status("10003", "done", "41", ("To Do", "In Progress", "Staged"), "Won't Do"),
}
_CATEGORY_NAMES = {"new": "To Do", "indeterminate": "In Progress", "done": "Done"}


def status_json(name: str) -> Json:
    status = _STATUSES[name]
    category = {"key": status.category, "name": _CATEGORY_NAMES[status.category]}
    return {"id": status.id, "name": name, "statusCategory": category}


def is_open(name: str) -> bool:
    return _STATUSES[name].category != "done"


def resolution_of(name: str) -> Json | None:
    resolution = _STATUSES[name].resolution
    return {"name": resolution} if resolution else None


def transitions_from(name: str) -> list[Json]:
    """Jira names a transition here as the status that it leads to."""
    return [
        {"id": status.transition_id, "name": to, "to": status_json(to), "isAvailable": True}
        for to, status in _STATUSES.items()
        if name in status.comes_from
    ]


def target_of(name: str, transition_id: str) -> str | None:
    """The status that this transition leads to from `name`; None where it is not available."""
    return next((t["name"] for t in transitions_from(name) if t["id"] == transition_id), None)
