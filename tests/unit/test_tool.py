"""The decorator: what makes a function a tool, and every reason for which it is refused."""

from __future__ import annotations

import re
import subprocess
import sys
import types
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import Field

from counterfoil.ledger.errors import ArgumentError, ConfigError, ToolDefinitionError
from counterfoil.outbox.intents import check_call
from counterfoil.providers.contract import Grade, ToolClass
from counterfoil.providers.registry import Registry
from counterfoil.providers.spec import ToolSpec
from counterfoil.providers.tool import SPEC_ATTRIBUTE, tool

SHIPMENT: dict[str, Any] = {
    "cls": "compensatable",
    "effect": "shipment",
    "target": "order_id",
    "once_per": "order_id",
    "audience": ["warehouse"],
    "undo": "cancel_shipment",
    "native_key_ttl_s": 86400,
}


def ship(order_id: str, sku: str, weight_g: int = 500, *, key: str) -> dict[str, object]:
    """Ship a parcel."""
    return {"id": f"{order_id}-{sku}-{weight_g}-{key}"}


def declare(function: Callable[..., object] = ship, **changes: Any) -> ToolSpec:
    """`ship` as a tool, with some keywords changed, or left out where they are `...`."""
    keywords = {name: value for name, value in {**SHIPMENT, **changes}.items() if value is not ...}
    fresh = types.FunctionType(
        function.__code__, {**globals()}, function.__name__, function.__defaults__, function.__closure__
    )
    fresh.__kwdefaults__, fresh.__doc__ = function.__kwdefaults__, function.__doc__
    fresh.__annotations__, fresh.__module__ = dict(function.__annotations__), function.__module__
    spec = getattr(tool(**keywords)(fresh), SPEC_ATTRIBUTE)
    assert isinstance(spec, ToolSpec)
    return spec


def test_the_function_stays_a_function() -> None:
    """The decorator returns the function itself, so that people's own calls and tests go on working."""
    decorated = tool(cls="pure")(with_search)
    assert decorated is with_search
    assert decorated("1182") == {"order": "1182"}


def with_search(order_id: str) -> dict[str, object]:
    return {"order": order_id}


def test_a_spec_says_what_was_declared() -> None:
    """Name from the function, provider from the module, contract from the keywords, schema without injected names."""
    spec = declare()
    assert (spec.name, spec.version, spec.cls) == ("ship", 1, ToolClass.COMPENSATABLE)
    assert (spec.provider, spec.queue) == ("test_tool", "cf-test_tool")
    assert spec.contract.grade is Grade.A
    assert spec.takes_key
    assert not spec.takes_of
    assert spec.schema() == {
        "name": "ship",
        "description": "Ship a parcel.",
        "parameters": {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                "order_id": {"type": "string"},
                "sku": {"type": "string"},
                "weight_g": {"type": "integer", "default": 500},
            },
            "required": ["order_id", "sku"],
        },
    }


def with_positional_key(order_id: str, key: str) -> dict[str, object]: ...
def with_step(order_id: str, step: str) -> dict[str, object]: ...
def with_tenant(order_id: str, *, tenant: str) -> dict[str, object]: ...
def with_idempotency_key(order_id: str, idempotency_key: str) -> dict[str, object]: ...
def with_args(order_id: str, *rest: str) -> dict[str, object]: ...
def with_kwargs(order_id: str, **rest: str) -> dict[str, object]: ...
def with_positional_only(order_id: str, /) -> dict[str, object]: ...
def with_untyped(order_id, *, key: str) -> dict[str, object]: ...  # type: ignore[no-untyped-def]
def with_unknown_type(order_id: Nowhere) -> dict[str, object]: ...  # type: ignore[name-defined]  # noqa: F821
def with_socket_type(order_id: types.ModuleType) -> dict[str, object]: ...
def with_no_key(order_id: str) -> dict[str, object]: ...
async def with_stream(order_id: str, *, key: str) -> AsyncIterator[str]:
    yield order_id


def with_of_only(order_id: str, *, key: str, of: str) -> dict[str, object]: ...


