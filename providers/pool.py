"""Decides which client serves a tool in this process: one adapter per provider, made at first use, after the fork."""

from __future__ import annotations

from collections.abc import Callable

from counterfoil.ledger.errors import ConfigError
from counterfoil.providers.contract import Adapter
from counterfoil.providers.registry import adapter_of
from counterfoil.providers.spec import ToolSpec


class AdapterPool:
    """The adapters of one process and thread. `configure` gives a provider's own config, by provider name."""

    def __init__(self, configure: Callable[[str], object]) -> None:
        self._configure = configure
        self._adapters: dict[str, Adapter] = {}

    def adapter(self, spec: ToolSpec) -> Adapter:
        """The tool's adapter. Raises `ConfigError` when its client is not installed or its credentials are missing."""
        name = spec.adapter or f"{spec.name}:{spec.version}"  # functions made by one factory share every other name
        found = self._adapters.get(name)
        if found is None:
            try:
                config = self._configure(spec.provider) if spec.adapter else None
                found = self._adapters[name] = adapter_of(spec, config)
            except ModuleNotFoundError as error:
                raise ConfigError(
                    f"the client of provider {spec.provider!r} is not installed ({error.name}).",
                    key=f"providers.{spec.provider}",
                    fix=f"pip install 'counterfoil[worker,{spec.provider}]'",
                ) from error
        return found
