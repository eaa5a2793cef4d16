"""`python -m counterfoil.sandbox`: serves the outside world on 127.0.0.1 until it is told to stop."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from counterfoil.sandbox.server import PROVIDERS, double_of, serve
from counterfoil.sandbox.wire import ProviderRefused


def main() -> None:
    names = ", ".join(f"/{provider.name}" for provider in PROVIDERS)
    parser = argparse.ArgumentParser(
        prog="python -m counterfoil.sandbox",
        description=f"The outside world for demo and tests: {names}; control API under /_sandbox/. Loopback only.",
    )
    parser.add_argument("--port", type=int, default=8700, help="port on 127.0.0.1; 0 takes a free one (default 8700)")
    parser.add_argument(
        "--smtp-port", type=int, default=0, help="the mail server's port; 0 takes a free one (default 0)"
    )
    parser.add_argument("--imap-port", type=int, default=0, help="the mailbox's port; 0 takes a free one (default 0)")
    parser.add_argument("--data", type=Path, required=True, help="folder for its own database; made if it is missing")
    parser.add_argument("--with-stdin", action="store_true", help="stop when standard input ends: die with the parent")
    parser.add_argument(
        "--provider",
        action="append",
        default=[],
        metavar="MODULE:NAME",
        help="one more, a counterfoil.sandbox.wire.Provider of your own; may be repeated",
    )
    options = parser.parse_args()
    try:
        doubles = [double_of(place) for place in options.provider]
    except ProviderRefused as refused:
        parser.error(str(refused))
    options.data.mkdir(parents=True, exist_ok=True)
    parent_fd = sys.stdin.fileno() if options.with_stdin else None
    database = options.data / "sandbox.db"
    asyncio.run(
        serve(
            "127.0.0.1",
            options.port,
            database,
            ready=_say,
            parent_fd=parent_fd,
            smtp_port=options.smtp_port,
            imap_port=options.imap_port,
            doubles=doubles,
        )
    )


def _say(port: int) -> None:
    print(f"sandbox ready on http://127.0.0.1:{port}", flush=True)


if __name__ == "__main__":
    main()
