"""Decides the bytes of a request: path, body, key and headers, the same on every attempt but for rotated secrets."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from urllib.parse import quote

from counterfoil.ledger.errors import ConfigError
from counterfoil.providers.contract import Call
from counterfoil.providers.outcomes import Json
from counterfoil.settings_http import KEY, OF, HttpHeader, HttpTool, placeholders
from counterfoil.settings_providers import read_secret_file

_VISIBLE = re.compile(r"[\x20-\x7e]+")


class Unfillable(Exception):
    """The path cannot be made of these arguments; `code` says why."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


def path_of(template: str, call: Call, *, receipt: str | None = None) -> str:
    """The path with every value escaped: none can add a part, a query or a fragment. Raises `Unfillable`."""
    values: dict[str, Json] = {**call.arguments, KEY: call.key, OF: receipt}
    texts = {name: _text(values.get(name), name) for name in placeholders(template)}
    path, mark, query = template.partition("?")
    parts = [_filled(part, texts) for part in path.split("/")]
    if {".", ".."} & set(parts) or "" in parts[1:-1] or (parts[-1] == "" and not path.endswith("/")):
        raise Unfillable("unsafe_path")  # clients take such parts away before they send
    return "/".join(parts) + mark + _filled(query, texts)


def body_of(tool: HttpTool, call: Call) -> bytes | None:
    """The arguments as JSON under the body's names, in the order of the table; None where there are none to send."""
    if tool.method == "DELETE" and not tool.body:
        return None
    values = {tool.field_of(name): call.arguments.get(name) for name in tool.in_body}
    fields = {name: value for name, value in values.items() if value is not None}
    if tool.key_field is not None:
        fields[tool.key_field] = call.key
    if not fields and tool.body is not None:
        return None
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def headers_of(tool: HttpTool, call: Call | None, secrets: Mapping[str, str]) -> dict[str, str]:
    """The headers of one request; with our key for a call, without for a look-up. `secrets` are the account's. Raises
    `ConfigError` (a secret)."""
    own = {name: _value(name, source, secrets) for name, source in tool.headers.items()}
    headers = {"Accept": "application/json", **own}
    if call is not None and tool.key_header:
        headers[tool.key_header] = f'"{call.key}"' if tool.key_format == "quoted" else call.key
    return headers


def _value(name: str, source: HttpHeader, secrets: Mapping[str, str]) -> str:
    if source.value is not None:
        text = source.value
    elif source.secret is not None:
        text = secrets.get(source.secret, "")
    elif source.secret_env is not None:
        text = os.environ.get(source.secret_env, "").strip()
    else:
        assert source.secret_file is not None
        text = read_secret_file(source.secret_file, f"headers.{name}.secret_file").decode("utf-8", "replace")
    text = source.prefix + text if text else ""
    if not _VISIBLE.fullmatch(text):
        raise ConfigError(f"the header {name} has no value that can be sent.", key=f"headers.{name}")
    return text


def _text(value: Json, name: str) -> str:
    match value:
        case None | "":
            raise Unfillable("of_unresolved" if name == OF else "unsafe_path")
        case bool():
            return str(value).lower()
        case str() | int() | float():
            return str(value)
        case _:
            raise Unfillable("unsafe_path")


def _filled(template: str, texts: Mapping[str, str]) -> str:
    return re.sub(r"\{([^{}]*)\}", lambda hole: quote(texts[hole[1]], safe=""), template)
