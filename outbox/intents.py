"""Decides what is recorded for a call: arguments checked at the door, and everything that follows from them.

Whatever is refused is refused here, before any row exists.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from counterfoil.ledger.canonical import BYTES_MAX, canonical_json, parse_arguments, sha256_of
from counterfoil.ledger.caps import CapTable
from counterfoil.ledger.errors import ArgumentError
from counterfoil.ledger.keys import (
    ACTOR_CHARS_MAX,
    RUN_CHARS_MAX,
    TENANT_CHARS_MAX,
    ActionId,
    action_id,
    check_id,
)
from counterfoil.outbox.accounts import NO_ACCOUNTS, Accounts
from counterfoil.outbox.backlog import Backlog
from counterfoil.providers.contract import ToolClass
from counterfoil.providers.outcomes import Json
from counterfoil.providers.spec import AUDIENCES_APPROVED, ToolSpec

REF_CHARS_MAX = 400
REASON_CHARS_MAX = 500
NOTE_CHARS_MAX = 2000
VERSION_CHARS_MAX = 255
IDS_BYTES_MAX = 2400
"""Tenant, run and step (or ref) together, in UTF-8: one row of a Postgres index holds 2704 bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DoorRules:
    """What the installation's configuration says about calls; it can only tighten what a tool declares."""

    arguments_bytes_max: int = BYTES_MAX
    audiences_always: frozenset[str] = AUDIENCES_APPROVED
    """What these audiences see needs an approval, whatever the tool says."""
    approval_tools: frozenset[str] = frozenset()
    """Tools that need an approval here."""
    approval_above_minor: Mapping[str, int] = field(default_factory=dict)
    """By tool: amounts above this need an approval."""
    two_person: frozenset[str] = frozenset()
    """Tools whose approval takes two persons."""
    expiry_s: float = 86_400.0
    """How long a proposal may wait for its decision, and an approved action for its first attempt."""
    bulk_above: int = 1
    """Irreversible actions of one effect in one run beyond this many need an approval, whatever the code says."""
    accounts: Accounts = NO_ACCOUNTS
    """Whose credentials a tenant's actions go by."""
    caps: CapTable = field(default_factory=CapTable)
    """How many, and how much, of a tool or an effect a run and a tenant's day may hold."""
    backlog: Backlog = field(default_factory=Backlog)
    """How much of a tenant's may wait before nothing more is recorded."""

    def needs_approval(
        self, spec: ToolSpec, audience: Sequence[str], amount_minor: int | None, *, has_correction: bool
    ) -> bool:
        """What the code asks for, and what the configuration asks for beyond it. A bulk is judged where it is recorded."""
        above = self.approval_above_minor.get(spec.name)
        return (
            spec.needs_approval(audience)
            or (spec.cls is ToolClass.IRREVERSIBLE and spec.correction is not None and not has_correction)
            or spec.name in self.approval_tools
            or not self.audiences_always.isdisjoint(audience)
            or (above is not None and (amount_minor is None or amount_minor > above))
        )