@pytest.mark.parametrize(
    ("function", "changes", "says"),
    [
        (ship, {"cls": ...}, "it has no class"),
        (ship, {"cls": "compensable"}, "did you mean 'compensatable'?"),
        (ship, {"cls": "xyzzy"}, "it is one of pure"),
        (ship, {"adience": ["x"]}, "Did you mean 'audience'?"),
        (ship, {"effect": ...}, "`effect` is not given"),
        (ship, {"effect": "Ship it"}, "`effect` is 1 to 64"),
        (ship, {"target": ...}, "`target` is not given"),
        (ship, {"target": "order"}, "Did you mean 'order_id'?"),
        (ship, {"audience": ...}, "`audience` is not given"),
        (ship, {"audience": "warehouse"}, "`audience` is a list"),
        (ship, {"once_per": ...}, "`once_per` is not given"),
        (ship, {"once_per": ()}, "`once_per` is empty"),
        (ship, {"once_per": ("order_id", "colour")}, "`once_per` names no argument: 'colour'"),
        (ship, {"cls": "irreversible", "undo": ..., "once_per": ...}, "`once_per` is not given"),
        (ship, {"cls": "irreversible"}, "an irreversible tool has no undo"),
        (ship, {"undo": ...}, "a compensatable tool needs `undo=`"),
        (ship, {"undo": None}, "a compensatable tool needs `undo=`"),
        (ship, {"native_key_ttl_s": ...}, "nothing can tell what an unknown outcome was"),
        (ship, {"cls": "reversible", "native_key_ttl_s": ...}, "nothing can tell"),
        (ship, {"native_key_ttl_s": 0}, "a key's ttl is more than 0"),
        (ship, {"landing_max_s": -1}, "times are seconds from 0 up"),
        (ship, {"lookup_lag_s": 5}, "without a `lookup`"),
        (ship, {"lookup": True}, "`lookup` is the look-up function or its name"),
        (ship, {"uncertain": "guess"}, "`uncertain` is None or 'operator_review'"),
        (ship, {"on_absent": "retry"}, "`on_absent` is"),
        (ship, {"amount": "price"}, "`amount` names no argument"),
        (ship, {"approval": "sometimes"}, "`approval` is"),
        (ship, {"once_scope": "world"}, "`once_scope` is"),
        (ship, {"name": "ship.parcel"}, "a name is 1 to 64"),
        (ship, {"name": "Ship"}, "a name is 1 to 64"),
        (ship, {"name": "s" * 65}, "a name is 1 to 64"),
        (ship, {"provider": "Ware House"}, "cannot be a provider's name"),
        (ship, {"version": 0}, "`version` is an integer"),
        (ship, {"cls": "pure"}, "a pure tool leaves no row"),
        (with_positional_key, {}, "`key` is injected: make it keyword-only"),
        (with_step, {}, "`step` is reserved"),
        (with_tenant, {}, "`tenant` is reserved"),
        (with_idempotency_key, {}, "`idempotency_key` is reserved"),
        (with_args, {}, "`*rest` hides arguments"),
        (with_kwargs, {}, "`*rest` hides arguments"),
        (with_positional_only, {}, "`order_id` is positional-only"),
        (with_untyped, {}, "`order_id` has no annotation"),
        (with_unknown_type, {}, "its annotations cannot be resolved"),
        (with_socket_type, {}, "pydantic cannot make an argument model"),
        (with_no_key, {}, "does not take one"),
        (with_stream, {}, "only a function can be a tool"),
    ],
)
def test_a_bad_declaration_is_refused_with_its_place(
    function: Callable[..., object], changes: dict[str, Any], says: str
) -> None:
    """Each refusal is a ToolDefinitionError that names this file, the function's line, and what to write instead."""
    with pytest.raises(ToolDefinitionError, match=re.escape(says)) as caught:
        declare(function, **changes)
    assert caught.value.file == __file__
    assert caught.value.line == function.__code__.co_firstlineno


