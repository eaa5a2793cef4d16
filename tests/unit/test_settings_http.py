"""What `[http.NAME]` refuses: each mistake is named with its key, before anything runs."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from counterfoil.cli.tool import check_tools
from counterfoil.ledger.errors import ArgumentError, CounterfoilError
from counterfoil.providers.registry import Registry
from counterfoil.settings import Settings
from counterfoil.settings_contracts import http_address
from counterfoil.settings_http import HttpArgument, HttpHeader, HttpLookup, HttpTool

NOTE = """
[providers.crm]
base_url = "https://crm.example/api"

[http.crm_note]
provider = "crm"
description = "Add a note."
class = "compensatable"
effect = "crm_note"
target = "customer"
audience = ["support_team"]
once_per = []
undo = "crm_note_delete"
path = "/customers/{customer}/notes"
key_ttl_s = 86400
arguments.customer = { type = "string", max_length = 40 }
arguments.text = { type = "string", max_length = 100 }
lookup = { path = "/notes?ref={key}", items = "", key_field = "/ref", lag_s = 5 }

[http.crm_note_delete]
provider = "crm"
description = "Delete a note."
class = "compensatable"
effect = "crm_note_deletion"
target = "customer"
audience = ["support_team"]
once_per = []
method = "DELETE"
path = "/notes/{of}"
success = [204]
arguments.customer = { type = "string", max_length = 40 }
lookup = { path = "/deleted/{of}", lag_s = 0 }
"""


def load(tmp_path: Path, text: str) -> Settings:
    file = tmp_path / "counterfoil.toml"
    file.write_text(text)
    return Settings.load(file, {})


def test_a_table_is_a_tool(tmp_path: Path) -> None:
    """Name, class, contract and schema are the table's; a counter-action is about another action; undo is resolved."""
    registry = check_tools(load(tmp_path, NOTE))
    note, delete = registry.get("crm_note"), registry.get("crm_note_delete")
    assert (note.provider, note.queue, note.contract.grade.value, note.contract.lookup_lag_s) == (
        "crm",
        "cf-crm",
        "A",
        5,
    )
    assert delete.contract.grade.value == "B"
    assert delete.takes_of
    assert note.compensation_of({"customer": "c1", "text": "Hi"}, "act_1") == {
        "tool": "crm_note_delete",
        "arguments": {"customer": "c1"},
    }
    (shown,) = registry.schemas()
    assert shown["description"] == "Add a note."
    assert shown["parameters"] == {
        "type": "object",
        "additionalProperties": False,
        "required": ["customer", "text"],
        "properties": {
            "customer": {"type": "string", "minLength": 1, "maxLength": 40},
            "text": {"type": "string", "maxLength": 100},
        },
    }


@pytest.mark.parametrize(
    ("argument", "taken", "refused"),
    [
        ({"type": "integer", "minimum": 1, "maximum": 9}, 9, 10),
        ({"type": "integer"}, 1, True),
        ({"type": "number", "minimum": 0}, 0.5, -0.5),
        ({"type": "boolean"}, True, "true"),
        ({"type": "string", "choices": ["low", "high"]}, "low", "mid"),
        ({"type": "string", "pattern": "^[a-z]+$"}, "abc", "Abc"),
        ({"type": "string", "min_length": 2}, "ab", "a"),
        ({"type": "string"}, "x" * 2000, "x" * 2001),
        ({"type": "string", "required": False}, None, 5),
    ],
)
def test_limits_hold_at_the_door(argument: dict[str, Any], taken: object, refused: object) -> None:
    """Each argument's type and limits are checked before anything is recorded."""
    tables = tomllib.loads(NOTE)
    tables["http"]["crm_note"]["arguments"]["text"] = argument
    spec = Registry.load([], Settings(**tables).http).get("crm_note")
    assert spec.validate({"customer": "c", "text": taken})["text"] == taken
    with pytest.raises(ArgumentError, match=r"\$\.text"):
        spec.validate({"customer": "c", "text": refused})


