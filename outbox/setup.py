"""Decides what the configuration means at the door: for agents, and for the relay that takes in what others have written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from counterfoil.ledger.caps import Caps, CapTable
from counterfoil.ledger.errors import ConfigError
from counterfoil.ledger.keys import DEFAULT_ACCOUNT
from counterfoil.outbox.accounts import Accounts
from counterfoil.outbox.backlog import Backlog
from counterfoil.outbox.intents import DoorRules
from counterfoil.outbox.run_view import Limits

if TYPE_CHECKING:
    from counterfoil.providers.spec import ToolSpec
    from counterfoil.settings import Settings
    from counterfoil.settings_providers import CapSettings


def door_rules(settings: Settings) -> DoorRules:
    """What this installation demands of calls beyond what their tools declare."""
    return DoorRules(
        arguments_bytes_max=settings.limits.arguments_bytes_max,
        audiences_always=frozenset(settings.approval.audiences_always),
        approval_tools=frozenset(name for name, tool in settings.tool.items() if tool.approval == "always"),
        approval_above_minor={
            name: tool.approval_above_minor
            for name, tool in settings.tool.items()
            if tool.approval_above_minor is not None
        },
        two_person=frozenset(settings.approval.two_person),
        expiry_s=settings.approval.expiry_s,
        bulk_above=settings.approval.bulk_above,
        accounts=accounts_of(settings),
        caps=CapTable(
            tools={name: _caps(tool) for name, tool in settings.tool.items()},
            effects={name: _caps(effect) for name, effect in settings.effect.items()},
        ),
        backlog=Backlog(waiting_max=settings.limits.waiting_per_tenant_max),
    )


def accounts_of(settings: Settings) -> Accounts:
    """Which tenants have accounts of their own, and which had others before."""
    own: dict[tuple[str, str], str] = {}
    former: set[tuple[str, str, str]] = set()
    for provider, given in settings.providers.items():
        former |= {(provider, tenant, DEFAULT_ACCOUNT) for tenant in given.former_tenants}
        for name, account in given.accounts.items():
            own |= {(provider, tenant): name for tenant in account.tenants}
            former |= {(provider, tenant, name) for tenant in account.former_tenants}
    return Accounts(own=own, former=frozenset(former))


def run_limits(settings: Settings) -> Limits:
    """The caps on one run."""
    return Limits(
        calls_max=settings.limits.calls_per_run_max,
        actions_max=settings.limits.actions_per_run_max,
        refs_per_step_max=settings.limits.refs_per_step_max,
        proposals_open_max=settings.limits.proposals_open_per_run_max,
    )


def check_caps(spec: ToolSpec, settings: Settings) -> None:
    """Raises `ConfigError` for a cap on amounts of a tool that has none: it would stop every call."""
    given = settings.tool.get(spec.name)
    for name in ("amount_per_run_max_minor", "amount_per_day_max_minor"):
        if given is not None and spec.amount is None and getattr(given, name) is not None:
            key = f"tool.{spec.name}.{name}"
            raise ConfigError(f"{key}: this tool declares no amount.", key=key, fix="Use a count, or declare `amount`.")


def _caps(given: CapSettings) -> Caps:
    return Caps(
        count_per_run_max=given.count_per_run_max,
        amount_per_run_max_minor=given.amount_per_run_max_minor,
        count_per_day_max=given.count_per_day_max,
        amount_per_day_max_minor=given.amount_per_day_max_minor,
    )
