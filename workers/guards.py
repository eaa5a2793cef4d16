"""Decides whether a claimed row is what this worker's own registry says it is. Reads nothing, writes nothing."""

from __future__ import annotations

from counterfoil.ledger.canonical import canonical_json, load_stored, sha256_of
from counterfoil.ledger.claims import ClaimedAction
from counterfoil.ledger.errors import ArgumentError
from counterfoil.ledger.keys import Phase, action_id, step_of
from counterfoil.providers.spec import ToolSpec


def mismatch(spec: ToolSpec, action: ClaimedAction) -> str | None:
    """The first thing in which the row differs from its tool as this worker knows it, by name; None = nothing does.

    The hash is over the stored text.
    """
    if action.phase not in ("do", "undo", "correct"):
        return "phase"
    phase: Phase = "do" if action.phase == "do" else "undo" if action.phase == "undo" else "correct"
    if action.action_id != action_id(action.tenant, action.run, step_of(action.step), action.revision, phase):
        return "action_id"
    if action.arguments_sha256 != sha256_of(action.arguments):
        return "arguments_sha256"
    if action.class_ != spec.cls.value:
        return "class"
    if action.effect != (spec.effect or "") or action.provider != spec.provider:
        return "effect"
    if spec.takes_of != (action.of_action_id is not None):
        return "of"
    try:
        return _derived_mismatch(spec, action)
    except ArgumentError as error:
        return error.code


def _derived_mismatch(spec: ToolSpec, action: ClaimedAction) -> str | None:
    """What follows from the arguments is derived again: a row that says otherwise was not written by this tool's code."""
    try:
        arguments = load_stored(action.arguments)
    except ValueError:
        return "arguments"
    spec.validate(arguments)  # raises ArgumentError
    if action.target != spec.target_of(arguments):
        return "target"
    if (action.amount_minor, action.currency) != spec.amount_of(arguments):
        return "amount"
    if action.phase != "do":
        return None
    if spec.needs_approval(spec.audience_of(arguments)) and not action.needs_approval:
        return "needs_approval"
    compensation = spec.compensation_of(arguments, action.action_id)
    if action.compensation != (None if compensation is None else canonical_json(compensation)):
        return "compensation"
    return None
