"""Decides which tools a process has: loads their modules, refuses clashes, and resolves undo and look-up by name.

Loading imports the modules with the declarations only; a provider's client is loaded by `adapter_of`, in workers.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType, ModuleType
from typing import cast

from counterfoil.ledger.errors import ConfigError, ToolDefinitionError
from counterfoil.providers.contract import Adapter, ToolClass
from counterfoil.providers.functions import LOOKUP_INJECTED, FunctionAdapter
from counterfoil.providers.http.tools import http_specs
from counterfoil.providers.spec import ToolSpec
from counterfoil.providers.tool import MODULE_ATTRIBUTE, SPEC_ATTRIBUTE
from counterfoil.settings_http import HttpTool

NO_HTTP: Mapping[str, HttpTool] = MappingProxyType({})


class Registry:
    """The tools of one process, by name and version. Complete after `load`; read-only from then on."""

    def __init__(self) -> None:
        self._tools: dict[tuple[str, int], ToolSpec] = {}

    @classmethod
    def load(cls, modules: Sequence[str], http: Mapping[str, HttpTool] = NO_HTTP) -> Registry:
        """Imports each module and takes its tools, and those that `[http.NAME]` declares. Raises ConfigError (no module, no
        tools) and ToolDefinitionError."""
        registry = cls()
        for name in modules:
            specs = list(_specs_in(_import(name)))
            if not specs:
                raise ConfigError(
                    f"the module {name!r} declares no tools.", key="tools", fix="Decorate one with @tool."
                )
            for spec in specs:
                registry.add(spec)
        for spec in http_specs(http):
            registry.add(spec)
        registry.resolve()
        return registry

    def add(self, spec: ToolSpec) -> None:
        """Takes one tool; the same declaration twice is one. Call `resolve` after the last."""
        known = self._tools.setdefault((spec.name, spec.version), spec)
        if known.function is not spec.function:
            raise ToolDefinitionError(
                f"tool {spec.name!r} version {spec.version} is already declared at {known.file}:{known.line}",
                file=spec.file,
                line=spec.line,
                fix="Rename one, or raise its `version`.",
            )

    def resolve(self) -> None:
        """Finds every undo tool and look-up function that a declaration names. Raises ToolDefinitionError."""
        newest = {name: self.get(name) for name in self.names()}
        for identity, spec in self._tools.items():
            lookup = _lookup_function(spec)
            _check_scope(spec, newest)
            undo_tools = {k: v for k, v in newest.items() if v.takes_of} if callable(spec.undo) else {}
            if isinstance(spec.undo, str):
                undo_tools = {spec.undo: _undo_tool(spec, newest)}
            self._tools[identity] = replace(
                spec,
                lookup=lookup,
                resource_version=_version_function(spec),
                undo_tools=MappingProxyType(undo_tools),
                correction_tools=MappingProxyType({k: v for k, v in newest.items() if spec.correction and v.can_tell}),
            )

    def get(self, name: str, version: int | None = None) -> ToolSpec:
        """The tool, its newest version by default. Raises ConfigError naming the nearest."""
        spec = self.find(name, version)
        if spec is None:
            wanted = name if version is None else f"{name} version {version}"
            near = difflib.get_close_matches(name, self.names(), n=1)
            fix = f"Did you mean {near[0]!r}?" if near else "List its module under `tools`."
            raise ConfigError(f"there is no tool {wanted!r}.", key="tools", fix=fix)
        return spec

    def find(self, name: str, version: int | None = None) -> ToolSpec | None:
        """The tool, or None: a worker without it leaves the action to others."""
        if version is not None:
            return self._tools.get((name, version))
        return max((s for s in self._tools.values() if s.name == name), key=lambda s: s.version, default=None)

    def names(self) -> list[str]:
        """All tools' names, sorted."""
        return sorted({spec.name for spec in self._tools.values()})

    def schemas(self) -> list[dict[str, object]]:
        """What a model is shown: the newest version of each tool that it may call, so no counter-actions."""
        return [spec.schema() for spec in map(self.get, self.names()) if not spec.takes_of]

    def __iter__(self) -> Iterator[ToolSpec]:
        return iter(self._tools.values())


def with_functions(spec: ToolSpec) -> ToolSpec:
    """One tool outside a registry, with the functions that its declaration names. Raises ToolDefinitionError."""
    return replace(spec, lookup=_lookup_function(spec), resource_version=_version_function(spec))


