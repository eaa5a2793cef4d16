"""Decides which client serves a tool in this process: one adapter per provider, made at first use, after the fork."""

from __future__ import annotations

import re
from collections.abc import Callable

from counterfoil.ledger.errors import ConfigError
from counterfoil.providers.contract import Adapter
from counterfoil.providers.registry import adapter_of
from counterfoil.providers.spec import ToolSpec


class AdapterPool:
    """The adapters of one process and thread. `configure` gives the config of a tool's adapter and provider."""

    def __init__(self, configure: Callable[[ToolSpec], object]) -> None:
        self._configure = configure
        self._adapters: dict[str, Adapter] = {}

    def adapter(self, spec: ToolSpec) -> Adapter:
        """The tool's adapter. Raises `ConfigError` when its client is not installed or its credentials are missing."""
        # One client a provider; of functions each has its own: those made by one factory share every other name.
        name = f"{spec.adapter} {spec.provider}" if spec.adapter else f"{spec.name}:{spec.version}"
        found = self._adapters.get(name)
        if found is None:
            try:
                config = self._configure(spec) if spec.adapter else None
                found = self._adapters[name] = adapter_of(spec, config)
            except ModuleNotFoundError as error:
                raise ConfigError(
                    f"the client of provider {spec.provider!r} is not installed ({error.name}).",
                    key=f"providers.{spec.provider}",
                    fix=f"pip install 'counterfoil[worker,{_extra(spec)}]'",
                ) from error
        return found


def _extra(spec: ToolSpec) -> str:
    """The extra with the client: of ours it is named as the adapter's folder."""
    ours = re.match(r"counterfoil\.providers\.(\w+)\.", spec.adapter or "")
    return ours[1] if ours else spec.provider
