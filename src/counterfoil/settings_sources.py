"""Decides where settings come from (TOML, then environment over it) and how a mistake in them is told."""

from __future__ import annotations

import difflib
import re
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_settings import BaseSettings, EnvSettingsSource
from pydantic_settings.exceptions import SettingsError

from counterfoil.ledger.errors import ConfigError

FILE_NAME = "counterfoil.toml"
PREFIX = "COUNTERFOIL_"
NESTING = "__"
FILE_VARIABLE = "COUNTERFOIL_CONFIG"
"""Names the TOML file."""

SANDBOX_VARIABLE = "COUNTERFOIL_SANDBOX_URL"
"""Where `counterfoil up` has the sandbox: for people's own tools and scripts."""

PERSON_VARIABLE = "COUNTERFOIL_PERSON"
"""The name under which a person decides at the command line."""

NO_SETTINGS = frozenset(
    {
        FILE_VARIABLE,
        "COUNTERFOIL_HOME",
        "COUNTERFOIL_POSTGRES",
        "COUNTERFOIL_CRASH_AT",
        "COUNTERFOIL_CRASH_MARK",
        "COUNTERFOIL_CRASH_HOLD_S",
        SANDBOX_VARIABLE,
        PERSON_VARIABLE,
    }
)
"""Variables of ours that are no settings: the file, the local stack's data, who sits here, a crash for a test."""

_SERVICE_LINK = re.compile(
    r"COUNTERFOIL_([A-Z0-9_]+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?)"
)
"""Kubernetes puts these into every pod for a Service whose name begins with `counterfoil`."""


def find_file(path: Path | None, environ: Mapping[str, str]) -> Path | None:
    """The file to read: `path`, or what COUNTERFOIL_CONFIG names, or `counterfoil.toml` here; None = there is none."""
    named = path or (Path(environ[FILE_VARIABLE]) if environ.get(FILE_VARIABLE) else None)
    if named is None:
        return Path(FILE_NAME) if Path(FILE_NAME).is_file() else None
    if not named.is_file():
        told = "is no file" if named.exists() else "does not exist"
        raise ConfigError(f"{named} {told}.", key=str(named), fix=f"Correct the path or {FILE_VARIABLE}.")
    return named


def read_file(path: Path) -> dict[str, Any]:
    """The file's content; relative `*_file` paths in it are meant from the file's own folder."""
    try:
        text = path.read_text(encoding="utf-8")
        content = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        problem = str(error) if isinstance(error, tomllib.TOMLDecodeError) else "not UTF-8"
    except OSError as error:
        problem = error.strerror or "cannot be read"
    else:
        _anchor(content, path.absolute().parent)
        return content
    # Outside the handlers: a decoding error carries the text, which may hold secrets.
    raise ConfigError(f"{path} is not readable TOML: {problem}.", key=str(path), fix=_table_hint(path))


def read_environ(settings: type[BaseSettings], environ: Mapping[str, str]) -> dict[str, Any]:
    """The settings that COUNTERFOIL_* variables give, nested by `__`, upper or lower case; lists are JSON."""
    variables = {name.upper(): value for name, value in environ.items() if name.upper().startswith(PREFIX)}
    for name in variables:
        top = name.removeprefix(PREFIX).split(NESTING)[0].lower()
        if top in settings.model_fields or name in NO_SETTINGS or _SERVICE_LINK.fullmatch(name):
            continue
        fix = _nearest(top, list(settings.model_fields))
        raise ConfigError(f"environment: {name} is no setting.", key=name, fix=fix)
    source = EnvSettingsSource(settings, case_sensitive=False, env_prefix=PREFIX, env_nested_delimiter=NESTING)
    source.env_vars = {name.lower(): value for name, value in variables.items()}
    try:
        return source()
    except (SettingsError, ValueError):
        problem = "a variable that holds a list or a table is not valid JSON"
    raise ConfigError(f"environment: {problem}.", key=PREFIX)  # outside the handler: its exception holds the value


def explain(
    error: ValidationError, settings: type[BaseSettings], from_environ: Mapping[str, Any], file: Path | None
) -> ConfigError:
    """The first mistake in words: where it was written, the key, and the nearest name or what is expected."""
    first = error.errors(include_input=False, include_url=False, include_context=False)[0]
    place = [str(part) for part in first["loc"] if part != "[key]"]
    key = ".".join(place)
    if _holds(from_environ, place):
        where, key = "environment", PREFIX + NESTING.join(place).upper()
    else:
        where = str(file or "settings")
    if first["type"] == "extra_forbidden":
        names = _names_at(settings, place[:-1])
        return ConfigError(f"{where}: {key} is no setting.", key=key, fix=_nearest(place[-1], names))
    expected = (
        first["msg"].removeprefix("Value error, ").replace("Input should be", "expected").replace("tuple", "list")
    )
    return ConfigError(f"{where}: {key}: {expected}.", key=key, fix=_hint(place, first["type"]))


def _hint(place: Sequence[str], mistake: str) -> str:
    """What the key takes instead, where the mistake alone does not say it."""
    match place:
        case ["tools"]:
            return "Tables for single tools are [tool.NAME]."
        case ["tool", _, "approval"]:
            return "Configuration can ask for more approvals than a tool's code, never for fewer."
        case _ if mistake in ("tuple_type", "list_type"):
            return 'In square brackets, each in quotes: ["…", "…"].'
        case _:
            return ""


def merge(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Both tables in one; where both have a value, `over` wins, key by key."""
    merged = dict(under)
    for key, value in over.items():
        below = merged.get(key)
        both = isinstance(value, Mapping) and isinstance(below, Mapping)
        merged[key] = merge(below, value) if both else value  # type: ignore[arg-type]
    return merged


def _anchor(table: dict[str, Any], folder: Path) -> None:
    for key, value in table.items():
        if isinstance(value, dict):
            _anchor(value, folder)
        elif key.endswith("_file") and isinstance(value, str) and value:
            table[key] = str(folder / value)


def _table_hint(path: Path) -> str:
    """TOML has one meaning for each name: `tools` is the list of modules, so a table of that name cannot follow."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        return ""
    return (
        "Tables for single tools are [tool.NAME]." if any(line.strip().startswith(b"[tools.") for line in lines) else ""
    )


def _holds(table: object, place: list[str]) -> bool:
    for part in place:
        if not isinstance(table, Mapping) or part not in table:
            return False
        table = table[part]
    return bool(place)


def _names_at(model: type[BaseModel], place: list[str]) -> list[str]:
    """The keys that the table at `place` may have."""
    current: object = model
    for part in place:
        if isinstance(current, type) and issubclass(current, BaseModel):
            fields = {field.alias or name: field for name, field in current.model_fields.items()}
            current = _table_of(fields[part].annotation)
        else:  # dict[str, Model]: the part is the user's own name
            current = typing.get_args(current)[1]
    if isinstance(current, type) and issubclass(current, BaseModel):
        return [field.alias or name for name, field in current.model_fields.items()]
    return []


def _table_of(annotation: object) -> object:
    """A table that may be left out is `Model | None`: the model."""
    models = [kind for kind in typing.get_args(annotation) if isinstance(kind, type) and issubclass(kind, BaseModel)]
    return models[0] if isinstance(annotation, types.UnionType) and models else annotation


def _nearest(name: str, names: list[str]) -> str:
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"Did you mean {close[0]}?" if close else f"Known here: {', '.join(sorted(names))}."