def test_a_decorator_without_parentheses_is_explained() -> None:
    """`@tool` alone names the keyword that is missing instead of Python's TypeError."""
    with pytest.raises(ToolDefinitionError, match=r"write `@tool\(cls=…\)`"):
        tool(ship)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changes",
    [
        {"native_key_ttl_s": ..., "lookup": "find"},
        {"native_key_ttl_s": ..., "uncertain": "operator_review"},
        {"cls": "irreversible", "undo": ...},
        {"cls": "reversible", "once_per": ..., "undo": None},
        {"once_per": None},
    ],
)
def test_a_complete_declaration_is_accepted(changes: dict[str, Any]) -> None:
    """One way to learn an unknown outcome is enough, and a counter-action or irreversible tool needs no undo."""
    assert declare(**changes).name == "ship"
    assert declare(with_of_only, undo=None).takes_of


def test_an_unknown_argument_is_told_with_those_that_there_are() -> None:
    """Whoever mistypes a name reads the names that the tool takes."""
    with pytest.raises(ArgumentError) as refused:
        declare().validate({"order_id": "1", "sku": "a", "colour": "red"})
    assert refused.value.message == "$.colour: the tool has no such argument."
    assert refused.value.fix.startswith("It takes order_id, sku")


@pytest.mark.parametrize(
    ("arguments", "path", "code"),
    [
        ({"order_id": "1", "sku": "a", "idempotency_key": "k"}, "$.idempotency_key", "reserved_argument"),
        ({"order_id": "1", "sku": "a", "action_id": "act_x"}, "$.action_id", "reserved_argument"),
        ({"order_id": "1", "sku": "a", "tenant_id": "acme"}, "$.tenant_id", "reserved_argument"),
        ({"order_id": "1", "sku": "a", "step": 4}, "$.step", "reserved_argument"),
        ({"order_id": "1", "sku": "a", "key": "k"}, "$.key", "reserved_argument"),
        ({"order_id": "1", "sku": "a", "colour": "red"}, "$.colour", "unknown_argument"),
        ({"order_id": "1"}, "$.sku", "missing_argument"),
        ({"order_id": 1, "sku": "a"}, "$.order_id", "invalid_argument"),
        ({"order_id": "1", "sku": "a", "weight_g": "500"}, "$.weight_g", "invalid_argument"),
        ({"order_id": "1", "sku": "a", "weight_g": True}, "$.weight_g", "invalid_argument"),
        ({"order_id": "1", "sku": "a", "weight_g": 500.0}, "$.weight_g", "invalid_argument"),
        ({"order_id": "1", "sku": float("nan")}, "$", "not_json"),
        ({"order_id": "1", "sku": b"a"}, "$", "not_json"),
    ],
)
@pytest.mark.case("A11")
def test_a_bad_argument_is_refused_with_its_path(arguments: dict[str, object], path: str, code: str) -> None:
    """Identity is never taken from a model, types are strict, and the first bad field is named."""
    with pytest.raises(ArgumentError) as caught:
        declare().validate(arguments)
    assert (caught.value.path, caught.value.code) == (path, code)


def test_a_refused_value_is_not_quoted() -> None:
    """Arguments reach no message and no chained exception."""
    with pytest.raises(ArgumentError) as caught:
        declare().validate({"order_id": "1", "sku": ["secret-word"]})
    assert "secret-word" not in str(caught.value)
    assert caught.value.__cause__ is None


def with_nested(items: list[Annotated[int, Field(gt=0)]], schema: str, copy: bool = False) -> dict[str, object]: ...


def test_paths_reach_into_lists_and_awkward_names_work() -> None:
    """`$.items[1]` names the bad item; arguments may be called like the model's own attributes."""
    spec = declare(with_nested, cls="pure", **dict.fromkeys(set(SHIPMENT) - {"cls"}, ...))
    assert spec.bind({"items": [1], "schema": "s"}) == {"items": [1], "schema": "s", "copy": False}
    with pytest.raises(ArgumentError) as caught:
        spec.validate({"items": [1, -1], "schema": "s"})
    assert caught.value.path == "$.items[1]"


