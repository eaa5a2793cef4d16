"""Decides which functions may be tools: the decorator, and every reason for which a declaration is refused.

A refusal names file and line, and is raised while the module is imported, long before a call.
"""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NoReturn, Required, TypedDict, TypeVar, Unpack

from counterfoil.ledger.errors import ToolDefinitionError
from counterfoil.providers.arguments import Arguments, SignatureRefused, arguments_of, result_fields_of
from counterfoil.providers.contract import Contract, ToolClass
from counterfoil.providers.spec import Audience, Correction, Target, ToolSpec, Undo

SPEC_ATTRIBUTE = "__counterfoil_tool__"
MODULE_ATTRIBUTE = "__counterfoil_tools__"
NAME_PATTERN = re.compile(r"[a-z][a-z0-9_]{0,63}")
_WORD_PATTERN = re.compile(r"[a-z][a-z0-9_]{0,31}")
_CHOICES: Mapping[str, tuple[str | None, ...]] = {
    "approval": (None, "always", "never"),
    "once_scope": ("run", "tenant"),
    "effect_scope": ("run", "tenant"),
    "uncertain": (None, "operator_review"),
    "on_absent": ("operator_review", "not_executed"),
}
_COMPENSATED = (ToolClass.COMPENSATABLE, ToolClass.IRREVERSIBLE)

F = TypeVar("F", bound=Callable[..., object])


class Keywords(TypedDict, total=False):
    """What `tool` takes. Times in seconds. A pure tool needs `cls` only."""

    cls: Required[str]
    """pure, reversible, compensatable or irreversible."""
    effect: str
    """The kind of thing it does: two tools with one effect on one target exclude each other."""
    target: Target
    """The argument that names what it is done to, or a function of the arguments."""
    audience: Audience
    """Who sees it: a list of names, or a function of the arguments."""
    once_per: str | Sequence[str] | None
    """The argument(s) under which it may happen once, or None = may repeat; no default for the last two classes."""
    once_scope: Literal["run", "tenant"]
    """Within what `once_per` counts; run."""
    undo: Undo | None
    """The tool that takes it back, or a function of the arguments; None only for a counter-action."""
    lookup: str | Callable[..., object] | bool | None
    """The function that asks the provider what became of a call, or its name; with `adapter`, True."""
    lookup_lag_s: float
    """A finished effect is visible to the look-up at the latest after this; 0."""
    native_key_ttl_s: float | None
    """The provider deduplicates by our key for this long; None = it does not."""
    native_key_concurrent: bool
    """It does so while the first request still runs, too; True. False: not before `landing_max_s` has passed."""
    unique: bool
    """It does so for ever; False."""
    landing_max_s: float
    """A request takes effect within this long after its connection is closed, or never; 120."""
    absence_is_proof: bool
    """Empty look-ups prove in the end that nothing was done; True. False: they prove nothing, and a person decides."""
    on_absent: Literal["not_executed", "operator_review"]
    """What proved absence means when no attempt is left; operator_review."""
    uncertain: Literal["operator_review"] | None
    """Where a tool with neither key nor look-up sends an unknown outcome; must be said."""
    receipt: str
    """The field of the result that is the provider's own id; "id"."""
    amount: str | tuple[str, str] | None
    """The argument with the amount in minor units, or that and the currency's; `currency` by default."""
    name: str | None
    """The function's name by default."""
    version: int
    """1 by default; raise it when a recorded call must not run under the new code."""
    provider: str | None
    """Names the queue and the limits; the module's last name by default."""
    effect_scope: Literal["run", "tenant"]
    """Within what no other tool may have the same effect on the same target under way; run."""
    resource_version: str | Callable[..., object] | bool | None
    """The function that reads the version of what the call changes, or its name; with `adapter`, True. It is read when the
    call is proposed and compared right before the effect: what was decided about one version is not done to another. A
    function that takes `*, expected_version: str | None` can send it as a condition too; HTTP 412 then means stale."""
    approval: Literal["always", "never"] | None
    """Whether a person approves each call first. None: of irreversible tools, and of what the public or legal sees."""
    correction: Correction | None
    """A function of the arguments giving the message that could be sent afterwards, as `{"tool": …, "arguments": {…}}`."""
    lapses: str
    """The result field with the UTC time at which the effect lapses by itself; a plan that needs it is decided before."""
    adapter: str | None
    """`module:Class` that makes the call, where the function is only the signature."""


def tool(function: None = None, /, **keywords: Unpack[Keywords]) -> Callable[[F], F]:
    """Makes a typed function a tool; the function itself is returned unchanged and can still be called directly.

    The keywords are those of `Keywords`. Raises ToolDefinitionError, with file and line, for a missing or unknown keyword, a
    signature that cannot be an argument model, or a declaration that leaves an unknown outcome nowhere to go.
    """
    if function is not None:
        _Declaration(function, keywords).refuse("write `@tool(cls=…)`, with a class")

    def decorate(function: F) -> F:
        spec = _Declaration(function, keywords).spec()
        setattr(function, SPEC_ATTRIBUTE, spec)
        function.__globals__.setdefault(MODULE_ATTRIBUTE, []).append(spec)
        return function

    return decorate


