"""Decides whether a claimed row is what this worker's own tools and settings say it is. Reads nothing, writes nothing.

Everything is derived again that a row says about itself: whoever wrote it may have had other code, other settings, or no
right to. The approval's digest is computed over exactly what would be sent.
"""

from __future__ import annotations

from counterfoil.ledger.canonical import canonical_json, load_stored, sha256_of
from counterfoil.ledger.claims import ClaimedAction
from counterfoil.ledger.digests import BoundIntent, intent_digest
from counterfoil.ledger.errors import ArgumentError
from counterfoil.ledger.keys import Phase, action_id, step_of
from counterfoil.outbox.intents import DoorRules, once_key
from counterfoil.providers.contract import ToolClass
from counterfoil.providers.outcomes import Json
from counterfoil.providers.spec import ToolSpec

_CODEC = "rfc8785"


def mismatch(spec: ToolSpec, action: ClaimedAction, rules: DoorRules) -> str | None:
    """The first thing in which the row differs from its tool as this worker knows it, by name; None = nothing does.

    The hash is over the stored text. `rules` are this worker's settings: what they gate must be gated, and a gated row must
    have the approval of exactly this intent, by as many people as they ask for.
    """
    if action.phase not in ("do", "undo", "correct"):
        return "phase"
    phase: Phase = "do" if action.phase == "do" else "undo" if action.phase == "undo" else "correct"
    if action.action_id != action_id(action.tenant, action.run, step_of(action.step), action.revision, phase):
        return "action_id"
    try:
        return (
            _declared_mismatch(spec, action)
            or ("account" if not rules.accounts.allow(spec.provider, action.tenant, action.account) else None)
            or _derived_mismatch(spec, action, rules)
            or (_approval_mismatch(spec, action, rules) if action.needs_approval else None)
        )
    except ArgumentError as error:
        return error.code


def _declared_mismatch(spec: ToolSpec, action: ClaimedAction) -> str | None:
    """What follows from the tool alone."""
    if (action.tool, action.tool_version) != (spec.name, spec.version):
        return "tool"
    if action.class_ != spec.cls.value:
        return "class"
    if action.effect != (spec.effect or "") or action.provider != spec.provider:
        return "effect"
    if action.queue != spec.queue:
        return "queue"
    if action.phase == "correct" and not spec.can_tell:
        return "correction"
    # A correction is about another action, which its tool need not know of.
    if spec.takes_of != (action.parent_action_id is not None and action.phase != "correct"):
        return "of"
    if action.of_action_id != action.parent_action_id:
        return "of"
    if action.staged and spec.cls is not ToolClass.REVERSIBLE:
        return "staged"
    if action.phase == "do" and action.effect_scope != spec.effect_scope:
        return "effect_scope"
    if action.phase == "do" and action.reads_version != (spec.resource_version is not None):
        return "reads_version"
    if action.reads_version and action.expected_resource_version is None:
        return "expected_resource_version"
    return None


def _derived_mismatch(spec: ToolSpec, action: ClaimedAction, rules: DoorRules) -> str | None:
    """What follows from the arguments is derived again: a row that says otherwise was not written by this tool's code."""
    if action.arguments_codec != _CODEC or action.arguments_sha256 != sha256_of(action.arguments):
        return "arguments_sha256"
    try:
        arguments = load_stored(action.arguments)
    except ValueError:
        return "arguments"
    complete = spec.validate(arguments)  # raises ArgumentError
    # Nobody was shown what the tool puts in the place of an argument that is not there.
    if action.phase == "do" and action.needs_approval and complete.keys() != arguments.keys():
        return "arguments"
    if action.target != spec.target_of(arguments):
        return "target"
    if (action.amount_minor, action.currency) != spec.amount_of(arguments):
        return "amount"
    if list(action.audience) != spec.audience_of(arguments):
        return "audience"
    if action.phase == "do":
        return _written_beside_mismatch(spec, action, arguments, rules)
    return "needs_approval" if action.phase == "correct" and not action.needs_approval else None


def _written_beside_mismatch(
    spec: ToolSpec, action: ClaimedAction, arguments: dict[str, Json], rules: DoorRules
) -> str | None:
    """What was written down with the intent: what takes it back, what could be said after it, and whom it needs."""
    compensation = spec.compensation_of(arguments, action.action_id)
    if action.compensation != (None if compensation is None else canonical_json(compensation)):
        return "compensation"
    correction = spec.correction_of(arguments)
    if action.correction != (None if correction is None else canonical_json(correction)):
        return "correction"
    once = once_key(spec, arguments, action.run) if action.repeat_reason is None else None
    if action.once_key != once:
        return "once_key"
    gated = rules.needs_approval(spec, action.audience, action.amount_minor, has_correction=correction is not None)
    belongs = action.proposal_id is not None or action.approval_id is not None
    # A call about another action is a plan's step, or an unwind's: no agent takes anything back, or captures it, by itself.
    if (gated or belongs or spec.takes_of) and not action.needs_approval:
        return "needs_approval"
    return None


def _approval_mismatch(spec: ToolSpec, action: ClaimedAction, rules: DoorRules) -> str | None:
    """A gated row must have the approval of exactly what would be sent."""
    digest, expires_at, people = action.approval_digest, action.approval_expires_at, action.approval_people
    if digest is None or expires_at is None or people is None:
        return "approval"
    if digest != intent_digest(_bound(action), expires_at):
        return "approval_digest"
    if spec.name in rules.two_person and people < 2:
        return "approval_people"
    if action.phase != "do":  # a correction's is given by whoever sends it
        return None
    if action.approval_subject_id != action.proposal_id:
        return "approval_subject"
    most = action.approval_amount_max_minor
    if most is not None and (action.amount_minor is None or action.amount_minor > most):
        return "approval_amount"
    return None


def _bound(action: ClaimedAction) -> BoundIntent:
    return BoundIntent(
        tool=action.tool,
        tool_version=action.tool_version,
        class_=action.class_,
        effect=action.effect,
        target=action.target,
        provider=action.provider,
        account=action.account,
        arguments_sha256=action.arguments_sha256,
        audience=tuple(action.audience),
        amount_minor=action.amount_minor,
        currency=action.currency,
        compensation=action.compensation,
        correction=action.correction,
        expected_resource_version=action.expected_resource_version,
        actor=action.actor,
        tenant=action.tenant,
        run=action.run,
        step=action.step,
        action_id=action.action_id,
        revision=action.revision,
        phase=action.phase,
        parent_action_id=action.parent_action_id,
    )
