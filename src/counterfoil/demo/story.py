"""Decides how the demo is told: short lines as things happen, coloured in a terminal, on standard error beside JSON.

Red is what lies, dies or goes wrong in the world; green is the evidence that decides.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from counterfoil.sandbox.client import Effect

_SPEAKERS = {"model": "bold blue", "world": "bold", "ledger": "cyan", "cache": "yellow", "undo": "magenta"}

_STATES = {
    "ready": "cyan",
    "uncertain": "yellow",
    "succeeded": "green",
    "compensated": "green",
    "permanent_failure": "magenta",
    "operator_review": "bold red",
}
_UNTOLD = {"executing", "reconciling"}

_ACTS = {
    "search_orders": "The order",
    "jira_create": "A refund ticket",
    "stripe_charge": "The re-shipping fee. The process dies with Stripe's answer in its hands",
    "warehouse_reship": "The new parcel. The warehouse says no",
}
_LIE = ". Jira makes it, and the gateway in front of it answers 504"


_LEGEND = {
    "model": "what the model asks for (→) and hears (←); one script for both",
    "world": "what has really happened at Jira, at Stripe, in the customer's mail",
    "ledger": "what Counterfoil has written down",
}


class Story:
    """Tells one line at a time, at once."""

    def __init__(self, *, as_json: bool, lies: bool) -> None:
        file = sys.stderr if as_json else sys.stdout
        self._console = Console(file=file, highlight=False, emoji=False)
        self._is_terminal = self._console.is_terminal
        self._acts = _ACTS | ({"jira_create": _ACTS["jira_create"] + _LIE} if lies else {})
        self._begun: set[str] = set()
        self._happened: Counter[str] = Counter()

    def part(self, title: str, under: str) -> None:
        """A half of the story begins."""
        self._begun.clear()
        self._happened.clear()
        self._print("")
        self._print(f"[bold reverse] {escape(title)} [/bold reverse]  [dim]{escape(under)}[/dim]")

    def legend(self) -> None:
        """Who speaks in what follows."""
        self._print("")
        for who, text in _LEGEND.items():
            self._says(who, f"[dim]{escape(text)}[/dim]")

    def act(self, text: str) -> None:
        """A new part of a half."""
        self._print(f"\n[bold]{escape(text)}[/bold]")

    def note(self, text: str) -> None:
        """Something that happens around."""
        self._print(f"  [dim]{escape(text)}[/dim]")

    def trouble(self, text: str) -> None:
        """What the demo itself cannot do."""
        self._print(f"  [bold red]✗ {escape(text)}[/bold red]")

    def killed(self, pid: int, text: str) -> None:
        """A process has died."""
        self._print(f"  [bold red]✗ kill -9 {pid}[/bold red]  [red]{escape(text)}[/red]")

    def comes_back(self) -> None:
        """The agent lives again."""
        self.act("The agent comes back. It knows what its transcript says: the fee was decided on")

    def invite(self, what: str, pid: int, limit_min: float) -> None:
        """It is a person's turn."""
        self._print(f"\n  [bold yellow]Your turn:[/bold yellow] {escape(what)}.")
        self._print(f"  In another terminal:\n\n      [bold]kill -9 {pid}[/bold]\n")
        self._print(f"  [dim](or Enter, and it is done for you; Ctrl-C ends the demo; {limit_min:.0f} min)[/dim]\n")

    def event(self, event: Mapping[str, Any], harness: str) -> None:
        """A move of the agent's."""
        match event["what"]:
            case "call":
                tool = str(event["tool"])
                if tool not in self._begun:
                    self._begun.add(tool)
                    self.act(self._acts.get(tool, tool))
                self._says("model", f"→ {tool} {escape(_words(tool, event['arguments']))}")
            case "answer":
                self._says("model", f"← {_answer(event['status'], event['result'])}")
            case "cached":
                self._says("cache", "[red]the same arguments as before: the old answer again[/red]")
            case "give_up":
                source = "transcript" if harness == "naive" else "ledger"
                self.act(f"The model gives up, so the run is taken back, by what the {source} says")
            case "undo":
                self._says("undo", escape(f"{event['does']} {_short(event.get('id', ''))}".rstrip()))
            case "believed":
                self._says("undo", f"[red]{escape(event['text'])}[/red]")
            case "undone":
                is_good = event["status"] == "succeeded"
                self._says("undo", escape(event["code"]) if is_good else f"[red]{escape(event['code'])}[/red]")

    def world(self, effect: Effect) -> None:
        """Something has really happened at a provider."""
        self._happened[effect.kind] += 1
        text, is_once = _EFFECTS.get(effect.kind, (effect.kind.replace("_", " "), False))
        text = text.format(id=_short(effect.object_id), amount=money(effect.amount or 0), to=effect.data.get("to"))
        is_wrong = effect.kind == "customer_message" or (is_once and self._happened[effect.kind] > 1)
        if is_once and self._happened[effect.kind] > 1:
            text += "  ← the second one"
        self._says("world", f"[red]{escape(text)}[/red]" if is_wrong else escape(text))

    def move(self, row: Mapping[str, Any]) -> None:
        """A move of the ledger; claims and the start of a look-up are told by what comes of them."""
        to_state = str(row["to_state"])
        if to_state in _UNTOLD:
            return
        state, why = to_state.replace("_", " "), _why(row)
        if why:
            state = f"{state:<17}"
            why = f" [{'bold green' if row['reason'] == 'found' else 'dim'}]{escape(why)}[/]"
        self._says("ledger", f"{row['tool']:<16} [{_STATES.get(to_state, 'white')}]{state}[/]{why}")

    def table(self, rows: Sequence[tuple[str, Mapping[str, object], object]], columns: Sequence[str]) -> None:
        """What really happened, side by side: each row a name, its value by column, and what it should be."""
        self.act("What really happened, counted at the providers")
        table = Table(box=SIMPLE_HEAD)
        table.add_column("what happened")
        for column in [*columns, "should be"]:
            table.add_column(column, justify="right")
        for name, values, wanted in rows:
            cells = [
                f"[green]{values[column]}[/green]"
                if values[column] == wanted
                else f"[bold red]{values[column]}[/bold red]"
                for column in columns
            ]
            table.add_row(name, *cells, str(wanted))
        self._console.print(table)

    def end(self, text: str, *, is_good: bool, why: Sequence[str] = ()) -> None:
        """The last lines."""
        for line in why:
            self._print(escape(line))
        self._print(f"\n[{'bold green' if is_good else 'bold red'}]{escape(text)}[/]")

    def _says(self, who: str, text: str) -> None:
        self._print(f"  [{_SPEAKERS[who]}]{who:<7}[/] {text}")

    def _print(self, markup: str) -> None:
        if self._is_terminal:
            self._console.print(markup, no_wrap=True, overflow="ellipsis")
        else:
            self._console.print(markup, soft_wrap=True)