DOOR_RULES = DoorRules()


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """One row to record: the parameters of the ledger's `propose`, under the same names."""

    action_id: ActionId
    tenant: str
    run: str
    step: str
    seq: int | None
    revision: int
    actor: str
    tool: str
    tool_version: int
    class_: str
    effect: str
    target: str
    provider: str
    account: str
    queue: str
    arguments: str = field(repr=False)
    arguments_sha256: str
    audience: tuple[str, ...]
    compensation: str | None = field(repr=False)
    once_key: str | None
    repeat_reason: str | None
    amount_minor: int | None
    currency: str | None
    needs_approval: bool
    not_before: datetime | None
    supersedes: str | None
    ref: str | None
    parent: str | None
    """The recorded action that this one is about."""
    staged: bool
    correction: str | None = field(repr=False)
    effect_scope: str
    reads_version: bool
    expected_version: str | None
    bulk_above: int
    people: int
    expiry_s: float
    proposal: str | None
    place: int | None
    waiting_max: int | None
    """The tenant's backlog is to be compared with this; None: not this time."""

    def parameters(self) -> dict[str, object]:
        """The values as a driver takes them."""
        named = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "class_"}
        return {**named, "class": self.class_, "audience": list(self.audience)}


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedCall:
    """A call that has passed the door: everything of its intent but the place in the run."""

    spec: ToolSpec = field(repr=False)
    tenant: str
    run: str
    actor: str
    arguments: str = field(repr=False)
    """Canonical JSON, defaults filled in; what is stored, hashed, shown and sent."""
    arguments_sha256: str
    target: str
    audience: tuple[str, ...]
    once_key: str | None
    amount_minor: int | None
    currency: str | None
    compensation: str | None = field(repr=False)
    correction: str | None = field(repr=False)
    needs_approval: bool
    people: int
    rules: DoorRules = field(repr=False)
    expected_version: str | None = None
    parent: str | None = None

    def at(
        self,
        step: str | int,
        revision: int = 1,
        *,
        seq: int | None = None,
        supersedes: str | None = None,
        ref: str | None = None,
        repeat: str | None = None,
        not_before: datetime | None = None,
        staged: bool = False,
        proposal: str | None = None,
        place: int | None = None,
    ) -> Intent:
        """The intent at this place: a label, or the ledger's own number. With `repeat` it may be a second one; with
        `proposal` it is step `place` of that plan."""
        spec = self.spec
        return Intent(
            action_id=action_id(self.tenant, self.run, step, revision, "do"),
            tenant=self.tenant,
            run=self.run,
            step=str(step),
            seq=seq,
            revision=revision,
            actor=self.actor,
            tool=spec.name,
            tool_version=spec.version,
            class_=spec.cls.value,
            effect=spec.effect or "",
            target=self.target,
            provider=spec.provider,
            account=self.rules.accounts.of(spec.provider, self.tenant),
            queue=spec.queue,
            arguments=self.arguments,
            arguments_sha256=self.arguments_sha256,
            audience=self.audience,
            compensation=self.compensation,
            once_key=self.once_key if repeat is None else None,
            repeat_reason=repeat,
            amount_minor=self.amount_minor,
            currency=self.currency,
            needs_approval=self.needs_approval,
            not_before=not_before,
            supersedes=supersedes,
            ref=ref,
            parent=self.parent,
            staged=staged,
            correction=self.correction,
            effect_scope=spec.effect_scope,
            reads_version=spec.resource_version is not None,
            expected_version=self.expected_version,
            bulk_above=self.rules.bulk_above,
            people=self.people,
            expiry_s=self.rules.expiry_s,
            proposal=proposal,
            place=place,
            waiting_max=self.rules.backlog.to_count(self.tenant),
        )


