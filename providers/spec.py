"""Decides what one tool is: its class, arguments, target, audience, compensation and contract, as one frozen value.

Everything here is pure and needs no client, so agents, relay and workers hold the same specs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from counterfoil.ledger.errors import ArgumentError
from counterfoil.providers.arguments import Arguments
from counterfoil.providers.contract import Contract, ToolClass
from counterfoil.providers.outcomes import Json

TARGET_CHARS_MAX = 255
AUDIENCES_MAX = 10
AUDIENCES_APPROVED = frozenset({"public", "legal"})
"""What reaches them cannot be taken back: no code and no configuration frees them of an approval."""

Target = str | Callable[[Mapping[str, Json]], str]
"""An argument's name, or a function of the arguments that gives the resolved id."""
Audience = Sequence[str] | Callable[[Mapping[str, Json]], Sequence[str]]
Undo = str | Callable[[Mapping[str, Json]], Mapping[str, object] | None]
"""A tool's name (it gets the arguments of the same name), or a function giving `{"tool": …, "arguments": {…}}`."""
Correction = Callable[[Mapping[str, Json]], Mapping[str, object] | None]
"""A function of the arguments giving `{"tool": …, "arguments": {…}}`: the message that could be sent afterwards."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ToolSpec:
    """One tool as declared. Compares by identity; the registry fills in `undo_tools` when every module is loaded."""

    name: str
    version: int
    cls: ToolClass
    provider: str
    effect: str | None
    target: Target | None
    arguments: Arguments
    contract: Contract
    once_per: tuple[str, ...] | None
    once_scope: Literal["run", "tenant"] = "run"
    audience: Audience = ()
    undo: Undo | None = None
    amount: tuple[str, str | None] | None = None
    """(amount field, currency field)."""
    receipt: str = "id"
    approval: Literal["always", "never"] | None = None
    uncertain: Literal["operator_review"] | None = None
    effect_scope: Literal["run", "tenant"] = "run"
    """Within what no other tool may have the same effect on the same target under way."""
    resource_version: str | Callable[..., object] | bool | None = None
    """Reads the version of what the call changes: a function of its arguments, or (adapter) True."""
    correction: Correction | None = None
    lapses: str | None = None
    """The result field with the time, in UTC, at which the effect lapses by itself, such as a hold's end."""
    lookup: str | Callable[..., object] | bool | None = None
    adapter: str | None = None
    """`module:Class` of the provider's adapter; None = the function itself is called."""
    result_fields: tuple[str, ...] = ()
    function: Callable[..., object]
    takes_key: bool = False
    takes_version: bool = False
    """The function sends the resource's expected version as a condition."""
    takes_of: bool = False
    """A counter-action: it is about another action, which the worker resolves."""
    of_annotation: object = None
    description: str = ""
    file: str = ""
    line: int = 0
    undo_tools: Mapping[str, ToolSpec] = field(default_factory=dict, repr=False)
    correction_tools: Mapping[str, ToolSpec] = field(default_factory=dict, repr=False)

    @property
    def queue(self) -> str:
        """The broker queue of the tool's provider."""
        return f"cf-{self.provider}"

    @property
    def can_tell(self) -> bool:
        """Whether a call of it may be a correction: it acts, moves no money and is about no other action."""
        return self.effect is not None and self.amount is None and not self.takes_of

    def validate(self, arguments: Mapping[str, object]) -> dict[str, Json]:
        """The arguments to record, defaults filled in. Raises ArgumentError(path, code) for the first bad one."""
        return self.arguments.validate(arguments)

    def bind(self, arguments: Mapping[str, object]) -> dict[str, object]:
        """Validated arguments as the function's keyword arguments; `key` and `of` are not among them."""
        return self.arguments.bind(arguments)

    def target_of(self, arguments: Mapping[str, Json]) -> str:
        """The id of what the effect is on, "" for a pure tool. Raises ArgumentError, code `no_target`."""
        if self.target is None:
            return ""
        if callable(self.target):
            value: object = _ask(self.target, arguments, code="no_target", tool=self.name)
            path = "$"
        else:
            value, path = arguments.get(self.target), f"$.{self.target}"
        if isinstance(value, int) and not isinstance(value, bool):
            value = str(value)
        if not isinstance(value, str) or not 0 < len(value) <= TARGET_CHARS_MAX:
            raise ArgumentError(f"gives no target of 1 to {TARGET_CHARS_MAX} characters.", path=path, code="no_target")
        return value

    def audience_of(self, arguments: Mapping[str, Json]) -> list[str]:
        """Who sees the effect, for these arguments. Raises ArgumentError, code `no_audience` or the function's own."""
        value: object = self.audience
        if callable(self.audience):
            value = _ask(self.audience, arguments, code="no_audience", tool=self.name)
        if isinstance(value, str) or not isinstance(value, Sequence) or not all(isinstance(v, str) for v in value):
            raise ArgumentError(f"{self.name} gives no list of audiences.", path="$", code="no_audience")
        if len(value) > AUDIENCES_MAX:
            raise ArgumentError(f"{self.name} names over {AUDIENCES_MAX} audiences.", path="$", code="no_audience")
        return list(value)

    def needs_approval(self, audience: Sequence[str]) -> bool:
        """Whether the tool's code alone asks for a person; a configuration may only ask for more."""
        return (
            self.approval == "always"
            or (self.cls is ToolClass.IRREVERSIBLE and self.approval != "never")
            or not AUDIENCES_APPROVED.isdisjoint(audience)
        )

    def amount_of(self, arguments: Mapping[str, Json]) -> tuple[int | None, str | None]:
        """(minor units, currency in lower case), None where the tool or the call has none."""
        if self.amount is None:
            return None, None
        amount_field, currency_field = self.amount
        amount, currency = arguments.get(amount_field), arguments.get(currency_field or "")
        return (
            amount if isinstance(amount, int) and not isinstance(amount, bool) else None,
            currency.lower() if isinstance(currency, str) else None,
        )

    def compensation_of(self, arguments: Mapping[str, Json], action_id: str) -> dict[str, Json] | None:
        """`{"tool": …, "arguments": {…}}` that takes this call back, None for a tool without an undo.

        The action that is undone is no argument: the ledger records `action_id` beside the compensation as its parent.
        Raises ArgumentError, code `no_compensation`, when none can be built from these arguments.
        """
        if self.undo is None:
            return None
        refused = f"{self.name} cannot be compensated with these arguments ({action_id}): nothing was recorded."
        if callable(self.undo):
            built = _ask(self.undo, arguments, code="no_compensation", tool=self.name)
            if not isinstance(built, Mapping) or not isinstance(built.get("arguments"), Mapping):
                raise ArgumentError(refused, path="$", code="no_compensation")
            name, chosen = str(built.get("tool")), built["arguments"]
        else:
            name, chosen = self.undo, arguments
        undo = self.undo_tools.get(name)
        if undo is None:
            raise ArgumentError(refused, path="$", code="no_compensation", fix=f"No tool {name!r} is loaded.")
        if not callable(self.undo):
            chosen = {k: v for k, v in arguments.items() if k in undo.arguments.names}
        try:
            return {"tool": undo.name, "arguments": undo.validate(chosen)}
        except ArgumentError as exc:
            raise ArgumentError(refused, path=exc.path, code="no_compensation") from exc

    def correction_of(self, arguments: Mapping[str, Json]) -> dict[str, Json] | None:
        """`{"tool": …, "arguments": {…}}` that could tell people about this call afterwards; None when there is none, or
        when these arguments do not fill it: then a person decides before the call."""
        if self.correction is None:
            return None
        try:
            built = _ask(self.correction, arguments, code="no_correction", tool=self.name)
            if not isinstance(built, Mapping) or not isinstance(built.get("arguments"), Mapping):
                return None
            teller = self.correction_tools.get(str(built.get("tool")))
            return None if teller is None else {"tool": teller.name, "arguments": teller.validate(built["arguments"])}
        except ArgumentError:
            return None

    def schema(self) -> dict[str, object]:
        """What a model is shown: name, description, parameters; reserved and injected names are absent."""
        return {"name": self.name, "description": self.description, "parameters": self.arguments.schema()}


def _ask(
    function: Callable[[Mapping[str, Json]], object], arguments: Mapping[str, Json], *, code: str, tool: str
) -> object:
    """Runs a declaration's function over a read-only view of the arguments."""
    try:
        return function(MappingProxyType(dict(arguments)))
    except ArgumentError:
        raise
    except Exception as exc:  # noqa: BLE001 - a tool author's code; whatever it raises, the call is refused at the door
        # `from None`: the exception may quote an argument.
        raise ArgumentError(f"{tool}: {type(exc).__name__} in its declaration.", path="$", code=code) from None