_EFFECTS = {
    "ticket": ("{id} is in the team's queue", True),
    "transition": ("{id} is closed: {to}", False),
    "charge": ("{amount} is taken from the card, {id}", True),
    "refund": ("{amount} is given back", True),
    "customer_message": ("the customer reads an apology for a fee that nobody had noticed", False),
}
"""What is told of an effect, and whether it should happen once."""


def _words(tool: str, arguments: Mapping[str, Any]) -> str:
    match tool:
        case "jira_create":
            return f'"{arguments["summary"]}"'
        case "stripe_charge":
            more = f' "{arguments["description"]}"' if "description" in arguments else ""
            return f"{money(int(arguments['amount_minor']))}{more}"
        case _:
            more = f', "{arguments["note"]}"' if "note" in arguments else ""
            return f"order {arguments['order_id']}{more}"


def _answer(status: str, result: object) -> str:
    """One short line of an answer, in whichever form a harness gives it."""
    if not isinstance(result, Mapping):
        colour = (
            "red" if str(result).startswith("HTTP 5") else "yellow"
        )  # a server's error says nothing, a refusal does
        return f"[{colour}]{escape(status)}: {escape(str(result))}[/]"
    value = result.get("value", result) or {}
    if status != "succeeded":
        said = " · ".join(str(result[name]) for name in ("code", "next_step") if result.get(name, "none") != "none")
        meanwhile = [_short(str((each.get("value") or {}).get("id"))) for each in result.get("unseen") or ()]
        said += f": {', '.join(meanwhile)}" if meanwhile else ""
        return f"[yellow]{escape(status)}[/yellow] {escape(said)}"
    known = value.get("key") or value.get("id") or value.get("status") or ""
    asked = result.get("arguments")
    as_recorded = f"  [dim](recorded: {escape(_words_of(asked))})[/dim]" if isinstance(asked, Mapping) else ""
    return f"{escape(status)} {escape(_short(str(known)))}{as_recorded}"


def _words_of(arguments: Mapping[str, Any]) -> str:
    return f'"{arguments["summary"]}"' if "summary" in arguments else "as first asked"


_REASONS = {
    "proposed": "intent recorded, nothing sent yet",
    "unwind": "the counter-action is recorded",
    "outcome unknown": "{evidence} proves nothing",
    "absent_too_early": "not found yet, which proves nothing",
    "lease lapsed": "no word from the worker that had it",
    "found": "found {found}: nothing is sent",
    "refused": "the provider says no: {evidence}",
}
"""In a reader's words; what is not here says nothing that the states do not."""


def _why(row: Mapping[str, Any]) -> str:
    evidence = str(row["evidence"] or "")
    return _REASONS.get(str(row["reason"]), "").format(
        evidence=evidence, found=_short(evidence.rpartition("found ")[2])
    )


def _short(object_id: str) -> str:
    return f"{object_id[:11]}…" if len(object_id) > 24 else object_id


def money(minor: int) -> str:
    return f"${minor / 100:.2f}"
