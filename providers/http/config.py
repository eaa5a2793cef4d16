"""How one HTTP API is reached, and what its tools are. Nothing here reads the environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from counterfoil.providers.http.wire import headers_of
from counterfoil.settings_http import HttpTool

_WIRE = ("method", "path", "arguments", "body", "key_header", "key_format", "key_field")


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpConfig:
    """`tools` by name, `secrets` of the account by the name that headers have for them. `retry_after_cap_s` bounds what a
    Retry-After header may ask for."""

    base_url: str
    tools: Mapping[str, HttpTool]
    timeout_s: float = 20.0
    retry_after_cap_s: float = 900.0
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)

    def reach_of(self, tool: str) -> tuple[Mapping[str, object], Mapping[str, object]]:
        """The address and the account's secrets; and what of the tool's table makes its requests, its own secrets included.
        Raises `ConfigError` (a secret)."""
        place: Mapping[str, object] = {"base_url": self.base_url, "secrets": dict(self.secrets)}
        table = self.tools.get(tool)
        if table is None:
            return place, {}
        wire = table.model_dump(mode="json", include=set(_WIRE), exclude_defaults=True)
        return place, {"table": wire, "headers": headers_of(table, None, self.secrets)}
