"""Decides which client serves an action in this process: one adapter for each provider and account, made after the fork."""

from __future__ import annotations

import re
from collections.abc import Callable

from counterfoil.ledger.errors import ConfigError
from counterfoil.providers.contract import Adapter
from counterfoil.providers.reach import reach_of
from counterfoil.providers.registry import adapter_of
from counterfoil.providers.spec import ToolSpec


class AdapterPool:
    """The adapters of one process and thread. `configure` gives the config of a tool's adapter for one account, with the
    credentials of this moment: one that has changed since the last call makes a new adapter. `secret` keys `reach`."""

    def __init__(
        self, configure: Callable[[ToolSpec, str], object], *, secret: Callable[[], bytes] = lambda: b""
    ) -> None:
        self._configure = configure
        self._secret = secret
        self._adapters: dict[str, tuple[object, Adapter]] = {}

    def adapter(self, spec: ToolSpec, account: str) -> Adapter:
        """The tool's adapter. Raises `ConfigError` when its client is not installed, cannot be made of these settings, or
        has no credentials."""
        name = _name(spec, account)
        config = None if spec.adapter is None else self._configured(spec, account)
        known = self._adapters.get(name)
        if known is None or known[0] != config:
            known = self._adapters[name] = (config, self._made(spec, config))
        return known[1]

    def reach(self, spec: ToolSpec, account: str) -> str:
        """Where that adapter goes, and as whom; see `reach_of`."""
        config, _ = self._adapters[_name(spec, account)]
        return reach_of(config, spec.name, self._secret())

    def _configured(self, spec: ToolSpec, account: str) -> object:
        try:
            return self._configure(spec, account)
        except UnicodeDecodeError:  # `from None`: it holds the secret
            raise ConfigError("a secret file is no text.", key=f"providers.{spec.provider}") from None

    def _made(self, spec: ToolSpec, config: object) -> Adapter:
        try:
            return adapter_of(spec, config)
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"the client of provider {spec.provider!r} is not installed ({error.name}).",
                key=f"providers.{spec.provider}",
                fix=f"pip install 'counterfoil[worker,{_extra(spec)}]'",
            ) from error
        except Exception as error:  # noqa: BLE001 - one account's settings may not stop the others' actions
            message = f"the client of provider {spec.provider!r} cannot be made ({type(error).__name__})."
            raise ConfigError(message, key=f"providers.{spec.provider}") from None  # it may hold a secret


def _name(spec: ToolSpec, account: str) -> str:
    """One adapter for all tools of a provider and account. Of functions each has its own: those made by one factory share
    every other name."""
    return f"{spec.name}:{spec.version}" if spec.adapter is None else f"{spec.adapter} {spec.provider} {account}"


def _extra(spec: ToolSpec) -> str:
    """The extra with the client: of ours it is named as the adapter's folder."""
    ours = re.match(r"counterfoil\.providers\.(\w+)\.", spec.adapter or "")
    return ours[1] if ours else spec.provider