def adapter_of(spec: ToolSpec, config: object = None) -> Adapter:
    """A new adapter for the tool's provider, made with the provider's config. Imports the client: workers only."""
    if spec.adapter is None:
        return FunctionAdapter(spec)
    module, _, name = spec.adapter.partition(":")
    made = cast("Callable[[object], Adapter]", getattr(importlib.import_module(module), name))
    return made(config)


_WHERE = "Is it spelled right? It is looked for where Python looks: installed packages, PYTHONPATH, and this folder."


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as exc:
        if exc.name is None or not f"{name}.".startswith(f"{exc.name}."):
            raise
        raise ConfigError(f"there is no module {name!r}.", key="tools", fix=_WHERE) from exc


def _specs_in(module: ModuleType) -> Iterator[ToolSpec]:
    """The module's own declarations, shadowed ones too, then those it imports from elsewhere."""
    yield from getattr(module, MODULE_ATTRIBUTE, ())
    for value in vars(module).values():
        spec = getattr(value, SPEC_ATTRIBUTE, None)
        if isinstance(spec, ToolSpec):
            yield spec


def _undo_tool(spec: ToolSpec, tools: dict[str, ToolSpec]) -> ToolSpec:
    name = cast("str", spec.undo)
    undo = tools.get(name)
    if undo is None or undo.cls is ToolClass.PURE:
        near = difflib.get_close_matches(name, tools, n=1)
        raise _refused(spec, f"its undo {name!r} is no tool that acts", f"Did you mean {near[0]!r}?" if near else "")
    missing = sorted(undo.arguments.required - set(spec.arguments.names))
    if missing:
        raise _refused(spec, f"its undo {name!r} needs {', '.join(missing)}, which it does not have", "")
    return undo


def _lookup_function(spec: ToolSpec) -> Callable[..., object] | bool | None:
    if isinstance(spec.lookup, str):
        function = vars(importlib.import_module(spec.function.__module__)).get(spec.lookup)
    else:
        function = spec.lookup
    if function is None or isinstance(function, bool):
        if isinstance(spec.lookup, str):
            raise _refused(spec, f"its look-up {spec.lookup!r} is no function of the same module", "")
        return function
    if not inspect.isfunction(function) or inspect.isasyncgenfunction(function):
        raise _refused(spec, f"its look-up {spec.lookup!r} is no function", "")
    for name, parameter in inspect.signature(function).parameters.items():
        known = name in LOOKUP_INJECTED or name in spec.arguments.names
        if not known and parameter.default is parameter.empty:
            raise _refused(spec, f"its look-up takes {name!r}: neither an argument of the tool, nor injected", "")
        if name == "key" and not spec.takes_key and spec.adapter is None:
            raise _refused(spec, "its look-up asks by `key`, which the tool does not send: add `*, key: str`", "")
    return function


def _version_function(spec: ToolSpec) -> Callable[..., object] | bool | None:
    """What reads the version of the tool's resource: it takes arguments of the tool, and `of`."""
    if spec.resource_version is None or isinstance(spec.resource_version, bool):
        return spec.resource_version
    function: object = spec.resource_version
    if isinstance(function, str):
        function = vars(importlib.import_module(spec.function.__module__)).get(function)
    if not inspect.isfunction(function) or inspect.isasyncgenfunction(function):
        raise _refused(spec, f"its resource_version {spec.resource_version!r} is no function of the same module", "")
    for name, parameter in inspect.signature(function).parameters.items():
        known = name in spec.arguments.names or (name == "of" and spec.takes_of)
        if not known and parameter.default is parameter.empty:
            raise _refused(spec, f"its resource_version takes {name!r}, which is no argument of the tool", "")
    return function


def _check_scope(spec: ToolSpec, tools: dict[str, ToolSpec]) -> None:
    """One effect has one scope: otherwise who excludes whom would depend on who came first."""
    for other in tools.values():
        if spec.effect is not None and other.effect == spec.effect and other.effect_scope != spec.effect_scope:
            raise _refused(
                spec,
                f"its effect {spec.effect!r} has scope {spec.effect_scope!r}, with {other.name!r} {other.effect_scope!r}",
                "Give all tools of one effect the same `effect_scope`.",
            )


def _refused(spec: ToolSpec, why: str, fix: str) -> ToolDefinitionError:
    return ToolDefinitionError(f"tool {spec.name!r}: {why}", file=spec.file, line=spec.line, fix=fix)
