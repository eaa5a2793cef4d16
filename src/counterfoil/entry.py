"""What each process of ours does before anything else: finds the tools beside it, and keeps to its own configuration."""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping

NOT_OURS = (
    "CELERY_BROKER_URL",
    "CELERY_BROKER_READ_URL",
    "CELERY_BROKER_WRITE_URL",
    "CELERY_RESULT_BACKEND",
    "CELERY_LOADER",
    "CELERY_CONFIG_MODULE",
)
"""Celery reads these before the configuration that it is given. Another program's broker would take our messages."""


def find_tools_here() -> None:
    """Modules under `tools` lie beside counterfoil.toml; last on the path, so that they hide nothing."""
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)


def keep_to_our_own(environ: MutableMapping[str, str] | None = None) -> list[str]:
    """Takes another program's Celery settings out of this process's environment, and tells which; before an app is made."""
    environ = os.environ if environ is None else environ
    found = [name for name in NOT_OURS if environ.pop(name, None)]
    if found:
        import structlog  # here, since the command line's help loads nothing that takes time

        structlog.get_logger("counterfoil.entry").warning(
            "not_our_settings", ignored=found, fix="[broker] url (COUNTERFOIL_BROKER__URL) names our broker."
        )
    return found