def declared(function: Callable[..., object], keywords: Keywords) -> ToolSpec:
    """The tool that `tool(**keywords)` would make of the function, which stays as it is. Raises ToolDefinitionError."""
    return _Declaration(function, keywords).spec()


class _Declaration:
    """One declaration under examination; every method refuses with the place of the function."""

    def __init__(self, function: Callable[..., object], keywords: Keywords) -> None:
        self.function = function
        self.given = keywords
        self.name = keywords.get("name") or str(getattr(function, "__name__", ""))
        code = getattr(function, "__code__", None)
        self.file: str = getattr(code, "co_filename", "")
        self.line: int = getattr(code, "co_firstlineno", 0)

    def spec(self) -> ToolSpec:
        """The tool, after every check."""
        given, function = self.given, self.function
        kind, provider = self.kind(), self.provider()
        arguments, injected = self.arguments()
        self.check_required(kind, injected)
        self.check_choices()
        return ToolSpec(
            name=self.name,
            version=given.get("version", 1),
            cls=kind,
            provider=provider,
            effect=given.get("effect"),
            target=self.target(arguments),
            arguments=arguments,
            contract=self.contract(kind, injected),
            once_per=self.fields("once_per", given.get("once_per"), arguments),
            once_scope=given.get("once_scope", "run"),
            audience=self.audience(),
            undo=given.get("undo"),
            amount=self.amount(arguments),
            receipt=given.get("receipt", "id"),
            approval=given.get("approval"),
            uncertain=given.get("uncertain"),
            effect_scope=given.get("effect_scope", "run"),
            resource_version=given.get("resource_version"),
            correction=given.get("correction"),
            lapses=given.get("lapses"),
            lookup=given.get("lookup"),
            adapter=given.get("adapter"),
            result_fields=result_fields_of(function) or (given.get("receipt", "id"),),
            function=function,
            takes_key="key" in injected,
            takes_version="expected_version" in injected,
            takes_of="of" in injected,
            of_annotation=injected.get("of"),
            description=inspect.getdoc(function) or "",
            file=self.file,
            line=self.line,
        )

    def refuse(self, why: str, *, fix: str = "") -> NoReturn:
        raise ToolDefinitionError(f"tool {self.name!r}: {why}", file=self.file, line=self.line, fix=fix)

    def kind(self) -> ToolClass:
        """The tool's class, after the form of the declaration itself."""
        if not inspect.isfunction(self.function) or inspect.isasyncgenfunction(self.function):
            self.refuse("only a function can be a tool, `def` or `async def`", fix="Return the answer; yield nothing.")
        for keyword in self.given:
            if keyword not in Keywords.__annotations__:
                self.refuse(f"unknown keyword `{keyword}`.", fix=_nearest(keyword, tuple(Keywords.__annotations__)))
        classes = [c.value for c in ToolClass]
        cls = self.given.get("cls")
        if cls is None:
            self.refuse(f"it has no class: write `cls=` one of {', '.join(classes)}")
        if cls not in classes:
            near = difflib.get_close_matches(str(cls), classes, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"it is one of {', '.join(classes)}"
            self.refuse(f"unknown class {cls!r}: {hint}")
        return ToolClass(cls)

    def provider(self) -> str:
        """The provider's name, after the tool's own."""
        if not NAME_PATTERN.fullmatch(self.name):
            self.refuse("a name is 1 to 64 of a-z, 0-9 and _, and begins with a letter", fix="Give one with `name=`.")
        name = self.given.get("provider") or self.function.__module__.rpartition(".")[2].strip("_").lower()
        if not _WORD_PATTERN.fullmatch(name):
            self.refuse(f"{name!r} cannot be a provider's name", fix="Give one with `provider=`.")
        return name

    def arguments(self) -> tuple[Arguments, dict[str, object]]:
        try:
            return arguments_of(self.function)
        except SignatureRefused as exc:
            self.refuse(str(exc))

    def check_required(self, kind: ToolClass, injected: Mapping[str, object]) -> None:
        """Refuses what this class demands and did not get, and what contradicts it."""
        given = self.given
        if kind is ToolClass.PURE:
            if injected or any(k in given for k in ("effect", "target", "audience", "once_per", "undo", "lookup")):
                self.refuse("a pure tool leaves no row: it takes `cls` only, and neither `key` nor `of`")
            return
        if not given.get("effect"):
            self.refuse("`effect` is not given: name the kind of thing it does, such as 'shipment'")
        if not NAME_PATTERN.fullmatch(str(given.get("effect"))):
            self.refuse("`effect` is 1 to 64 of a-z, 0-9 and _, and begins with a letter")
        if not given.get("target"):
            self.refuse("`target` is not given: name the argument that says what it is done to")
        if given.get("audience") is None:
            self.refuse("`audience` is not given: list who sees it, such as ['warehouse']")
        if kind in _COMPENSATED and "once_per" not in given:
            self.refuse("`once_per` is not given: name the argument(s) it may happen once for, or None = may repeat")
        if kind is ToolClass.COMPENSATABLE and "of" not in injected and not given.get("undo"):
            self.refuse("a compensatable tool needs `undo=`, unless it is a counter-action itself and takes `of`")
        if kind is ToolClass.IRREVERSIBLE and given.get("undo"):
            self.refuse("an irreversible tool has no undo: it is compensatable, or give a `correction`")

    def check_choices(self) -> None:
        """Refuses a value outside a closed set."""
        version = self.given.get("version", 1)
        if isinstance(version, bool) or not isinstance(version, int) or version < 1:
            self.refuse("`version` is an integer from 1 up")
        for keyword, choices in _CHOICES.items():
            if self.given.get(keyword, choices[0]) not in choices:
                self.refuse(f"`{keyword}` is {' or '.join(map(repr, choices))}")

    def contract(self, kind: ToolClass, injected: Mapping[str, object]) -> Contract:
        """The contract, after it is shown that an unknown outcome has somewhere to go."""
        given = self.given
        ttl_s, lag_s, landing_s = (
            given.get("native_key_ttl_s"),
            given.get("lookup_lag_s", 0.0),
            given.get("landing_max_s", 120.0),
        )
        lookup, own_function = given.get("lookup"), given.get("adapter") is None
        if lag_s < 0 or landing_s < 0 or (ttl_s is not None and ttl_s <= 0):
            self.refuse("times are seconds from 0 up, and a key's ttl is more than 0")
        if lag_s > 0 and not lookup:
            self.refuse("`lookup_lag_s` is given without a `lookup`")
        if own_function and lookup is True:
            self.refuse("`lookup` is the look-up function or its name")
        if own_function and given.get("resource_version") is True:
            self.refuse("`resource_version` is the function that reads it, or its name")
        if not own_function and given.get("resource_version") not in (None, True):
            self.refuse("`resource_version` is True: the adapter reads it")
        if "expected_version" in injected and not given.get("resource_version"):
            self.refuse("it takes `expected_version`, and nothing reads one", fix="Give `resource_version=`.")
        if given.get("correction") is not None and not callable(given.get("correction")):
            self.refuse("`correction` is a function of the arguments")
        if own_function and "key" not in injected and (ttl_s is not None or given.get("unique")):
            self.refuse("it promises a provider key but does not take one", fix="Add the parameter `*, key: str`.")
        if kind is not ToolClass.PURE and ttl_s is None and not lookup and given.get("uncertain") is None:
            self.refuse(
                "nothing can tell what an unknown outcome was.",
                fix="Give `native_key_ttl_s` or a `lookup`; or say `uncertain='operator_review'`: a person decides each.",
            )
        return Contract(
            native_key_ttl_s=ttl_s,
            native_key_concurrent=given.get("native_key_concurrent", True),
            lookup=bool(lookup),
            lookup_lag_s=lag_s,
            absence_is_proof=given.get("absence_is_proof", True),
            unique=given.get("unique", False),
            landing_max_s=landing_s,
            on_absent=given.get("on_absent", "operator_review"),
        )

    def target(self, arguments: Arguments) -> Target | None:
        target = self.given.get("target")
        if isinstance(target, str) and target not in arguments.names:
            self.refuse(f"`target` names no argument: {target!r}", fix=_nearest(target, arguments.names))
        return target

    def audience(self) -> Audience:
        audience = self.given.get("audience", ())
        if callable(audience):
            return audience
        if isinstance(audience, str) or not all(isinstance(a, str) and _WORD_PATTERN.fullmatch(a) for a in audience):
            self.refuse("`audience` is a list of names, or a function of the arguments")
        return tuple(audience)

    def fields(self, keyword: str, given: str | Sequence[str] | None, arguments: Arguments) -> tuple[str, ...] | None:
        if given is None:
            return None
        names = (given,) if isinstance(given, str) else tuple(given)
        if not names:
            self.refuse(f"`{keyword}` is empty: name an argument, or write None")
        for field in names:
            if field not in arguments.names:
                self.refuse(f"`{keyword}` names no argument: {field!r}", fix=_nearest(field, arguments.names))
        return names

    def amount(self, arguments: Arguments) -> tuple[str, str | None] | None:
        names = self.fields("amount", self.given.get("amount"), arguments)
        if names is None:
            return None
        if not 1 <= len(names) <= 2:
            self.refuse("`amount` is a field, or (amount field, currency field)")
        by_default = "currency" if "currency" in arguments.names else None
        return names[0], names[1] if len(names) == 2 else by_default


def _nearest(name: str, names: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, names, n=1)
    return f"Did you mean {near[0]!r}?" if near else f"There are: {', '.join(names) or 'none'}."
