"""Decides which functions may be tools: the decorator, and every reason for which a declaration is refused.

A refusal names file and line, and is raised while the module is imported, long before a call.
"""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Sequence
from typing import Final, Literal, NoReturn, TypeVar

from counterfoil.ledger.errors import ToolDefinitionError
from counterfoil.providers.arguments import Arguments, SignatureRefused, arguments_of, result_fields_of
from counterfoil.providers.contract import Contract, ToolClass
from counterfoil.providers.spec import Audience, Target, ToolSpec, Undo

SPEC_ATTRIBUTE = "__counterfoil_tool__"
MODULE_ATTRIBUTE = "__counterfoil_tools__"
NAME_PATTERN = re.compile(r"[a-z][a-z0-9_]{0,63}")
_WORD_PATTERN = re.compile(r"[a-z][a-z0-9_]{0,31}")
_COMPENSATED = (ToolClass.COMPENSATABLE, ToolClass.IRREVERSIBLE)


class Missing:
    """The type of `MISSING`: a keyword that was not written, where None would say something."""


MISSING: Final = Missing()
F = TypeVar("F", bound=Callable[..., object])


def tool(
    function: None = None,
    /,
    *,
    cls: str | Missing = MISSING,
    provider: str | None = None,
    effect: str | Missing = MISSING,
    target: Target | Missing = MISSING,
    once_per: str | Sequence[str] | Missing | None = MISSING,
    once_scope: Literal["run", "tenant"] = "run",
    audience: Audience | Missing = MISSING,
    undo: Undo | Missing | None = MISSING,
    lookup: str | Callable[..., object] | bool | None = None,
    lookup_lag_s: float = 0,
    native_key_ttl_s: float | None = None,
    unique: bool = False,
    landing_max_s: float = 120,
    receipt: str = "id",
    amount: str | tuple[str, str] | None = None,
    name: str | None = None,
    version: int = 1,
    uncertain: Literal["operator_review"] | None = None,
    on_absent: Literal["not_executed", "operator_review"] = "operator_review",
    resource_version: str | Callable[..., object] | None = None,
    approval: Literal["always", "never"] | None = None,
    correction: str | Callable[..., object] | None = None,
    adapter: str | None = None,
) -> Callable[[F], F]:
    """Makes a typed function a tool; the function itself is returned unchanged and can still be called directly.

    `cls` is pure, reversible, compensatable or irreversible; a pure tool needs nothing else. `effect` and `target` say what
    is done to what; `once_per` names the arguments under which it may happen once in `once_scope`, or None; `undo` names
    the tool that takes it back. `lookup` and `native_key_ttl_s` say how an unknown outcome is discovered. Times in seconds.
    With `adapter` (`module:Class`) that class makes the call and the function is only the signature; then `lookup` is a
    bool. Raises ToolDefinitionError.
    """
    if function is not None:
        _Declaration(function, "").refuse("write `@tool(cls=…)`, with a class")

    def decorate(function: F) -> F:
        declared = _Declaration(function, name or str(getattr(function, "__name__", "")))
        kind = declared.check_names(cls, provider, version, approval, once_scope)
        arguments, injected = declared.arguments()
        declared.check_required(
            kind,
            injected,
            {"effect": effect, "target": target, "once_per": once_per, "audience": audience, "undo": undo},
        )
        contract = declared.contract(
            kind, injected, lookup, lookup_lag_s, native_key_ttl_s, unique, landing_max_s, on_absent, uncertain, adapter
        )
        spec = ToolSpec(
            name=declared.name,
            version=version,
            cls=kind,
            provider=declared.provider,
            effect=None if isinstance(effect, Missing) else effect,
            target=None if isinstance(target, Missing) else declared.target(target, arguments),
            arguments=arguments,
            contract=contract,
            once_per=declared.fields("once_per", once_per, arguments),
            once_scope=once_scope,
            audience=() if isinstance(audience, Missing) else declared.audience(audience),
            undo=None if isinstance(undo, Missing) else undo,
            amount=declared.amount(amount, arguments),
            receipt=receipt,
            approval=approval,
            uncertain=uncertain,
            resource_version=resource_version,
            correction=correction,
            lookup=lookup,
            adapter=adapter,
            result_fields=result_fields_of(function) or (receipt,),
            function=function,
            takes_key="key" in injected,
            takes_of="of" in injected,
            of_annotation=injected.get("of"),
            description=inspect.getdoc(function) or "",
            file=declared.file,
            line=declared.line,
        )
        setattr(function, SPEC_ATTRIBUTE, spec)
        function.__globals__.setdefault(MODULE_ATTRIBUTE, []).append(spec)
        return function

    return decorate


