"""Decides how the demo is told: colours in a terminal, plain lines elsewhere, on standard error when JSON was asked for."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from counterfoil.outbox.results import Result

_COLOURS = {
    "ready": "cyan",
    "executing": "cyan",
    "uncertain": "yellow",
    "reconciling": "yellow",
    "succeeded": "green",
    "compensated": "green",
    "permanent_failure": "magenta",
    "operator_review": "bold red",
}


class Story:
    """Tells one line at a time, at once."""

    def __init__(self, *, as_json: bool) -> None:
        self._console = Console(file=sys.stderr if as_json else sys.stdout, highlight=False, soft_wrap=True)

    def head(self, text: str) -> None:
        """A new part of the story."""
        self._console.print(f"\n[bold]{escape(text)}[/bold]")

    def note(self, text: str) -> None:
        """Something that happens around."""
        self._console.print(f"  [dim]{escape(text)}[/dim]")

    def trouble(self, text: str) -> None:
        """What goes wrong."""
        self._console.print(f"  [bold red]✗[/bold red] {escape(text)}")

    def model(self, tool: str, arguments: Mapping[str, object]) -> None:
        """A call of the model's, in its words."""
        self._console.print(f"  [bold blue]model[/bold blue]  → {tool} {escape(json.dumps(dict(arguments)))}")

    def answer(self, result: Result | None) -> None:
        """What the model is told."""
        if result is None:
            self.trouble("no answer in time")
            return
        shown = result.model_dump(
            mode="json", exclude_none=True, exclude_defaults=True, exclude={"action_id", "unseen"}
        )
        self._console.print(f"  [bold blue]model[/bold blue]  ← {escape(json.dumps(shown))}")

    def move(self, row: Mapping[str, Any]) -> None:
        """A move of the ledger."""
        to_state = str(row["to_state"])
        colour = _COLOURS.get(to_state, "white")
        was = f"{row['from_state']} → " if row["from_state"] else ""
        why = " · ".join(str(part) for part in (row["reason"], row["evidence"]) if part and part != to_state)
        self._console.print(
            f"  [dim]ledger[/dim]   {row['tool']}: {was}[{colour}]{to_state}[/{colour}] [dim]{escape(why)}[/dim]"
        )

    def counts(self, counted: Mapping[str, int], expected: Mapping[str, int], seconds: float) -> None:
        """The outcome, as the outside world has it."""
        table = Table(title="What really happened, counted in the sandbox")
        for column in ("", "counted", "should be"):
            table.add_column(column, justify="right" if column else "left")
        for name, number in counted.items():
            right = number == expected[name]
            table.add_row(
                name.replace("_", " "),
                f"[green]{number}[/green]" if right else f"[bold red]{number}[/bold red]",
                str(expected[name]),
            )
        self._console.print()
        self._console.print(table)
        verdict = "as it should be" if counted == expected else "NOT as it should be"
        self._console.print(f"{verdict}, in {seconds:.0f} s")
