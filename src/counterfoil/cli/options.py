"""The options that many verbs share, under one name and with one help text each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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


def group(help_text: str) -> typer.Typer:
    """A noun."""
    return typer.Typer(
        help=help_text,
        no_args_is_help=True,
        rich_markup_mode=None,
        add_completion=False,
        pretty_exceptions_enable=False,  # they would print local variables: URLs with passwords, arguments
    )