class _Declaration:
    """One declaration under examination; every method refuses with the place of the function."""

    def __init__(self, function: Callable[..., object], name: str) -> None:
        self.function = function
        self.name = name
        self.provider = ""
        code = getattr(function, "__code__", None)
        self.file: str = getattr(code, "co_filename", "")
        self.line: int = getattr(code, "co_firstlineno", 0)

    def refuse(self, why: str, *, fix: str = "") -> NoReturn:
        raise ToolDefinitionError(f"tool {self.name!r}: {why}", file=self.file, line=self.line, fix=fix)

    def check_names(
        self, cls: str | Missing, provider: str | None, version: int, approval: str | None, scope: str
    ) -> ToolClass:
        """The tool's class, after everything that is a name from a closed set."""
        if not inspect.isfunction(self.function) or inspect.iscoroutinefunction(self.function):
            self.refuse("only a plain `def` function can be a tool")
        if not NAME_PATTERN.fullmatch(self.name):
            self.refuse("a name is 1 to 64 of a-z, 0-9 and _, and begins with a letter", fix="Give one with `name=`.")
        self.provider = provider or self.function.__module__.rpartition(".")[2].strip("_").lower()
        if not _WORD_PATTERN.fullmatch(self.provider):
            self.refuse(f"{self.provider!r} cannot be a provider's name", fix="Give one with `provider=`.")
        if isinstance(version, bool) or not isinstance(version, int) or version < 1:
            self.refuse("`version` is an integer from 1 up")
        if approval not in (None, "always", "never"):
            self.refuse("`approval` is 'always', 'never' or None")
        if scope not in ("run", "tenant"):
            self.refuse("`once_scope` is 'run' or 'tenant'")
        classes = [c.value for c in ToolClass]
        if isinstance(cls, Missing):
            self.refuse(f"it has no class: write `cls=` one of {', '.join(classes)}")
        if cls not in classes:
            near = difflib.get_close_matches(str(cls), classes, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"it is one of {', '.join(classes)}"
            self.refuse(f"unknown class {cls!r}: {hint}")
        return ToolClass(cls)

    def arguments(self) -> tuple[Arguments, dict[str, object]]:
        try:
            return arguments_of(self.function)
        except SignatureRefused as exc:
            self.refuse(str(exc))

    def check_required(self, kind: ToolClass, injected: dict[str, object], given: dict[str, object]) -> None:
        """Refuses what this class demands and did not get, and what contradicts it."""
        if kind is ToolClass.PURE:
            if injected or any(not isinstance(v, Missing) for v in given.values()):
                self.refuse("a pure tool leaves no row: it takes `cls` only, and neither `key` nor `of`")
            return
        for keyword, why in (
            ("effect", "what kind of thing it does (two tools with one effect on one target exclude each other)"),
            ("target", "which argument names the thing it is done to"),
            ("audience", "who sees it, as a list"),
        ):
            if isinstance(given[keyword], Missing) or given[keyword] is None or given[keyword] == "":
                self.refuse(f"`{keyword}` is not given: say {why}")
        if not isinstance(given["effect"], str) or not NAME_PATTERN.fullmatch(given["effect"]):
            self.refuse("`effect` is 1 to 64 of a-z, 0-9 and _, and begins with a letter")
        if kind in _COMPENSATED and isinstance(given["once_per"], Missing):
            self.refuse("`once_per` is not given: name the argument(s) it may happen once for, or None = may repeat")
        undo = given["undo"]
        if kind is ToolClass.COMPENSATABLE and "of" not in injected and (isinstance(undo, Missing) or undo is None):
            self.refuse("a compensatable tool needs `undo=`, unless it is a counter-action itself and takes `of`")
        if kind is ToolClass.IRREVERSIBLE and not isinstance(undo, Missing) and undo is not None:
            self.refuse("an irreversible tool has no undo: it is compensatable, or give a `correction`")

    def contract(
        self,
        kind: ToolClass,
        injected: dict[str, object],
        lookup: str | Callable[..., object] | bool | None,
        lookup_lag_s: float,
        native_key_ttl_s: float | None,
        unique: bool,
        landing_max_s: float,
        on_absent: Literal["not_executed", "operator_review"],
        uncertain: str | None,
        adapter: str | None,
    ) -> Contract:
        """The contract, after it is shown that an unknown outcome has somewhere to go."""
        if uncertain not in (None, "operator_review") or on_absent not in ("not_executed", "operator_review"):
            self.refuse("`uncertain` is 'operator_review' or None; `on_absent` is 'not_executed' or 'operator_review'")
        if lookup_lag_s < 0 or landing_max_s < 0 or (native_key_ttl_s is not None and native_key_ttl_s <= 0):
            self.refuse("times are seconds from 0 up, and a key's ttl is more than 0")
        if lookup_lag_s > 0 and not lookup:
            self.refuse("`lookup_lag_s` is given without a `lookup`")
        if adapter is None and lookup is True:
            self.refuse("`lookup` is the look-up function or its name")
        if adapter is None and "key" not in injected and (native_key_ttl_s is not None or unique):
            self.refuse("it promises a provider key but does not take one", fix="Add the parameter `*, key: str`.")
        mutates = kind is not ToolClass.PURE
        if mutates and native_key_ttl_s is None and not lookup and uncertain is None:
            self.refuse(
                "nothing can tell what an unknown outcome was: give `native_key_ttl_s`, a `lookup`,",
                fix="or say `uncertain='operator_review'`, and a person decides each one.",
            )
        return Contract(
            native_key_ttl_s=native_key_ttl_s,
            lookup=bool(lookup),
            lookup_lag_s=lookup_lag_s,
            unique=unique,
            landing_max_s=landing_max_s,
            on_absent=on_absent,
        )

    def target(self, target: Target, arguments: Arguments) -> Target:
        if not callable(target) and target not in arguments.names:
            self.refuse(f"`target` names no argument: {target!r}", fix=_nearest(str(target), arguments.names))
        return target

    def audience(self, audience: Audience) -> Audience:
        if callable(audience):
            return audience
        if isinstance(audience, str) or not all(isinstance(a, str) and _WORD_PATTERN.fullmatch(a) for a in audience):
            self.refuse("`audience` is a list of names, or a function of the arguments")
        return tuple(audience)

    def fields(
        self, keyword: str, given: str | Sequence[str] | Missing | None, arguments: Arguments
    ) -> tuple[str, ...] | None:
        if isinstance(given, Missing) or given is None:
            return None
        names = (given,) if isinstance(given, str) else tuple(given)
        if not names:
            self.refuse(f"`{keyword}` is empty: name an argument, or write None")
        for field in names:
            if field not in arguments.names:
                self.refuse(f"`{keyword}` names no argument: {field!r}", fix=_nearest(field, arguments.names))
        return names

    def amount(self, amount: str | tuple[str, str] | None, arguments: Arguments) -> tuple[str, str | None] | None:
        names = self.fields("amount", amount, arguments)
        if names is None:
            return None
        if len(names) > 2:
            self.refuse("`amount` is a field, or (amount field, currency field)")
        if len(names) == 2:
            return names[0], names[1]
        return names[0], "currency" if "currency" in arguments.names else None


def _nearest(name: str, names: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, names, n=1)
    return f"Did you mean {near[0]!r}?" if near else f"Its arguments are: {', '.join(names) or 'none'}."