def test_defaults_are_recorded() -> None:
    """What is recorded is what runs, also after the code's default has changed."""
    assert declare().validate({"order_id": "1", "sku": "a"}) == {"order_id": "1", "sku": "a", "weight_g": 500}


def test_target_audience_and_amount_come_from_the_arguments() -> None:
    """Each may be a field or a function of the arguments; a missing target is refused at the door."""
    spec = declare(
        target=lambda a: f"order:{a['order_id']}", audience=lambda a: [str(a["sku"])], amount=("weight_g", "sku")
    )
    arguments = spec.validate({"order_id": "7", "sku": "eur"})
    assert spec.target_of(arguments) == "order:7"
    assert spec.audience_of(arguments) == ["eur"]
    assert spec.amount_of(arguments) == (500, "eur")
    with pytest.raises(ArgumentError, match="no target") as caught:
        declare().target_of({"order_id": ""})
    assert (caught.value.path, caught.value.code) == ("$.order_id", "no_target")
    with pytest.raises(ArgumentError, match="KeyError"):
        declare(target=lambda a: str(a["nothing"])).target_of(arguments)


def test_once_key_depends_on_the_named_fields_only() -> None:
    """Equal fields give an equal key; neighbouring values cannot be confused; None lets the tool repeat."""

    def once_key(spec: ToolSpec, **arguments: object) -> str | None:
        return check_call(spec, {"weight_g": 1, **arguments}, tenant="t", run="r", actor="a").once_key

    spec = declare(cls="reversible", undo=None, once_per=("order_id", "sku"))
    one = once_key(spec, order_id="a", sku="b:c")
    assert one == once_key(spec, order_id="a", sku="b:c", weight_g=2)
    assert one != once_key(spec, order_id="a:b", sku="c")
    assert "b:c" not in str(one)
    assert once_key(declare(cls="reversible", undo=None, once_per=None), order_id="a", sku="b") is None


def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **modules: str) -> Registry:
    """A registry of modules with these sources."""
    monkeypatch.syspath_prepend(tmp_path)
    for name, source in modules.items():
        (tmp_path / f"{name}.py").write_text(f"from counterfoil.providers.tool import tool\n{source}")
        monkeypatch.delitem(sys.modules, name, raising=False)
    return Registry.load(list(modules))


CREATE = """
@tool(cls="compensatable", effect="shipment", target="order_id", once_per=None, audience=["warehouse"],
      undo={undo}, lookup={lookup})
def create_shipment(order_id: str, sku: str, *, key: str) -> dict: ...
def find_shipment(key: str, *, sent_at) -> dict | None: ...
"""
CANCEL = """
@tool(cls="compensatable", effect="shipment", target="order_id", once_per=None, audience=["warehouse"],
      undo=None, uncertain="operator_review")
def cancel_shipment({parameters}, *, of: str) -> dict: ...
"""


def shop(undo: str = "'cancel_shipment'", lookup: str = "'find_shipment'", parameters: str = "order_id: str") -> str:
    return CREATE.format(undo=undo, lookup=lookup) + CANCEL.format(parameters=parameters)


def test_the_registry_resolves_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Look-up and undo may be declared below the tool; the compensation gets the arguments of the same name only."""
    registry = load(tmp_path, monkeypatch, cf_shop=shop())
    spec = registry.get("create_shipment")
    assert callable(spec.lookup)
    assert spec.compensation_of({"order_id": "7", "sku": "a"}, "act_x") == {
        "tool": "cancel_shipment",
        "arguments": {"order_id": "7"},
    }
    assert registry.names() == ["cancel_shipment", "create_shipment"]
    assert [schema["name"] for schema in registry.schemas()] == ["create_shipment"]


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (shop(undo="'cancel_shipmant'"), "Did you mean 'cancel_shipment'?"),
        (shop(lookup="'find_parcel'"), "its look-up 'find_parcel' is no function"),
        (shop(lookup="lambda key, colour: None"), "its look-up takes 'colour'"),
        (shop(parameters="order_id: str, reason: str"), "needs reason, which it does not have"),
        (shop() + shop(), "is already declared at"),
    ],
)
def test_names_that_lead_nowhere_are_refused_when_loading(
    source: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing undo or look-up, an undo that can never be built, and a second tool of one name are refused by place."""
    with pytest.raises(ToolDefinitionError, match=re.escape(says)) as caught:
        load(tmp_path, monkeypatch, cf_shop=source)
    assert caught.value.file == str(tmp_path / "cf_shop.py")
    assert caught.value.line > 1


