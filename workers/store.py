"""Decides how a process asks the script in Redis, and for how long it leaves one alone that does not answer.

Redis is loaded at the first ask: an executor in a program without a store needs no client for one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import structlog

from counterfoil.outbox.addresses import read_redis
from counterfoil.workers.fleet_limits import Limits

log: structlog.stdlib.BoundLogger = structlog.get_logger("counterfoil.admission")


class StoreAway(Exception):
    """The store did not answer, or not as it should."""


@dataclass(slots=True, kw_only=True)
class Store:
    """The script in Redis. Leaves a store that failed alone for a while, so that no batch waits for it."""

    url: str
    key_prefix: str
    timeout_s: float
    retry_after_s: float
    monotonic: Callable[[], float] = time.monotonic
    now_ms: Callable[[], float] | None = None
    """Tests and simulations only: else the server's clock counts."""
    _script: Any = None
    _away_until: float = float("-inf")
    _is_away: bool = False

    def ask(self, op: str, provider: str, limits: Limits, asked: dict[str, Any]) -> Any:
        """One round trip. Raises `StoreAway`."""
        if self.monotonic() < self._away_until:
            raise StoreAway
        from redis import RedisError

        now = "" if self.now_ms is None else repr(self.now_ms())
        try:
            said = self._loaded()(
                keys=[f"{self.key_prefix}admission:{provider}"],
                args=[op, json.dumps(_plain(limits)), json.dumps(asked), now],
            )
            answer = json.loads(said)
        except (RedisError, OSError, ValueError) as error:
            self.close()  # one that answers with an error may be a server that was demoted: the next is asked anew
            self._gone(error)
            raise StoreAway from error
        if self._is_away:
            self._is_away = False
            log.info("admission_store_back")
        return answer

    def close(self) -> None:
        """Ends the connection; the next ask opens one."""
        from redis import RedisError

        script, self._script = self._script, None
        if script is not None:
            with suppress(RedisError, OSError):  # it may be broken already
                script.registered_client.close()

    def _loaded(self) -> Any:
        if self._script is None:
            from counterfoil.workers.redis_client import redis_client

            client = redis_client(read_redis(self.url), timeout_s=self.timeout_s)
            text = (files("counterfoil.workers") / "admission.lua").read_text(encoding="utf-8")
            self._script = client.register_script(text)
        return self._script

    def _gone(self, error: Exception) -> None:
        self._away_until = self.monotonic() + self.retry_after_s
        if not self._is_away:
            self._is_away = True
            log.error("admission_store_away", error=f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")


def _plain(limits: Limits) -> dict[str, Any]:
    return {name: getattr(limits, name) for name in limits.__dataclass_fields__}
