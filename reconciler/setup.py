"""Decides what one reconciling process is made of, from the settings. Called by entry points, after the fork."""

from __future__ import annotations

import os
import random
import socket
import time
from collections.abc import Callable
from functools import partial

from counterfoil.ledger.connection import Ledger
from counterfoil.outbox.setup import accounts_of
from counterfoil.providers.registry import Registry
from counterfoil.reconciler.budget import LookUpBudget
from counterfoil.reconciler.conclusions import Conclusions
from counterfoil.reconciler.escalate import Escalation
from counterfoil.reconciler.health import Health
from counterfoil.reconciler.hooks import Command, Hook, Webhook
from counterfoil.reconciler.lookups import LookUps
from counterfoil.reconciler.notify import Notifier
from counterfoil.reconciler.ticks import ORPHAN_AFTER_S, Reconciler
from counterfoil.reconciler.unwind import Unwinder
from counterfoil.reconciler.versions import VersionReads
from counterfoil.reconciler.watch import Watch
from counterfoil.settings import Settings
from counterfoil.workers.admission import Admission
from counterfoil.workers.setup import admission_from, terms_from


def reconciler_from(
    settings: Settings,
    *,
    by: str | None = None,
    registry: Registry | None = None,
    admission: Admission | None = None,
    monotonic: Callable[[], float] = time.monotonic,
) -> Reconciler:
    """The reconciler of this process, with a connection of its own. `admission`: whose rate its look-ups
    take; None = the fleet's."""
    name = by or f"reconciler {socket.gethostname()}:{os.getpid()}"
    ledger = Ledger(settings.database_address(), application_name=f"counterfoil {name}"[:63])
    terms = terms_from(settings, ledger, registry, monotonic=monotonic)
    sweeps, rng = settings.reconciler, random.Random()
    if admission is None:
        admission = admission_from(settings, terms.live.provider, worker=name)
    budget = LookUpBudget(admission=admission)
    health = Health(ledger=ledger, uncertain_max_s=lambda provider: terms.live.provider(provider).uncertain_max_s)
    return Reconciler(
        ledger=ledger,
        look_ups=LookUps(
            ledger=ledger,
            registry=terms.registry,
            adapter=terms.pool.adapter,
            reach=terms.pool.reach,
            policy=terms.policy,
            contract=terms.contract,
            conclusions=Conclusions(
                ledger=ledger,
                policy=terms.policy,
                contract=terms.contract,
                ttl_margin_s=terms.ttl_margin_s,
                health=health,
                base_s=sweeps.lookup_base_s,
                skew_s=sweeps.skew_s,
                by=name,
                rng=rng,
            ),
            budget=budget,
            health=health,
            uncertain_after_s=sweeps.uncertain_after_s,
            batch=sweeps.lookup_batch_max,
            lease_s=sweeps.lookup_lease_s,
            by=name,
            rng=rng,
        ),
        versions=VersionReads(
            ledger=ledger,
            registry=terms.registry,
            adapter=terms.pool.adapter,
            policy=terms.policy,
            accounts=accounts_of(settings),
            lease_s=sweeps.lookup_lease_s,
            base_s=sweeps.lookup_base_s,
            orphan_after_s=ORPHAN_AFTER_S,
            by=name,
        ),
        unwinder=Unwinder(ledger=ledger, registry=terms.registry, accounts=accounts_of(settings), by=name),
        notifier=notifier_from(settings, ledger),
        escalation=Escalation(
            ledger=ledger,
            registry=terms.registry,
            contract=terms.contract,
            uncertain_max_s=lambda provider: terms.live.provider(provider).uncertain_max_s,
            by=name,
        ),
        watcher=Watch(
            ledger=ledger,
            registry=terms.registry,
            adapter=terms.pool.adapter,
            reach=terms.pool.reach,
            policy=terms.policy,
            contract=terms.contract,
            budget=budget,
            watch_s=sweeps.watch_s,
            uncertain_after_s=sweeps.uncertain_after_s,
            batch=sweeps.lookup_batch_max,
            lease_s=sweeps.lookup_lease_s,
            by=name,
        ),
        by=name,
        lost_after_s=settings.relay.lost_after_s,
        sweep_budget_s=max(1.0, sweeps.sweep_every_s),
    )


def notifier_from(settings: Settings, ledger: Ledger) -> Notifier:
    """Who tells people what waits for them: a worker, and where none is up the relay."""
    return Notifier(
        ledger=ledger,
        hooks=partial(hooks_from, settings),
        timeout_s=settings.notify.timeout_s,
        batch=settings.notify.batch_max,
        remind_ratio=settings.notify.remind_ratio,
    )


def hooks_from(settings: Settings) -> tuple[Hook, ...]:
    """Whom the configuration has told; nobody by default. Reads the secret address here, in workers only."""
    notify = settings.notify
    hooks: list[Hook] = []
    if notify.command:
        hooks.append(Command(arguments=notify.command, timeout_s=notify.timeout_s))
    address = notify.webhook()
    if address is not None:
        hooks.append(Webhook(url=address, timeout_s=notify.timeout_s))
    return tuple(hooks)
