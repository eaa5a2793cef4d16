"""Who acts? Workers claim actions, call providers within their budgets, and settle what the answers prove.

`celery -A counterfoil.workers worker` finds its `app` here; it is made at first use, so that nothing else loads celery.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    if name == "app":
        from counterfoil.workers.celery_app import app

        return app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
