"""A subject on an emptied sandbox, with whatever must have happened before it: what every check and measurement is given."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from counterfoil.providers.contract import Adapter, Call, Contract, Of
from counterfoil.providers.outcomes import Finding, Json, Outcome, Succeeded, Unknown
from counterfoil.sandbox.client import Attempt, Sandbox
from counterfoil.sandbox.config import Config
from counterfoil.testing.subject import Subject

TIMEOUT_S = 3.0
SHORT_TIMEOUT_S = 0.4
SLOW_S = 0.8
"""A fault's delay, longer than a client with SHORT_TIMEOUT_S waits."""
WAIT_S = 10.0
EARLIER_MAX = 5
"""Subjects that may have to happen before one another."""

KEY, NOBODY = "c0" * 16, Sandbox("http://127.0.0.1:9")


class Violation(AssertionError):
    """What was seen contradicts what an adapter must do, or what its tool declares. `rule` is its short name."""

    def __init__(self, rule: str, why: str) -> None:
        super().__init__(f"{rule}: {why}")
        self.rule, self.why = rule, why


def hold(true: bool, rule: str, why: str) -> None:
    """Raises Violation unless it is true."""
    if not true:
        raise Violation(rule, why)


@dataclass
class Stage:
    """One subject, its client and its call; the sandbox's clock is the only one that counts."""

    sandbox: Sandbox
    subject: Subject
    adapter: Adapter
    call: Call

    @property
    def contract(self) -> Contract:
        return self.subject.contract

    @property
    def looks_up(self) -> bool:
        return self.contract.lookup

    @property
    def deduplicates(self) -> bool:
        """Whether the same request twice is one effect."""
        contract = self.contract
        return self.subject.deduplicates or contract.native_key_ttl_s is not None or contract.unique

    def send(self, timeout_s: float = TIMEOUT_S) -> Outcome:
        """One attempt."""
        return self.adapter.send(self.call, timeout_s=timeout_s)

    def changed(self, arguments: Mapping[str, Json]) -> Stage:
        """The same key with some other arguments."""
        return replace(
            self, call=replace(self.call, arguments=validated(self.subject, {**self.call.arguments, **arguments}))
        )

    def lookup(self) -> Finding:
        return self.adapter.lookup([self.call], timeout_s=TIMEOUT_S)[self.call.action_id]

    def settled_lookup(self) -> Finding:
        """Asks again after Unknown, as the reconciler does: a fault may have left a dead connection in the pool."""
        finding = self.lookup()
        for _ in range(2):
            if not isinstance(finding, Unknown):
                break
            finding = self.lookup()
        return finding

    def fault(self, name: str, **more: Any) -> None:
        """The next write meets this fault."""
        self.sandbox.fault(name, provider=self.subject.provider, operation=self.subject.operation, **more)

    def attempts(self) -> list[Attempt]:
        """The writes on the wire."""
        return self.sandbox.requests(self.subject.provider, self.subject.operation)

    def effects(self) -> int:
        """What has really happened: the oracle."""
        return len(self.sandbox.effects(self.subject.effect, provider=self.subject.provider))

    def wait_for_effects(self, wanted: int) -> int:
        """The effects, after waiting for these: a request whose client is gone may still be running."""
        deadline = time.monotonic() + WAIT_S
        have = self.effects()
        while have < wanted and time.monotonic() < deadline:
            self.sandbox.requests()
            have = self.effects()
        return have

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.sandbox.now(), UTC)

    def twin(self) -> Stage:
        """The same call from another worker's client."""
        return replace(self, adapter=self.subject.adapter_at(self.sandbox))


def staged(subject: Subject, sandbox: Sandbox) -> Stage:
    """Empties the sandbox, lets its index lag by nothing, and does what the subject's call comes after."""
    sandbox.reset()
    if subject.world:
        sandbox.config(**subject.world)
    lagging(subject, sandbox, 0.0)
    return Stage(sandbox, subject, subject.adapter_at(sandbox), call_of(subject, of=_done_before(subject, sandbox, 1)))


def check_subject(subject: Subject, sandbox: Sandbox) -> None:
    """Raises for a mistake of the subject's author, before anything is sent: ValueError, ArgumentError, ConfigError."""
    each: Subject | str | None = subject
    for _ in range(EARLIER_MAX + 2):
        if each is None:
            return
        if isinstance(each, str):
            break
        each.adapter_at(sandbox)
        call_of(each)
        each = each.after
    raise ValueError(f"{subject}: `after` must be a Subject, at most {EARLIER_MAX} deep")


def check_counted(subject: Subject, sandbox: Sandbox) -> None:
    """Raises ValueError where a call is done and counted under another name than the subject's: no effect would be seen."""
    stage = staged(subject, sandbox)
    before = sandbox.effects()
    try:
        if not isinstance(stage.send(), Succeeded) or stage.effects():
            return
    except Exception:  # noqa: BLE001 - an adapter's code: the checks tell what it raises
        return
    counted = sorted({f"{effect.kind!r} of {effect.provider!r}" for effect in sandbox.effects()[len(before) :]})
    if counted:
        raise ValueError(
            f"{subject}: a call is counted as {', '.join(counted)}, and the subject waits for {subject.effect!r} of"
            f" {subject.provider!r}; the double says both: store.record_effect(PROVIDER, KIND, …)"
        )


def lagging(subject: Subject, sandbox: Sandbox, lag_s: float) -> None:
    """Lets every index of the sandbox lag by this from now on."""
    sandbox.config(search_lag_s=dict.fromkeys([*Config().search_lag_s, subject.provider], lag_s))


def call_of(subject: Subject, *, key: str = KEY, of: Of | None = None) -> Call:
    """The subject's call, as a worker would have it from the ledger."""
    arguments = validated(subject, subject.arguments)
    target = subject.target
    if target is None and subject.spec is not None:
        target = subject.spec.target_of(arguments)
    return Call(
        action_id=f"act_{subject.name}",
        tenant="acme",
        account="main",
        tool=subject.tool_name,
        key=key,
        arguments=arguments,
        target=target,
        first_sent_at=datetime.now(UTC),
        of=of,
    )


def validated(subject: Subject, arguments: Mapping[str, Json]) -> dict[str, Json]:
    """The arguments as they are recorded."""
    return dict(arguments) if subject.spec is None else subject.spec.validate(arguments)


def _done_before(subject: Subject, sandbox: Sandbox, depth: int) -> Of | None:
    first = subject.after
    if first is None:
        return None
    if isinstance(first, str):
        raise ValueError(f"{subject}: `after` must be a Subject")
    call = call_of(first, key=f"e{depth}" * 16, of=_done_before(first, sandbox, depth + 1))
    done = first.adapter_at(sandbox).send(call, timeout_s=TIMEOUT_S)
    if not isinstance(done, Succeeded):
        raise Violation("plain", f"{first}, which comes before, did not succeed: {done}")
    return Of(action_id="act_first", tool=first.tool_name, key=call.key, receipt=done.id, arguments=call.arguments)
