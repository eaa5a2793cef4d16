"""`counterfoil tool list|show|check|grade`: what agents may call, and what each call promises."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import typer

from counterfoil.cli import place
from counterfoil.cli.options import AsJson, ConfigPath, group
from counterfoil.cli.output import as_json, clean, facts, progress, say, stop, table
from counterfoil.ledger.errors import ConfigError, CounterfoilError, NotFound

if TYPE_CHECKING:
    from counterfoil.providers.autonomy import Autonomy
    from counterfoil.providers.registry import Registry
    from counterfoil.providers.spec import ToolSpec
    from counterfoil.settings import Settings
    from counterfoil.testing import Subject

app = group("Tools: what agents may call, and what each call promises.")


@app.command("list")
def list_tools(
    reasons: Annotated[bool, typer.Option("--reasons", help="Also why each has its autonomy.")] = False,
    json_: AsJson = False,
    config: ConfigPath = None,
) -> None:
    """List the tools of the modules under `tools`, each with its class, audience, undo, grade and autonomy.

    Grade: A the provider deduplicates by our key, B exact look-up, C look-up behind a lagging index, D neither: an
    unknown outcome goes to a person. Autonomy, what it does without a person: free (changes nothing), alone, bounded
    (alone within bounds), once (an unknown outcome stops at a person), person, two_persons (each call is approved).

    \b
    counterfoil tool list
    counterfoil tool list --reasons
    """
    from counterfoil.providers.registry import Registry

    settings = place.load_settings(config)
    registry = Registry.load(settings.tools, settings.http)
    tools = [_shown(spec, registry, settings) for spec in registry]
    tools.sort(key=lambda tool: (tool["provider"], tool["name"], tool["version"]))
    if json_:
        return as_json(tools)
    table(
        ("tool", "version", "class", "effect", "audience", "undo", "grade", "approval", "autonomy"),
        [[_cell(tool[name]) for name in _COLUMNS] for tool in tools],
        empty="no tools: name their modules under `tools` in counterfoil.toml",
    )
    for tool in tools if reasons else ():
        say()
        say(f"{tool['name']}: {tool['autonomy']}")
        for reason in tool["reasons"]:
            say(f"  {clean(reason)}")
    return None


@app.command()
def show(
    name: Annotated[str, typer.Argument(metavar="TOOL", help="Its name, as in `tool list`.")],
    json_: AsJson = False,
    config: ConfigPath = None,
) -> None:
    """Show one tool as a model sees it: its description and its arguments. --json prints the schema itself.

    \b
    counterfoil tool show stripe_charge
    counterfoil tool show stripe_charge --json
    """
    from counterfoil.providers.registry import Registry

    settings = place.load_settings(config)
    registry = Registry.load(settings.tools, settings.http)
    spec = registry.find(name)
    if spec is None:
        raise NotFound(f"there is no tool {name!r}.", fix=_nearest(name, registry.names()))
    if json_:
        return as_json(spec.schema())
    facts(
        (
            ("tool", f"{spec.name} version {spec.version}"),
            ("does", spec.description),
            ("called", "with `of`, the action that it is about, in a plan or an unwind" if spec.takes_of else None),
            ("result", ", ".join(spec.result_fields)),
        )
    )
    say()
    table(("argument", "needed", "what it is"), list(_arguments(spec)), empty="no arguments")
    return None


@app.command()
def check(
    names: Annotated[list[str] | None, typer.Argument(metavar="TOOL", help="Only these; default all.")] = None,
    json_: AsJson = False,
    config: ConfigPath = None,
) -> None:
    """Load the tools as a worker does, hold their contracts against the configured times, and warn of missing bounds.

    \b
    counterfoil tool check
    counterfoil tool check stripe_charge
    """
    settings = place.load_settings(config)
    registry = check_tools(settings)
    unknown = next((name for name in names or () if registry.find(name) is None), None)
    if unknown is not None:
        raise NotFound(f"there is no tool {unknown!r}.", fix=_nearest(unknown, registry.names()))
    checked = sorted(names or registry.names())
    shown = [_shown(registry.get(name), registry, settings) for name in checked]
    warnings = [{"tool": tool["name"], "warning": said} for tool in shown for said in tool["missing"]]
    if json_:
        return as_json({"checked": checked, "warnings": warnings})
    say(f"{len(checked)} tools fit their configuration: {', '.join(checked)}" if checked else "no tools are configured")
    for warning in warnings:
        say(f"warning: {warning['tool']}: {clean(warning['warning'])}")
    return None


@app.command("grade")
def grade_tools(
    subjects: Annotated[
        list[str],
        typer.Argument(metavar="SUBJECT", help="module:NAME of a counterfoil.testing.Subject, or of several."),
    ],
    json_: AsJson = False,
) -> None:
    """Grade tools by what is shown: every fault of the sandbox, the look-up's lag, repeats of the native key.

    Starts a sandbox of its own, with the subject's double, for some seconds a tool. Reads no configuration. Exit code 1:
    something contradicts what a tool declares.

    \b
    counterfoil tool grade test_parcels:PARCEL
    counterfoil tool grade tests.subjects:SUBJECTS --json
    """
    from counterfoil.sandbox.client import SandboxError
    from counterfoil.testing import grade

    reports = []
    try:
        for subject in [subject for place in subjects for subject in _subjects_at(place)]:
            report = grade(subject, progress=partial(progress, subject.name))
            reports.append(report)
            for line in () if json_ else str(report).splitlines():
                say(clean(line))
    except (ValueError, SandboxError) as mistake:
        if isinstance(mistake, CounterfoilError):
            raise
        raise ConfigError(f"the subject has a mistake: {mistake}", key="SUBJECT") from mistake
    if json_:
        as_json([report.to_json() for report in reports])
    if not all(report.passed for report in reports):
        stop(1)


def _subjects_at(place: str) -> list[Subject]:
    from counterfoil.testing import Subject

    module, _, name = place.partition(":")
    try:
        found = getattr(import_module(module), name, None) if name else None
    except ModuleNotFoundError as missing:
        if missing.name is None or not f"{module}.".startswith(f"{missing.name}."):
            raise
        found = None
    several = [found] if isinstance(found, Subject) else list(found) if isinstance(found, Sequence) else []
    if not several or not all(isinstance(subject, Subject) for subject in several):
        raise ConfigError(
            f"{place!r} is no subject.", key="SUBJECT", fix="Write module:NAME of a counterfoil.testing.Subject."
        )
    return several


def check_tools(settings: Settings) -> Registry:
    """Every tool loads, every contract fits, every tool that the configuration names exists. Raises what does not hold."""
    from counterfoil.outbox.setup import check_caps
    from counterfoil.providers.registry import Registry
    from counterfoil.settings_contracts import check_contract, check_http_addresses, contract_in_force

    registry = Registry.load(settings.tools, settings.http)
    for spec in registry:
        check_contract(spec.name, contract_in_force(spec.contract, spec.provider, settings), spec.provider, settings)
        check_caps(spec, settings)
    check_http_addresses(settings)
    named = [(f"tool.{name}", name) for name in settings.tool]
    named += [("approval.two_person", name) for name in settings.approval.two_person]
    for key, name in named:
        if registry.find(name) is None:
            raise ConfigError(
                f"{key} names the tool {name!r}, which is not loaded.", key=key, fix=_nearest(name, registry.names())
            )
    effects = {spec.effect for spec in registry if spec.effect}
    for name in settings.effect:
        if name not in effects:
            key = f"effect.{name}"
            raise ConfigError(f"{key} caps the effect of no loaded tool.", key=key, fix=_nearest(name, effects))
    return registry


_COLUMNS = ("name", "version", "class", "effect", "audience", "undo", "grade", "approval", "autonomy")


def autonomy_of(spec: ToolSpec, registry: Registry, settings: Settings) -> Autonomy:
    """What the tool may do alone, among these tools and under these settings."""
    from counterfoil.ledger.caps import NO_CAPS
    from counterfoil.outbox.setup import door_rules
    from counterfoil.providers.autonomy import Bounds, autonomy
    from counterfoil.settings_contracts import contract_in_force

    rules = door_rules(settings)
    bounds = Bounds(
        always_asks=spec.name in rules.approval_tools,
        asks_above_minor=rules.approval_above_minor.get(spec.name),
        two_persons=spec.name in rules.two_person,
        audiences_always=rules.audiences_always,
        bulk_above=rules.bulk_above,
        tool_caps=rules.caps.tools.get(spec.name, NO_CAPS),
        effect_caps=rules.caps.effects.get(spec.effect or "", NO_CAPS),
    )
    undoes = any(spec.name in other.undo_tools for other in registry)
    return autonomy(spec, contract_in_force(spec.contract, spec.provider, settings), bounds, undoes=undoes)


def _shown(spec: ToolSpec, registry: Registry, settings: Settings) -> dict[str, Any]:
    from counterfoil.settings_contracts import contract_in_force

    pure = spec.effect is None
    contract = contract_in_force(spec.contract, spec.provider, settings)
    found = autonomy_of(spec, registry, settings)
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
        "autonomy": found.level.value,
        "reasons": list(found.reasons),
        "missing": list(found.missing),
    }


def _arguments(spec: ToolSpec) -> Iterator[tuple[str, str, str]]:
    schema: dict[str, Any] = spec.arguments.schema()
    for name, about in schema.get("properties", {}).items():
        needed = "yes" if name in schema.get("required", ()) else f"no, {json.dumps(about.get('default'))}"
        about = {**next((kind for kind in about.get("anyOf", ()) if kind.get("type") != "null"), {}), **about}
        kind = "one of " + ", ".join(map(str, about["enum"])) if "enum" in about else about.get("type", "")
        yield name, needed, ". ".join(filter(None, (kind, about.get("description", ""))))


def _cell(value: object) -> object:
    return ", ".join(value) or None if isinstance(value, list) else value


def _nearest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return (
        f"Did you mean {near[0]!r}?"
        if near
        else "`counterfoil tool list` shows those that there are: put its module under `tools`."
    )
