"""Decides what one worker process is made of, from the settings. Called by entry points, after the fork."""

from __future__ import annotations

import math
import os
import random
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

import structlog

from counterfoil.ledger.connection import Ledger
from counterfoil.outbox.setup import check_caps, door_rules
from counterfoil.providers.contract import Contract
from counterfoil.providers.pool import AdapterPool
from counterfoil.providers.registry import Registry
from counterfoil.providers.spec import ToolSpec
from counterfoil.settings import Settings
from counterfoil.settings_contracts import (
    check_contract,
    check_http_addresses,
    check_provider,
    contract_in_force,
)
from counterfoil.settings_contracts import ttl_margin_s as ttl_margin_in_force
from counterfoil.settings_providers import ProviderSettings
from counterfoil.workers.admission import Admission, FleetAdmission, Store
from counterfoil.workers.clients import client_config
from counterfoil.workers.executor import Executor
from counterfoil.workers.limiter import Limits
from counterfoil.workers.live import LiveSettings
from counterfoil.workers.points import Points, no_points
from counterfoil.workers.policy import Policy
from counterfoil.workers.settle import Settler

log: structlog.stdlib.BoundLogger = structlog.get_logger("counterfoil.setup")

KEY_VERSION = 1
"""Stored beside each key, so that a later change of secret can be told apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What the settings make of providers and tools: clients, limits, contracts in force."""

    registry: Registry
    pool: AdapterPool
    policy: Callable[[str], Policy]
    contract: Callable[[ToolSpec], Contract]
    ttl_margin_s: Callable[[ToolSpec], float]
    live: LiveSettings
    """What people change while this runs."""


def terms_from(
    settings: Settings,
    ledger: Ledger,
    registry: Registry | None = None,
    *,
    monotonic: Callable[[], float] = time.monotonic,
) -> Terms:
    """Loads the tools and checks every contract against the settings. Raises `ConfigError` or `ToolDefinitionError`.

    Limits are those in force at the time of asking, read through `ledger`; `monotonic` tells when to read them again.
    """
    registry = Registry.load(settings.tools, settings.http) if registry is None else registry
    live = LiveSettings(settings, ledger, monotonic=monotonic, check=partial(check_provider, registry))

    @cache
    def contract(spec: ToolSpec) -> Contract:
        return contract_in_force(spec.contract, spec.provider, settings)

    def policy(provider: str) -> Policy:
        limits = live.provider(provider)
        return Policy(
            timeout_s=limits.timeout_s,
            attempts_max=limits.attempts_max,
            not_sent_max=limits.not_sent_max,
            backoff_base_s=limits.backoff_base_s,
            backoff_cap_s=limits.backoff_cap_s,
            retry_after_cap_s=limits.retry_after_cap_s,
            retryable_codes=None if limits.retryable_codes is None else frozenset(limits.retryable_codes),
        )

    for spec in registry:
        check_contract(spec.name, contract(spec), spec.provider, settings)
        check_caps(spec, settings)
    check_http_addresses(settings)
    return Terms(
        registry=registry,
        pool=AdapterPool(
            lambda spec, account: client_config(spec, account, settings), secret=cache(settings.key_secret)
        ),
        policy=policy,
        contract=contract,
        ttl_margin_s=lambda spec: ttl_margin_in_force(contract(spec), spec.provider, settings),
        live=live,
    )


def executor_from(
    settings: Settings,
    *,
    worker: str | None = None,
    registry: Registry | None = None,
    points: Points = no_points,
    stopping: Callable[[], bool] = lambda: False,
    admission: Admission | None = None,
    monotonic: Callable[[], float] = time.monotonic,
) -> Executor:
    """The executor of this process, with a connection of its own."""
    name = worker or f"{socket.gethostname()}:{os.getpid()}"
    ledger = Ledger(settings.database_address(), application_name=f"counterfoil worker {name}"[:63])
    terms = terms_from(settings, ledger, registry, monotonic=monotonic)
    return Executor(
        ledger=ledger,
        registry=terms.registry,
        adapter=terms.pool.adapter,
        reach=terms.pool.reach,
        policy=terms.policy,
        contract=terms.contract,
        ttl_margin_s=terms.ttl_margin_s,
        rules=door_rules(settings),
        settler=Settler(ledger=ledger, worker=name, rng=random.Random()),
        secret=settings.key_secret(),
        key_version=KEY_VERSION,
        lease_s=settings.workers.lease_s,
        pause_allowance_s=settings.workers.pause_allowance_s,
        guard_s=settings.workers.guard_s,
        worker=name,
        admission=admission or admission_from(settings, terms.live.provider, worker=name),
        points=points,
        monotonic=monotonic,
        stopping=stopping,
    )


def limits_of(provider: ProviderSettings) -> Limits:
    """The limits that a provider's settings state. A full bucket, or a tenant's full part of it, pays for one retry, and each
    minute has room for one, unless there shall be none: what is refused for ever would wait for ever."""
    budget, breaker = provider.retry_budget, provider.breaker
    full = budget.tokens_max * (1 if budget.tenant_share is None else budget.tenant_share) or math.inf
    has_retries = budget.ratio_max > 0 or budget.retries_per_min_min > 0
    return Limits(
        tokens_max=budget.tokens_max,
        refill_per_success=budget.refill_per_success,
        refill_per_min=budget.refill_per_min,
        cost_after_timeout=min(budget.cost_after_timeout, full),
        cost_after_throttle=min(budget.cost_after_throttle, full),
        ratio_max=budget.ratio_max,
        retries_per_min_min=max(1.0, budget.retries_per_min_min) if has_retries else 0.0,
        tenant_share=budget.tenant_share,
        rate_per_s=provider.rate_per_s,
        concurrency_max=provider.concurrency_max,
        lookups_per_s=provider.lookups_per_s,
        failures_min=breaker.failures_min,
        failure_ratio=breaker.failure_ratio,
        window_ms=breaker.window_s * 1000,
        open_ms=breaker.open_s * 1000,
        open_max_ms=breaker.open_max_s * 1000,
    )


def admission_from(settings: Settings, provider: Callable[[str], ProviderSettings], *, worker: str) -> FleetAdmission:
    """This process's view of the fleet's limits. `provider`: the settings in force now."""
    url = settings.admission_url()
    store = None
    if url is None:
        log.warning("admission_is_per_process", fix="give [admission] url the address of a Redis")
    else:
        store = Store(
            url=url,
            key_prefix=settings.broker.key_prefix,
            timeout_s=settings.admission.timeout_s,
            retry_after_s=settings.admission.retry_after_s,
        )
    return FleetAdmission(limits=lambda name: limits_of(provider(name)), worker=worker, store=store)