def test_two_modules_may_not_share_a_name_but_may_share_a_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing a tool from another module is no second declaration; declaring it again is."""
    imported = load(tmp_path, monkeypatch, cf_shop=shop(), cf_again="from cf_shop import create_shipment")
    assert len(imported.names()) == 2
    with pytest.raises(ToolDefinitionError, match="already declared"):
        load(tmp_path, monkeypatch, cf_shop=shop(), cf_other=shop())


@pytest.mark.parametrize(
    "undo",
    [
        "lambda a: None",
        "lambda a: {'tool': 'cancel_shipment', 'arguments': {}}",
        "lambda a: {'tool': 'nothing', 'arguments': {'order_id': a['order_id']}}",
        "lambda a: 1 / 0",
    ],
)
def test_a_call_whose_compensation_cannot_be_built_is_refused(
    undo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No compensation, no call: whatever goes wrong in the function of the arguments."""
    spec = load(tmp_path, monkeypatch, cf_shop=shop(undo=undo)).get("create_shipment")
    with pytest.raises(ArgumentError) as caught:
        spec.compensation_of({"order_id": "7", "sku": "a"}, "act_x")
    assert caught.value.code == "no_compensation"


def test_an_unknown_tool_names_the_nearest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A typo in a tool's or module's name is a ConfigError with a way out; `find` answers None."""
    registry = load(tmp_path, monkeypatch, cf_shop=shop())
    with pytest.raises(ConfigError, match="Did you mean 'create_shipment'"):
        registry.get("create_shipmnt")
    assert registry.find("create_shipment", 2) is None
    with pytest.raises(ConfigError, match="there is no module 'cf_shop_tools'"):
        Registry.load(["cf_shop_tools"])
    with pytest.raises(ConfigError, match="'json' declares no tools"):
        Registry.load(["json"])


def test_the_newest_version_is_the_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two versions live side by side, so that rows of the old one can still be finished."""
    twice = "".join(
        f"@tool(cls='pure', name='search', version={v})\ndef search_{v}(a: str) -> dict: ...\n" for v in (1, 2)
    )
    registry = load(tmp_path, monkeypatch, cf_search=twice)
    assert registry.get("search").version == 2
    assert registry.get("search", 1).version == 1


def test_shipped_tools_load_without_any_client() -> None:
    """An agent's process that lists the shipped tools has no provider SDK, requests, celery or redis in memory."""
    code = (
        "import sys; from counterfoil.providers.registry import Registry;"
        "names = ('stripe', 'jira', 'linear', 'zendesk', 'slack');"
        "r = Registry.load(['counterfoil.providers.' + n + '.tools' for n in names]);"
        "print(*r.names());"
        "bad = {'stripe', 'jira', 'zenpy', 'slack_sdk', 'requests', 'urllib3', 'celery', 'redis'} & set(sys.modules);"
        "sys.exit(f'loaded: {bad}' if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [
        "jira_close",
        "jira_comment",
        "jira_create",
        "jira_delete_comment",
        "jira_open",
        "jira_stage",
        "linear_close",
        "linear_comment",
        "linear_create",
        "linear_delete_comment",
        "slack_post",
        "slack_schedule",
        "slack_unschedule",
        "stripe_authorize",
        "stripe_cancel",
        "stripe_capture",
        "stripe_charge",
        "stripe_refund",
        "zendesk_create",
        "zendesk_note",
        "zendesk_reply",
        "zendesk_solve",
    ]
