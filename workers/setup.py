"""Decides what one worker process is made of, from the settings. Called by entry points, after the fork."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from counterfoil.ledger.connection import Ledger
from counterfoil.ledger.errors import ConfigError
from counterfoil.outbox.setup import check_caps, door_rules
from counterfoil.providers.contract import Contract
from counterfoil.providers.email.arguments import checked_address
from counterfoil.providers.email.config import EmailConfig, server_of
from counterfoil.providers.http.config import HttpConfig
from counterfoil.providers.http.tools import ADAPTER as HTTP_ADAPTER
from counterfoil.providers.jira.config import JiraConfig
from counterfoil.providers.pool import AdapterPool
from counterfoil.providers.registry import Registry
from counterfoil.providers.spec import ToolSpec
from counterfoil.providers.stripe.config import StripeConfig
from counterfoil.providers.zendesk.config import ZendeskConfig
from counterfoil.settings import Settings
from counterfoil.settings_contracts import check_contract, contract_in_force, http_address
from counterfoil.settings_contracts import ttl_margin_s as ttl_margin_in_force
from counterfoil.settings_providers import ProviderSettings
from counterfoil.workers.executor import Executor
from counterfoil.workers.points import Points, no_points
from counterfoil.workers.policy import Policy
from counterfoil.workers.settle import Settler

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


def terms_from(settings: Settings, registry: Registry | None = None) -> Terms:
    """Loads the tools and checks every contract against the settings. Raises `ConfigError` or `ToolDefinitionError`."""
    registry = Registry.load(settings.tools, settings.http) if registry is None else registry

    @cache
    def contract(spec: ToolSpec) -> Contract:
        return contract_in_force(spec.contract, spec.provider, settings)

    @cache
    def policy(provider: str) -> Policy:
        limits = settings.provider(provider)
        return Policy(
            timeout_s=limits.timeout_s,
            attempts_max=limits.attempts_max,
            not_sent_max=limits.not_sent_max,
            backoff_base_s=limits.backoff_base_s,
            backoff_cap_s=limits.backoff_cap_s,
            retry_after_cap_s=limits.retry_after_cap_s,
        )

    for spec in registry:
        check_contract(spec.name, contract(spec), spec.provider, settings)
        check_caps(spec, settings)
    for tool in settings.http.values():
        http_address(tool.provider, settings)
    return Terms(
        registry=registry,
        pool=AdapterPool(lambda spec: client_config(spec, settings)),
        policy=policy,
        contract=contract,
        ttl_margin_s=lambda spec: ttl_margin_in_force(contract(spec), spec.provider, settings),
    )


def executor_from(
    settings: Settings,
    *,
    worker: str | None = None,
    registry: Registry | None = None,
    points: Points = no_points,
    stopping: Callable[[], bool] = lambda: False,
) -> Executor:
    """The executor of this process, with a connection of its own."""
    terms = terms_from(settings, registry)
    name = worker or f"{socket.gethostname()}:{os.getpid()}"
    ledger = Ledger(settings.database_url(), application_name=f"counterfoil worker {name}"[:63])
    return Executor(
        ledger=ledger,
        registry=terms.registry,
        adapter=terms.pool.adapter,
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
        points=points,
        stopping=stopping,
    )


def client_config(spec: ToolSpec, settings: Settings) -> object:
    """The config of the tool's adapter: a table `[http.NAME]` may use any provider's name, a shipped one's too."""
    if spec.adapter == HTTP_ADAPTER:
        return http_config(spec.provider, settings)
    return provider_config(spec.provider, settings)


def http_config(provider: str, settings: Settings) -> HttpConfig:
    """The API's address and its tools; `ConfigError` where the address is missing or none."""
    given = settings.provider(provider)
    return HttpConfig(
        base_url=http_address(provider, settings),
        tools={name: tool for name, tool in settings.http.items() if tool.provider == provider},
        timeout_s=given.timeout_s,
        retry_after_cap_s=given.retry_after_cap_s,
    )


def provider_config(provider: str, settings: Settings) -> object:
    """The provider's own config; `ConfigError` naming the missing key. Only shipped providers have one."""
    given = settings.provider(provider)
    match provider:
        case "stripe":
            return StripeConfig(
                api_key=_needed(given.secret("api_key"), "providers.stripe.api_key"),
                base_url=given.base_url,
                timeout_s=given.timeout_s,
                retry_after_cap_s=given.retry_after_cap_s,
            )
        case "jira":
            return JiraConfig(
                server=_needed(given.server or given.base_url, "providers.jira.server"),
                email=_needed(given.email, "providers.jira.email"),
                token=_needed(given.secret("token"), "providers.jira.token"),
                timeout_s=given.timeout_s,
                retry_after_cap_s=given.retry_after_cap_s,
                staging_transition=given.staging_transition,
                staging_status=given.staging_status,
                queue_status=given.queue_status,
            )
        case "zendesk":
            return ZendeskConfig(
                server=_needed(given.server or given.base_url, "providers.zendesk.server"),
                email=given.email,
                token=_needed(given.secret("token"), "providers.zendesk.token"),
                timeout_s=given.timeout_s,
                retry_after_cap_s=given.retry_after_cap_s,
            )
        case "email":
            return email_config(given)
        case _:
            raise ConfigError(f"provider {provider!r} has no client here.", key=f"providers.{provider}")


def email_config(given: ProviderSettings) -> EmailConfig:
    """The mail server's; its password is read anew for each mail, so that a file may be replaced meanwhile."""
    server = _needed(given.server or given.base_url, "providers.email.server")
    host, port, tls = server_of(server, is_loopback=given.is_loopback)
    sender = _needed(given.email, "providers.email.email")
    try:
        checked_address(sender)
    except ValueError as error:
        raise ConfigError(f"providers.email.email is {error}.", key="providers.email.email") from None
    return EmailConfig(
        host=host,
        port=port,
        tls=tls,
        sender=sender,
        username=given.username,
        password=lambda: given.secret("token"),
    )


def _needed(value: str | None, key: str) -> str:
    if not value:
        raise ConfigError(f"{key} is not configured.", key=key, fix=f"Set it in counterfoil.toml, or {key}_file.")
    return value