def check_call(
    spec: ToolSpec,
    arguments: str | bytes | Mapping[str, object],
    *,
    tenant: str,
    run: str,
    actor: str,
    rules: DoorRules = DOOR_RULES,
    expected_version: str | None = None,
    parent: str | None = None,
) -> CheckedCall:
    """The call, if it may be recorded. Raises `ArgumentError` with the path of the first thing that is wrong.

    `arguments` are a model's JSON text or an object from code. Run and tenant must have passed `check_run`.
    `expected_version` is the resource's version that the caller has seen; `parent` the action that a plan's step is about.
    """
    if spec.cls is ToolClass.PURE:
        raise ArgumentError(f"{spec.name} is pure: call it, it leaves no row.", path="$", code="pure_tool")
    if spec.takes_of and parent is None:
        raise ArgumentError(
            f"{spec.name} is about another action: a run's unwind calls it, or a plan.", path="$", code="undo_tool"
        )
    if not spec.takes_of and parent is not None:
        raise ArgumentError(f"{spec.name} is about no other action.", path="$.of", code="unknown_argument")
    if expected_version is not None:
        check_id(expected_version, "resource_version", VERSION_CHARS_MAX)
        if spec.resource_version is None:
            raise ArgumentError(f"{spec.name} reads no version.", path="resource_version", code="unknown_argument")
    values = checked_arguments(spec, arguments, rules=rules)
    text = canonical_json(values, bytes_max=rules.arguments_bytes_max)
    audience = tuple(spec.audience_of(values))
    amount_minor, currency = _amount(spec, values)
    correction = spec.correction_of(values)
    return CheckedCall(
        spec=spec,
        tenant=tenant,
        run=run,
        actor=actor,
        arguments=text,
        arguments_sha256=sha256_of(text),
        target=spec.target_of(values),
        audience=audience,
        once_key=once_key(spec, values, run),
        amount_minor=amount_minor,
        currency=currency,
        compensation=_compensation(spec, values),
        correction=None if correction is None else canonical_json(correction),
        needs_approval=rules.needs_approval(spec, audience, amount_minor, has_correction=correction is not None),
        people=2 if spec.name in rules.two_person else 1,
        rules=rules,
        expected_version=expected_version,
        parent=parent,
    )


def checked_arguments(
    spec: ToolSpec, arguments: str | bytes | Mapping[str, object], *, rules: DoorRules = DOOR_RULES
) -> dict[str, Json]:
    """The arguments as the tool's model has them. Raises `ArgumentError`."""
    return spec.validate(parse_arguments(arguments, bytes_max=rules.arguments_bytes_max))


def check_run(tenant: object, run: object, actor: object) -> tuple[str, str, str]:
    """The three ids that the application gives, if they can be. Raises `ArgumentError`."""
    ids = (
        check_id(tenant, "tenant", TENANT_CHARS_MAX),
        check_id(run, "run", RUN_CHARS_MAX),
        check_id(actor, "actor", ACTOR_CHARS_MAX),
    )
    check_index_row(*ids[:2], path="run")
    return ids


def check_note(note: str) -> None:
    """Raises `ArgumentError` at `note` for what nobody could read."""
    try:
        canonical_json({"note": note})
    except ArgumentError as error:
        raise ArgumentError("holds what no text may.", path="note", code=error.code) from None
    if len(note) > NOTE_CHARS_MAX:
        raise ArgumentError(f"is longer than {NOTE_CHARS_MAX} characters.", path="note", code="too_long")


def check_index_row(*ids: str, path: str) -> None:
    """Raises `ArgumentError` at `path` when these ids are too long to stand in one index row."""
    if sum(len(text.encode()) for text in ids) > IDS_BYTES_MAX:
        raise ArgumentError(
            f"longer than {IDS_BYTES_MAX} bytes together with the ids before it", path=path, code="too_long"
        )


def once_key(spec: ToolSpec, arguments: Mapping[str, Json], run: str) -> str | None:
    """Equal for two calls exactly when the tool calls them the same under its `once_per`."""
    if spec.once_per is None:
        return None
    values = [arguments.get(name) for name in spec.once_per]
    scope = ["run", run] if spec.once_scope == "run" else ["tenant"]
    return sha256_of(canonical_json([*scope, spec.name, values]))


def _amount(spec: ToolSpec, arguments: Mapping[str, Json]) -> tuple[int | None, str | None]:
    """The tool's amount, if its currency can be one."""
    amount_minor, currency = spec.amount_of(arguments)
    if currency is not None and not (len(currency) == 3 and currency.isascii() and currency.isalpha()):
        name = spec.amount[1] if spec.amount else None
        raise ArgumentError("is no ISO 4217 code", path=f"$.{name}", code="invalid_argument")
    return amount_minor, currency


def _compensation(spec: ToolSpec, arguments: Mapping[str, Json]) -> str | None:
    """What would take this call back, written down before the call."""
    compensation = spec.compensation_of(arguments, "not recorded")
    return None if compensation is None else canonical_json(compensation)
