"""Decides what a tool's arguments are: a strict model made from the function's signature, and what a caller may pass.

Parameters are the model's arguments, except the keyword-only `key`, `of` and `expected_version`: the worker injects those,
and no schema has them. Identity never comes from a model: the reserved names are refused in signatures and in calls.
"""

from __future__ import annotations

import difflib
import inspect
import json
import typing
from collections.abc import Callable, Mapping
from types import UnionType

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic_core.core_schema import ErrorType

from counterfoil.ledger.errors import ArgumentError
from counterfoil.providers.outcomes import Json

RESERVED = frozenset({"idempotency_key", "action_id", "tenant_id", "tenant", "run_id", "step", "key", "of"})
INJECTED = frozenset({"key", "of", "expected_version"})
"""When they are keyword-only; elsewhere the first two are refused, and the third is an argument like any other."""
_PREFIX = "arg_"  # the model's own attributes (`schema`, `copy`, `json`) stay usable as argument names
_CODES = {"missing": "missing_argument", "extra_forbidden": "unknown_argument"}
_QUOTES = frozenset({
    "value_error", "assertion_error", "union_tag_invalid", "get_attribute_error", "iteration_error", "mapping_type",
    "bytes_invalid_encoding",
})  # fmt: skip
"""Kinds of pydantic's whose messages are in the words of the tool's code, or quote the value."""
_TELLS_NO_VALUE = frozenset(typing.get_args(ErrorType)) - _QUOTES
"""A kind that is not pydantic's (`PydanticCustomError`) is in the words of the tool's code, too."""


class SignatureRefused(Exception):
    """The function's signature cannot be a tool's; the message says why and what to write instead."""


class Arguments:
    """The argument model of one tool. Immutable; compares by identity."""

    def __init__(self, model: type[BaseModel], names: tuple[str, ...], required: frozenset[str]) -> None:
        self._model = model
        self.names = names
        self.required = required

    def validate(self, arguments: Mapping[str, object]) -> dict[str, Json]:
        """The arguments as recorded: JSON with every default filled in. Raises ArgumentError for the first bad one."""
        for name in arguments:
            if name in RESERVED:
                raise ArgumentError("this name is reserved: leave it out.", path=f"$.{name}", code="reserved_argument")
        dumped: dict[str, Json] = self._parse(arguments).model_dump(mode="json", by_alias=True)
        return dumped

    def bind(self, arguments: Mapping[str, object]) -> dict[str, object]:
        """Recorded arguments as the Python values that the function's annotations promise."""
        model = self._parse(arguments)
        return {name: getattr(model, _PREFIX + name) for name in self.names}

    def schema(self) -> dict[str, object]:
        """JSON schema of the arguments, without titles."""
        schema: dict[str, object] = self._model.model_json_schema(by_alias=True)
        schema.pop("title", None)
        properties = schema.get("properties")
        if isinstance(properties, dict):
            for prop in properties.values():
                prop.pop("title", None)
        return schema

    def _parse(self, arguments: Mapping[str, object]) -> BaseModel:
        try:
            text = json.dumps(dict(arguments), allow_nan=False)
        except (TypeError, ValueError, RecursionError) as exc:
            raise ArgumentError("the arguments are not JSON.", path="$", code="not_json") from exc
        try:
            return self._model.model_validate_json(text)
        except ValidationError as exc:
            error = exc.errors(include_url=False, include_input=False, include_context=False)[0]
            kind = error["type"]
            message, fix = error["msg"], ""
            reason = "" if kind in _TELLS_NO_VALUE else message
            if reason:
                message = "the value is refused"
            elif kind in _CODES and len(error["loc"]) == 1:
                message = "the tool needs this argument" if kind == "missing" else "the tool has no such argument"
                fix = self._what_it_takes(str(error["loc"][0]) if kind != "missing" else "")
            # `from None`: pydantic's own text quotes the value, and arguments reach no log.
            raise ArgumentError(
                f"{message}.",
                path=_path(error["loc"]),
                code=_CODES.get(kind, "invalid_argument"),
                fix=fix,
                reason=reason.removeprefix("Value error, ").removeprefix("Assertion failed, "),
            ) from None

    def _what_it_takes(self, given: str) -> str:
        [near, *_] = [*difflib.get_close_matches(given, self.names, 1), ""]
        takes = f"It takes {', '.join(self.names) or 'none'}."
        return f"Did you mean {near}? {takes}" if near else takes


def arguments_of(function: Callable[..., object]) -> tuple[Arguments, dict[str, object]]:
    """The argument model, and the injected parameters with their annotations. Raises SignatureRefused."""
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError, AttributeError) as exc:
        raise SignatureRefused(f"its annotations cannot be resolved ({exc})") from exc
    fields: dict[str, tuple[object, FieldInfo]] = {}
    injected: dict[str, object] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        _check(parameter, hints)
        if parameter.kind is parameter.KEYWORD_ONLY and name in INJECTED:
            injected[name] = hints.get(name, str)
            continue
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[_PREFIX + name] = (hints[name], Field(default, alias=name))
    try:
        model = create_model(
            f"{function.__name__}_arguments",
            __config__=ConfigDict(strict=True, extra="forbid", frozen=True, validate_default=True),
            **typing.cast(typing.Any, fields),
        )
        model.model_json_schema()
    except PydanticUserError as exc:
        raise SignatureRefused(f"pydantic cannot make an argument model of it ({exc.code})") from exc
    required = frozenset(f.alias for f in model.model_fields.values() if f.is_required() and f.alias is not None)
    return Arguments(model, tuple(name.removeprefix(_PREFIX) for name in fields), required), injected


def result_fields_of(function: Callable[..., object]) -> tuple[str, ...]:
    """The fields that a TypedDict or pydantic return annotation declares, alone or beside outcomes; () for any other."""
    returned = typing.get_type_hints(function).get("return")
    for kind in typing.get_args(returned) if isinstance(returned, UnionType) else (returned,):
        if typing.is_typeddict(kind) or (isinstance(kind, type) and issubclass(kind, BaseModel)):
            return tuple(typing.get_type_hints(kind))
    return ()


def _check(parameter: inspect.Parameter, hints: Mapping[str, object]) -> None:
    name = parameter.name
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        raise SignatureRefused(f"`*{name}` hides arguments: name each one")
    if parameter.kind is parameter.POSITIONAL_ONLY:
        raise SignatureRefused(f"`{name}` is positional-only: arguments are passed by name")
    if name in INJECTED and parameter.kind is parameter.KEYWORD_ONLY:
        return
    if name in INJECTED & RESERVED:
        raise SignatureRefused(f"`{name}` is injected: make it keyword-only (`*, {name}: str`)")
    if name in RESERVED:
        raise SignatureRefused(f"`{name}` is reserved: identity never comes from a model, choose another name")
    if name not in hints:
        raise SignatureRefused(f"`{name}` has no annotation")


def _path(loc: tuple[int | str, ...]) -> str:
    return "$" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc)
