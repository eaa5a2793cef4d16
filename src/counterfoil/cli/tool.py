"""`counterfoil tool list|check`: what agents may call, and what each call promises."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Annotated, Any

import typer

from counterfoil.cli import place
from counterfoil.cli.options import AsJson, ConfigPath, group
from counterfoil.cli.output import as_json, say, table
from counterfoil.ledger.errors import ConfigError, NotFound

if TYPE_CHECKING:
    from counterfoil.providers.contract import Contract
    from counterfoil.providers.registry import Registry
    from counterfoil.providers.spec import ToolSpec
    from counterfoil.settings import Settings

app = group("Tools: what agents may call, and what each call promises.")


@app.command("list")
def list_tools(json_: AsJson = False, config: ConfigPath = None) -> None:
    """List the tools of the modules under `tools`, each with its class, audience, undo and grade.

    Grade: A the provider deduplicates by our key, B exact look-up, C look-up behind a lagging index, D neither: an
    unknown outcome goes to a person.

    \b
    counterfoil tool list
    """
    from counterfoil.providers.registry import Registry
    from counterfoil.settings_contracts import contract_in_force

    settings = place.load_settings(config)
    registry = Registry.load(settings.tools)
    tools = [_shown(spec, contract_in_force(spec.contract, spec.provider, settings)) for spec in registry]
    tools.sort(key=lambda tool: (tool["provider"], tool["name"], tool["version"]))
    if json_:
        return as_json(tools)
    table(
        ("tool", "version", "class", "effect", "audience", "undo", "grade", "approval"),
        [[_cell(tool[name]) for name in _COLUMNS] for tool in tools],
        empty="no tools: name their modules under `tools` in counterfoil.toml",
    )
    return None


@app.command()
def check(
    names: Annotated[list[str] | None, typer.Argument(metavar="[TOOL]...", help="Only these; default all.")] = None,
    json_: AsJson = False,
    config: ConfigPath = None,
) -> None:
    """Load the tools as a worker does and hold their contracts against the configured times.

    \b
    counterfoil tool check
    counterfoil tool check stripe_charge
    """
    settings = place.load_settings(config)
    registry = check_tools(settings)
    unknown = next((name for name in names or () if registry.find(name) is None), None)
    if unknown is not None:
        raise NotFound(f"there is no tool {unknown!r}.", fix=_nearest(unknown, registry))
    checked = sorted(names or registry.names())
    if json_:
        return as_json({"checked": checked})
    say(f"{len(checked)} tools fit their configuration: {', '.join(checked)}" if checked else "no tools are configured")
    return None


def check_tools(settings: Settings) -> Registry:
    """Every tool loads, every contract fits, every tool that the configuration names exists. Raises what does not hold."""
    from counterfoil.providers.registry import Registry
    from counterfoil.settings_contracts import check_contract, contract_in_force

    registry = Registry.load(settings.tools)
    for spec in registry:
        check_contract(spec.name, contract_in_force(spec.contract, spec.provider, settings), spec.provider, settings)
    named = [(f"tool.{name}", name) for name in settings.tool]
    named += [("approval.two_person", name) for name in settings.approval.two_person]
    for key, name in named:
        if registry.find(name) is None:
            raise ConfigError(
                f"{key} names the tool {name!r}, which is not loaded.", key=key, fix=_nearest(name, registry)
            )
    return registry


_COLUMNS = ("name", "version", "class", "effect", "audience", "undo", "grade", "approval")


def _shown(spec: ToolSpec, contract: Contract) -> dict[str, Any]:
    pure = spec.effect is None
    return {
        "name": spec.name,
        "version": spec.version,
        "class": spec.cls.value,
        "provider": spec.provider,
        "effect": spec.effect,
        "audience": "by arguments" if callable(spec.audience) else list(spec.audience),
        "undo": "by arguments" if callable(spec.undo) else spec.undo,
        "grade": None if pure else contract.grade.value,
        "approval": spec.approval,
    }


def _cell(value: object) -> object:
    return ", ".join(value) or None if isinstance(value, list) else value


def _nearest(name: str, registry: Registry) -> str:
    near = difflib.get_close_matches(name, registry.names(), n=1)
    return f"Did you mean {near[0]!r}?" if near else "`counterfoil tool list` shows those that there are."
