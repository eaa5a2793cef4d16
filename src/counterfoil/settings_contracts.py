"""Decides which contract is in force for a tool under these settings, and refuses times that do not fit together."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from urllib.parse import urlsplit

from counterfoil.ledger.errors import ConfigError
from counterfoil.ledger.keys import DEFAULT_ACCOUNT
from counterfoil.providers.contract import Contract
from counterfoil.providers.spec import ToolSpec
from counterfoil.settings import Settings
from counterfoil.settings_providers import DAYS_30_S, ProviderSettings, is_loopback

TTL_MARGIN_SHARE = 0.25
"""Of a native key's ttl: the last quarter is not used, since providers forget keys early more often than late."""

FAST_LANDING_MAX_S = 2.0
"""Under the fast profile: the sandbox applies what it holds back within this."""

FAST_LOOKUP_LAG_S = 3.0
"""Under the fast profile: the sandbox's search indexes lag by 1 to 3 s."""


def contract_in_force(contract: Contract, provider: str, settings: Settings) -> Contract:
    """The tool's contract with the operator's times in it.

    Longer times are always taken. Shorter ones end doubt sooner than the code's author vouches for, so they are refused
    unless the provider is on this machine.
    """
    configured = settings.provider(provider)
    landing_max_s = _in_force(
        configured.landing_max_s, contract.landing_max_s, FAST_LANDING_MAX_S, configured, settings
    )
    lookup_lag_s = _in_force(configured.lookup_lag_s, contract.lookup_lag_s, FAST_LOOKUP_LAG_S, configured, settings)
    loosened = {
        "landing_max_s": landing_max_s < contract.landing_max_s,
        "lookup_lag_s": lookup_lag_s < contract.lookup_lag_s,
    }
    for name, shorter in loosened.items():
        if shorter and not configured.is_loopback:
            key = f"providers.{provider}.{name}"
            raise ConfigError(
                f"{key} is shorter than the {getattr(contract, name):g} s that the tool's code declares.",
                key=key,
                fix="Only a provider on this machine may be given less.",
            )
    # What is read by its id needs no reference; what a list of texts has to be searched for does.
    lookup = contract.lookup and (configured.reference or contract.lookup_lag_s == 0)
    return replace(contract, landing_max_s=landing_max_s, lookup_lag_s=lookup_lag_s, lookup=lookup)


def ttl_margin_s(contract: Contract, provider: str, settings: Settings) -> float:
    """How long before its end a native key is no longer trusted; 0 for a contract without one."""
    if contract.native_key_ttl_s is None:
        return 0.0
    configured = settings.provider(provider).ttl_margin_s
    if configured is not None:
        return configured
    return min(contract.native_key_ttl_s * TTL_MARGIN_SHARE, DAYS_30_S)


def check_contract(tool: str, contract: Contract, provider: str, settings: Settings) -> None:
    """Raises `ConfigError` unless the contract's times (those in force) fit these settings.

    A resend under a native key must arrive while the provider still knows it: the margin covers a pause, the request and
    its landing. The lease covers a pause, the request and the guards. The watch outlasts the landing.
    """
    configured, workers = settings.provider(provider), settings.workers
    for name in ("landing_max_s", "lookup_lag_s"):
        value = getattr(contract, name)
        if not 0 <= value <= DAYS_30_S:  # false for NaN, too
            raise ConfigError(f"{tool}: {name} must be between 0 and {DAYS_30_S} seconds.", key=name)
    call_s = workers.pause_allowance_s + configured.timeout_s
    if workers.lease_s <= call_s + workers.guard_s:
        key = f"providers.{provider}.timeout_s"
        raise ConfigError(f"{tool}: workers.lease_s must be more than {key} + pause_allowance_s + guard_s.", key=key)
    if settings.reconciler.watch_s <= contract.landing_max_s + contract.lookup_lag_s:
        key = "reconciler.watch_s"
        raise ConfigError(f"{tool}: {key} must be more than landing_max_s + lookup_lag_s.", key=key)
    ttl_s = contract.native_key_ttl_s
    if ttl_s is None:
        return
    key, margin_s = f"providers.{provider}.ttl_margin_s", ttl_margin_s(contract, provider, settings)
    needed_s = call_s + contract.landing_max_s
    if math.isnan(ttl_s) or margin_s >= ttl_s:
        raise ConfigError(f"{tool}: {key} leaves nothing of native_key_ttl_s.", key=key)
    if margin_s < needed_s:
        raise ConfigError(
            f"{tool}: {key} is {margin_s:g} s, but a pause, a request and its landing may take {needed_s:g} s.",
            key=key,
            fix="Raise it, or declare no native key where its ttl is that short.",
        )


def check_provider(tools: Iterable[ToolSpec], settings: Settings, provider: str) -> None:
    """Raises `ConfigError` unless the contracts of those of the tools that are this provider's fit these settings."""
    for spec in tools:
        if spec.provider == provider:
            check_contract(spec.name, contract_in_force(spec.contract, provider, settings), provider, settings)


def check_http_addresses(settings: Settings) -> None:
    """Raises `ConfigError` unless every account of a provider with HTTP tools has an address, and secrets of its own."""
    for provider in sorted({tool.provider for tool in settings.http.values()}):
        for account in (DEFAULT_ACCOUNT, *settings.provider(provider).accounts):
            http_address(provider, settings, account)
    for name, tool in settings.http.items():
        for header, source in tool.headers.items():
            if (source.secret_env or source.secret_file) and settings.provider(tool.provider).accounts:
                key = f"http.{name}.headers.{header}"
                fix = f'Write secret = "token", and give each account of providers.{tool.provider} its own.'
                raise ConfigError(f"{key} would send one secret for every account.", key=key, fix=fix)


def http_address(provider: str, settings: Settings, account: str = DEFAULT_ACCOUNT) -> str:
    """The address that the provider's HTTP tools are below, for one account; raises `ConfigError` unless it is one.

    Workers need it, so a sandbox may put it in; agents do not.
    """
    key = f"providers.{provider}.base_url"
    address = settings.provider(provider).through(account).base_url
    if not address:
        raise ConfigError(f"{key} is not configured.", key=key, fix="The paths of its HTTP tools are below it.")
    try:
        parts = urlsplit(address)
        plain = (
            parts.hostname and (parts.port or True) and "@" not in parts.netloc and not (parts.query or parts.fragment)
        )
    except ValueError:
        parts, plain = urlsplit(""), False
    if not plain or parts.scheme not in ("https", "http"):
        raise ConfigError(f"{key} is no address of an API.", key=key, fix="https://host/… without a login or a query.")
    secret = any(tool.provider == provider and tool.has_secret for tool in settings.http.values())
    if secret and parts.scheme == "http" and not is_loopback(address):
        raise ConfigError(
            f"{key} would be sent a secret in the clear.", key=key, fix="Use https, except on this machine."
        )
    return address


def _in_force(
    configured_s: float | None, declared_s: float, fast_s: float, provider: ProviderSettings, settings: Settings
) -> float:
    if configured_s is not None:
        return configured_s
    if settings.profile == "fast" and provider.is_loopback:
        return min(declared_s, fast_s)
    return declared_s
