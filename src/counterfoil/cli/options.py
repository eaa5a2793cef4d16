"""The options that many verbs share, under one name and with one help text each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from counterfoil.ledger.errors import ArgumentError

ConfigPath = Annotated[
    Path | None,
    typer.Option(
        "--config", metavar="PATH", help="Configuration file; else COUNTERFOIL_CONFIG, else ./counterfoil.toml."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
Tenant = Annotated[str | None, typer.Option("--tenant", metavar="TENANT", help="Only this tenant's.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, do nothing.")]
Limit = Annotated[int, typer.Option("--limit", min=1, max=10_000, help="At most this many.")]
Reason = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; kept in the history.")]


PREFIX_CHARS_MIN = 4
"""Fewer signs of an id name nothing: an empty variable of a script must not decide on whatever is alone."""


def id_typed(typed: str, argument: str) -> str:
    """The first signs of a proposal's or a correction's id, in capitals as they are. Raises ArgumentError: too few."""
    if len(typed.strip()) < PREFIX_CHARS_MIN:
        raise ArgumentError(
            f"{typed!r} is too short.", path=argument, code="usage", fix=f"At least {PREFIX_CHARS_MIN} signs of the id."
        )
    return typed.strip().upper()


def group(help_text: str) -> typer.Typer:
    """A noun."""
    return typer.Typer(
        help=help_text,
        no_args_is_help=True,
        rich_markup_mode=None,
        add_completion=False,
        pretty_exceptions_enable=False,  # they would print local variables: URLs with passwords, arguments
    )