@pytest.mark.parametrize(
    ("before", "after", "key", "said"),
    [
        ("key_ttl_s", "key_tll_s", "http.crm_note.key_tll_s", "Did you mean key_ttl_s?"),
        ('items = ""', 'itms = ""', "http.crm_note.lookup.itms", "Did you mean items?"),
        (", lag_s = 5", "", "http.crm_note.lookup.lag_s", "required"),
        (
            'class = "compensatable"\neffect = "crm_note"',
            'class = "pure"\neffect = "crm_note"',
            "http.crm_note.class",
            "",
        ),
        ('target = "customer"', 'target = "custmer"', "http.crm_note", "Did you mean 'customer'?"),
        ('undo = "crm_note_delete"', "", "http.crm_note", "needs `undo=`"),
        ('undo = "crm_note_delete"', 'undo = "crm_delete"', "", "is no tool that acts"),
        ("{customer}", "{customr}", "http.crm_note", "path names 'customr'"),
        ("/customers", "//evil.example", "http.crm_note.path", "begins with one /"),
        ("/customers", "/../customers", "http.crm_note.path", "begins with one /"),
        ("/customers", "https://evil.example", "http.crm_note.path", "begins with one /"),
        ("/customers", "/cust omers", "http.crm_note.path", "unescaped"),
        ("ref={key}", "ref={of}", "http.crm_note", "lookup.path names 'of'"),
        ('key_field = "/ref", ', "", "http.crm_note.lookup", "needs key_field"),
        ('items = ""', 'more = "/next"', "http.crm_note.lookup", "more is for lists"),
        ("/deleted/{of}", "/notes/{of}", "http.crm_note_delete", "give status_field"),
        ("/deleted/{of}", "/notes/{of}?fields=id", "http.crm_note_delete", "give status_field"),
        ('key_field = "/ref"', 'key_field = "ref"', "http.crm_note.lookup.key_field", "JSON pointer"),
        ("key_ttl_s = 86400", 'key_ttl_s = 86400\nkey_header = ""', "http.crm_note", "no key is sent"),
        ("key_ttl_s = 86400", "key_ttl_s = 60", "providers.crm.ttl_margin_s", "native key"),
        ("key_ttl_s = 86400", "refused = [400, 422]", "http.crm_note", "422 is there twice"),
        ("key_ttl_s = 86400", "refused = [500]", "http.crm_note", "from 400 to 499"),
        ("key_ttl_s = 86400", "retryable = [500]", "http.crm_note", "from 400 to 499"),
        ("key_ttl_s = 86400", "success = [204]", "http.crm_note", "no receipt"),
        ("key_ttl_s = 86400", "success = [302]", "http.crm_note", "from 200 to 299"),
        ("key_ttl_s = 86400", 'done = ["ok"]', "http.crm_note", "belong together"),
        ("key_ttl_s = 86400", 'headers.Host.value = "x"', "http.crm_note.headers.Host", "set with the request"),
        (
            "key_ttl_s = 86400",
            'headers.X-A = {value = "x", secret_env = "Y"}',
            "http.crm_note.headers.X-A",
            "give one of",
        ),
        ("key_ttl_s = 86400", 'headers.idempotency-key.value = "x"', "http.crm_note", "sent with our key"),
        ("key_ttl_s = 86400", 'body = ["txt"]', "http.crm_note", "body names 'txt'"),
        ("key_ttl_s = 86400", 'key_field = "text"', "http.crm_note", "'text' is there twice"),
        ("arguments.text", "arguments.class", "http.crm_note", "send_as"),
        ("arguments.text", "arguments.tenant", "http.crm_note", "reserved"),
        ("arguments.text", "arguments.key", "http.crm_note.arguments.key", "reserved"),
        ("max_length = 100", 'pattern = "("', "http.crm_note.arguments.text", "cannot be used"),
        ("max_length = 100", "minimum = 1", "http.crm_note.arguments.text", "for integers"),
        ("max_length = 40 }\narguments.text", "required = false }\narguments.text", "http.crm_note", "required"),
        ("https://crm.example/api", "crm.example", "providers.crm.base_url", "no address"),
        ("https://crm.example/api", "https://me:pw@crm.example", "providers.crm.base_url", "no address"),
        ("https://crm.example/api", "https://crm.example/?a=b", "providers.crm.base_url", "no address"),
        ('base_url = "https://crm.example/api"', "", "providers.crm.base_url", "not configured"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, before: str, after: str, key: str, said: str) -> None:
    """The first mistake ends the check with its key and what is wrong."""
    assert before in NOTE
    with pytest.raises(CounterfoilError) as refused:
        check_tools(load(tmp_path, NOTE.replace(before, after, 1)))
    assert getattr(refused.value, "key", "") == key
    assert said in f"{refused.value} {refused.value.fix}"


def test_an_api_that_does_not_say_what_a_twin_meets(tmp_path: Path) -> None:
    """Without an answer for a key in flight the key is repeated only when whatever was sent must have landed."""
    for text, concurrent in (
        (NOTE, True),
        (NOTE.replace("key_ttl_s = 86400", "key_ttl_s = 86400\nin_flight = []"), False),
    ):
        spec = Registry.load([], load(tmp_path, text).http).get("crm_note")
        assert spec.contract.native_key_concurrent is concurrent


def test_a_secret_goes_over_tls(tmp_path: Path) -> None:
    """Plain http is for tools without a secret, and for this machine; a secret's file is read by the check."""
    secret = "key_ttl_s = 86400\nheaders.X-Token = { secret_file = 'token' }"
    for address, fine in (("http://127.0.0.1:8/x", True), ("http://crm.example", False)):
        text = NOTE.replace("https://crm.example/api", address)
        assert http_address("crm", load(tmp_path, text)) == address
        settings = load(tmp_path, text.replace("key_ttl_s = 86400", secret, 1))
        if fine:
            assert http_address("crm", settings) == address
        else:
            with pytest.raises(CounterfoilError, match="in the clear"):
                http_address("crm", settings)
        with pytest.raises(CounterfoilError, match=r"http.crm_note.headers.X-Token.secret_file.*token cannot be read"):
            settings.check_secret_files()


def test_the_sample_shows_every_key(tmp_path: Path) -> None:
    """The commented tables of the sample are sound as they stand, and hold each key that there is."""
    sample = (Path(__file__).parents[2] / "examples" / "counterfoil.toml").read_text()
    lines = sample[sample.index("# [http.crm_note]") :].splitlines()
    text = "\n".join(line.removeprefix("#").removeprefix(" ") for line in lines)
    tables = tomllib.loads(text)["http"]
    check_tools(load(tmp_path, NOTE.partition("\n[http")[0] + text))
    note = tables["crm_note"]
    assert set(note) == {field.alias or name for name, field in HttpTool.model_fields.items()}
    assert set(note["lookup"]) == set(HttpLookup.model_fields)
    assert {key for argument in note["arguments"].values() for key in argument} == (
        set(HttpArgument.model_fields) - {"minimum", "maximum"}
    )
    assert {key for header in note["headers"].values() for key in header} == set(HttpHeader.model_fields)
