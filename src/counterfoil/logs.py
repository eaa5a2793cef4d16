"""Decides how our processes log: one JSON line an event on standard error, ids and codes only, never an argument.

Entry points call `configure_logs`; as a library in somebody's agent, Counterfoil configures nothing and logs nothing.
"""

from __future__ import annotations

import logging
import sys

import structlog


def configure_logs() -> None:
    """Lines for a person where standard error is a terminal, JSON for machines elsewhere."""
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer() if sys.stderr.isatty() else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
