"""Decides which tool a table `[http.NAME]` declares. No client is imported here: agents hold the same specs as workers.

The table goes through the same checks as a decorated function, so that nothing is allowed here that code could not have.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, TypeAdapter
from pydantic.errors import PydanticUserError
from pydantic_core import SchemaError

from counterfoil.ledger.errors import ConfigError, ToolDefinitionError
from counterfoil.providers.contract import Of
from counterfoil.providers.spec import ToolSpec
from counterfoil.providers.tool import Keywords, declared
from counterfoil.settings_http import STRING_CHARS_MAX, HttpArgument, HttpTool, placeholders

ADAPTER = "counterfoil.providers.http.client:HttpAdapter"
_TYPES: Mapping[str, type] = {"string": str, "integer": int, "number": float, "boolean": bool}


def http_specs(tools: Mapping[str, HttpTool]) -> Iterator[ToolSpec]:
    """One spec a table, in order. Raises `ConfigError` naming the table for whatever no tool may be."""
    for name, tool in tools.items():
        try:
            spec = declared(_function(name, tool), _keywords(name, tool))
        except ToolDefinitionError as refused:
            message = str(refused).removeprefix(f"{refused.file}:{refused.line}: ")
            raise ConfigError(f"http.{name}: {message}", key=f"http.{name}") from None
        yield replace(spec, result_fields=tuple(tool.result), file=f"[http.{name}]", line=0)


def _keywords(name: str, tool: HttpTool) -> Keywords:
    keywords: Keywords = {
        "cls": tool.cls,
        "name": name,
        "version": tool.version,
        "provider": tool.provider,
        "effect": tool.effect,
        "target": tool.target,
        "audience": tool.audience,
        "once_per": tool.once_per or None,
        "once_scope": tool.once_scope,
        "effect_scope": tool.effect_scope,
        "undo": tool.undo,
        "approval": tool.approval,
        "native_key_ttl_s": tool.key_ttl_s,
        "native_key_concurrent": bool(tool.in_flight),
        "lookup": tool.lookup is not None,
        "lookup_lag_s": tool.lookup.lag_s if tool.lookup is not None else 0.0,
        "landing_max_s": tool.landing_max_s,
        "on_absent": tool.on_absent,
        "uncertain": tool.uncertain,
        "adapter": ADAPTER,
    }
    if tool.amount:  # one or two names: any other number is refused with the rest
        keywords["amount"] = tool.amount  # type: ignore[typeddict-item]
    return keywords


def _function(name: str, tool: HttpTool) -> Any:
    """A function with the table's signature: what `tool` reads, and nobody calls."""

    def function() -> None:
        raise NotImplementedError

    hints: dict[str, object] = {"return": None}
    parameters = []
    in_path = placeholders(tool.path)
    for argument, declared_as in tool.arguments.items():
        hint = _annotation(f"http.{name}.arguments.{argument}", declared_as, in_path=argument in in_path)
        default: object = inspect.Parameter.empty
        if not declared_as.required:
            hint, default = hint | None, None
        hints[argument] = hint
        parameters.append(inspect.Parameter(argument, inspect.Parameter.KEYWORD_ONLY, default=default))
    for injected in (parameter for parameter in parameters if parameter.name in ("key", "of")):
        raise ConfigError(
            f"http.{name}.arguments.{injected.name}: this name is reserved: identity never comes from a model.",
            key=f"http.{name}.arguments.{injected.name}",
            fix=f'Choose another, with send_as = "{injected.name}".',
        )
    if tool.takes_of:
        hints["of"] = Of
        parameters.append(inspect.Parameter("of", inspect.Parameter.KEYWORD_ONLY))
    function.__name__, function.__doc__, function.__annotations__ = name, tool.description, hints
    setattr(function, "__signature__", inspect.Signature(parameters))  # noqa: B010 - what inspect.signature reads; functions have no such attribute
    return function


def _annotation(key: str, argument: HttpArgument, *, in_path: bool) -> Any:
    """The argument's type with its limits. Raises `ConfigError` for a pattern that is none."""
    limits: dict[str, Any] = {"description": argument.description or None}
    kind: Any = _TYPES[argument.type]
    if argument.type == "string":
        limits["min_length"] = max(argument.min_length, 1 if in_path else 0) or None
        limits["max_length"] = argument.max_length or STRING_CHARS_MAX
        limits["pattern"] = argument.pattern
    limits |= {"ge": argument.minimum, "le": argument.maximum}
    if argument.choices:
        kind = Literal[argument.choices]
        limits = {"description": limits["description"]}
    given = Field(**{name: value for name, value in limits.items() if value is not None})
    hint: Any = Annotated[kind, given, AfterValidator(_no_dots)] if in_path and argument.type == "string" else None
    hint = Annotated[kind, given] if hint is None else hint
    try:
        TypeAdapter(hint)
    except (SchemaError, PydanticUserError):
        raise ConfigError(f"{key}: its pattern or limits cannot be used.", key=key) from None
    return hint


def _no_dots(value: str) -> str:
    """`.` and `..` are parts of a path that no escaping keeps from being taken away."""
    if not value.strip("."):
        raise ValueError("dots alone are no part of a path")
    return value
