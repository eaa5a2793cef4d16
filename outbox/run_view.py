"""What the step rules look at: a run as it is on record, a call as it is asked for, and what its caller knows. No I/O."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from counterfoil.ledger.states import SETTLED, State
from counterfoil.outbox.seen import NOTHING, Seen
from counterfoil.providers.contract import ToolClass

REJECTED = "rejected_by_reviewer"
"""The code of an action that a reviewer has cancelled."""

SUPERSEDED = "superseded"
"""The code of an action in whose place its own caller has put another one, before anything was done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionView:
    """One recorded action of the run, the newest revision of its step."""

    action_id: str
    step: str
    seq: int | None
    """Its place among the run's results; None for a step that code enqueued."""
    revision: int
    tool: str
    effect: str
    target: str
    state: State
    arguments_sha256: str
    ends_count: int = 0
    """How often it has been settled: an end that changes is another end."""
    once_key: str | None = None
    last_error_code: str | None = None
    rejected_before: tuple[str, ...] = ()
    """Arguments' hashes of the step's earlier revisions that a reviewer has rejected."""
    edited_before: tuple[tuple[str, str], ...] = ()
    """(target, arguments' hash) of the revisions that reviewers have put this one in the place of."""
    proposal_id: str | None = None
    place: int | None = None
    """Its place in a plan."""
    parent_action_id: str | None = None
    """The action that it is about."""

    @property
    def settled(self) -> bool:
        return self.state in SETTLED

    @property
    def has_end_to_tell(self) -> bool:
        """It is settled, and not because its caller has put something else in its place."""
        return self.settled and not (self.state is State.CANCELLED and self.last_error_code == SUPERSEDED)

    @property
    def rejected(self) -> tuple[str, ...]:
        """Arguments' hashes of all revisions that a reviewer has rejected."""
        return (*self.rejected_before, *self.asked_for) if self._is_rejected else self.rejected_before

    @property
    def rejections(self) -> int:
        """How often a reviewer has said no."""
        return len(self.rejected_before) + self._is_rejected

    @property
    def _is_rejected(self) -> bool:
        return self.state is State.CANCELLED and self.last_error_code == REJECTED

    @property
    def asked_for(self) -> tuple[str, ...]:
        """Arguments' hashes that stand for it: its own, and what was asked for before a reviewer edited it."""
        return (*(sha256 for _, sha256 in self.edited_before), self.arguments_sha256)

    @property
    def targets(self) -> frozenset[str]:
        """Its target, and that of what was asked for before a reviewer edited it."""
        return frozenset({self.target, *(target for target, _ in self.edited_before)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Take:
    """A framework's name for a call, and the action that the call has meant."""

    ref: str
    action_id: str
    turn: str = ""
    """The model's response that the call stood in; empty: not told, and such refs may repeat."""
    arguments_sha256: str = ""
    """What that call asked for, which need not be what is recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """The run as read under its lock, this call counted. Actions in the order of their recording."""

    state: str
    calls_count: int
    actions: tuple[ActionView, ...] = ()
    takes: tuple[Take, ...] = ()
    """Oldest first."""
    pivot: str | None = None
    """`ahead`: the run, or one above it, has staged, and nobody has decided on its plan yet; `passed`: somebody has."""

    def at(self, step: str | None) -> ActionView | None:
        return next((action for action in self.actions if action.step == step), None)

    def with_id(self, action_id: str) -> ActionView | None:
        return next((action for action in self.actions if action.action_id == action_id), None)

    def taken_in(self, turn: str) -> frozenset[str]:
        """The actions that calls of this model response have meant."""
        return frozenset(take.action_id for take in self.takes if turn and take.turn == turn)


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedCall:
    """What is asked for. `step` is a label from code, `ref` a framework's name for the call, `turn` the model's response that
    it stands in, within which each ref is another wish."""

    tool: str
    effect: str
    target: str
    cls: ToolClass
    arguments_sha256: str
    once_key: str | None = None
    step: str | None = None
    ref: str | None = None
    turn: str = ""
    repeat: str | None = None
    staged: bool = False
    gated: bool = False
    """A person must approve it."""

    def is_same_as(self, action: ActionView) -> bool:
        """Same tool and same target: what a reworded or repeated call has in common with the first."""
        return self.tool == action.tool and self.target in action.targets

    def is_identical_to(self, action: ActionView, take: Take | None = None) -> bool:
        """The same call in the same words: the recorded ones, or those of the call `take`."""
        asked = () if take is None else (take.arguments_sha256,)
        return self.is_same_as(action) and self.arguments_sha256 in (*action.asked_for, *asked)

    def has_effect_of(self, action: ActionView) -> bool:
        """Same effect and same target, by whichever tool."""
        return self.effect == action.effect and self.target in action.targets


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Caps on one run."""

    calls_max: int = 1000
    actions_max: int = 200
    refs_per_step_max: int = 50
    proposals_open_max: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class HandleView:
    """What this handle's caller knew when the call arrived.

    `told`: the ends that it had been told when the model wrote the call. `due`: actions that parallel calls of this handle
    return, so that the calls of one turn do not take each other's results for lost ones.
    """

    told: Seen = NOTHING
    due: Collection[str] = ()
    refs_unique: bool = False
    """The caller promises that it never uses a ref for two calls."""
    limits: Limits = field(default=Limits())

    def was_told(self, action: ActionView) -> bool:
        """Whether the caller knows the end that the action has now. What is not settled has none."""
        return action.settled and (not action.has_end_to_tell or self.told.has(action.action_id, action.ends_count))
