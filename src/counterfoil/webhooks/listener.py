"""Decides what one request means: who sent it, what it names, and that the ledger is told; each in a thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from enum import Enum

import structlog

from counterfoil.ledger.address import Address
from counterfoil.ledger.connection import Ledger
from counterfoil.ledger.errors import ConfigError, LedgerUnavailable, NotAllowed
from counterfoil.ledger.events import look_now_by_key
from counterfoil.ledger.keys import DEFAULT_ACCOUNT
from counterfoil.settings import Settings
from counterfoil.settings_providers import ProviderSettings
from counterfoil.webhooks.events import named_in
from counterfoil.webhooks.signatures import PROVIDERS, BadSignature, signers

log: structlog.stdlib.BoundLogger = structlog.get_logger("counterfoil.webhooks")

THREADS = 4
"""Events at work at once, each thread with a connection of its own: one statement takes a millisecond or two."""


class Answer(Enum):
    """How a request is answered. Who has signed it is told the same whether it named anything of ours or not."""

    HEARD = 204
    BAD_SIGNATURE = 400
    AWAY = 503
    """The ledger, or a secret's file, cannot be reached: the provider sends the event again later."""


class Listener:
    """Takes events of the providers that have a webhook secret under `settings`."""

    def __init__(self, settings: Settings, *, database: str | Address, now: Callable[[], float] = time.time) -> None:
        self._settings, self._database, self._now = settings, database, now
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="counterfoil-webhooks")
        self._own = threading.local()
        self._ledgers: list[Ledger] = []

    def hears(self, provider: str) -> bool:
        """The provider's events are understood, and one of its accounts has a secret."""
        given = self._settings.providers.get(provider)
        return provider in PROVIDERS and given is not None and has_secret(given)

    def take(self, provider: str, headers: Mapping[str, str], body: bytes) -> Future[Answer]:
        """Starts on one event of a provider that is heard; header names in lower case."""
        return self._threads.submit(self._take, provider, headers, body)

    def close(self) -> None:
        """Ends what has begun, and the connections."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        for ledger in self._ledgers:
            ledger.close()

    def _take(self, provider: str, headers: Mapping[str, str], body: bytes) -> Answer:
        secrets, unreadable = read_secrets(self._settings.provider(provider))
        try:
            accounts = signers(provider, headers, body, secrets=secrets, now=self._now())
        except BadSignature as refused:
            if unreadable:  # it may be signed with that one
                log.error("webhook secrets unreadable", provider=provider, accounts=unreadable)
                return Answer.AWAY
            log.warning("webhook refused", provider=provider, code=refused.code)
            return Answer.BAD_SIGNATURE
        named = named_in(provider, body)
        if named is None or not (named.keys or named.targets):
            log.info("webhook", provider=provider, accounts=accounts, names_ours=False)
            return Answer.HEARD
        try:
            sooner = look_now_by_key(
                self._ledger(), provider=provider, accounts=accounts, keys=named.keys, targets=named.targets
            )
        except (LedgerUnavailable, NotAllowed, ConfigError) as error:
            log.error("webhook not taken", provider=provider, accounts=accounts, code=error.code)
            return Answer.AWAY
        log.info("webhook", provider=provider, accounts=accounts, names_ours=True, looked_up_sooner=sooner)
        return Answer.HEARD

    def _ledger(self) -> Ledger:
        """This thread's connection."""
        ledger: Ledger | None = getattr(self._own, "ledger", None)
        if ledger is None:
            ledger = self._own.ledger = Ledger(self._database, application_name="counterfoil webhooks")
            self._ledgers.append(ledger)
        return ledger


def has_secret(given: ProviderSettings) -> bool:
    """One of the provider's accounts is given a webhook secret."""
    reached = (given, *given.accounts.values())
    return any(reach.webhook_secret_file is not None or reach.webhook_secret_files for reach in reached)


def read_secrets(given: ProviderSettings) -> tuple[dict[str, tuple[bytes, ...]], list[str]]:
    """Each account's secrets, read now, so that a replaced one counts from the next event on; and whose cannot be read."""
    secrets: dict[str, tuple[bytes, ...]] = {}
    unreadable: list[str] = []
    for account in (DEFAULT_ACCOUNT, *given.accounts):
        try:
            secrets[account] = given.through(account).webhook_secrets()
        except ConfigError:
            unreadable.append(account)
    return secrets, unreadable
