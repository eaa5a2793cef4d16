"""What a grade needs to know of a tool: how it is called, how it reaches the sandbox, where the sandbox counts its effect."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module

from counterfoil.ledger.errors import ToolDefinitionError
from counterfoil.providers.contract import Adapter, Call, Contract
from counterfoil.providers.outcomes import Finding, Json, Outcome, Reading
from counterfoil.providers.registry import adapter_of, with_functions
from counterfoil.providers.spec import ToolSpec
from counterfoil.providers.tool import SPEC_ATTRIBUTE
from counterfoil.sandbox.client import Sandbox

NO_BODY = frozenset({"empty_2xx", "204", "html_2xx", "bad_json_2xx", "object_2xx", "truncate_body", "stall_body"})
"""Faults that do not hurt where a success has no body."""

LAGS_S = (0.0, 3.0, 30.0)
"""What the sandbox's index lags by while the look-up's own lag is measured."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """One tool under test. Of `tool` and `adapter` at least one is given; with a tool alone, its `address` as well."""

    arguments: Mapping[str, Json]
    """As an agent would give them."""
    provider: str
    """The double's name in the sandbox, such as "stripe"."""
    operation: str
    """The operation of the double that is the write: `payment_intents.create`. Faults are put on it."""
    effect: str
    """The kind of durable effect that the sandbox counts for it."""
    lookup_operation: str = ""
    """The operation that the look-up asks; "" = the tool has no look-up."""
    tool: Callable[..., object] | ToolSpec | None = None
    """The function under `@tool`: what it declares is held against what is measured."""
    adapter: Callable[[Sandbox], Adapter] | None = None
    """A new client that reaches the provider's sandbox; with `Sandbox("http://127.0.0.1:9")`, where nobody listens."""
    address: str | None = None
    """Where the tool's function has the base address of its API: `module:NAME`, or the name of an environment variable.
    It must read it at each call; during a call the sandbox's address stands there."""
    double: str | None = None
    """`module:PROVIDER`, a `counterfoil.sandbox.wire.Provider` of your own; None = one that the sandbox ships."""
    name: str = ""
    """The tool's own by default."""
    target: str | None = None
    """By default what the tool says of these arguments."""
    after: Subject | str | None = None
    """The subject that must have happened first: what this call's `of` is. By name only within a suite of subjects."""
    deduplicates: bool = False
    """A request delivered twice is one effect, though no native key is declared: the move is no longer offered."""
    unread_success: frozenset[str] = field(default_factory=frozenset)
    """Faults that do not hurt, because the success has no body."""
    refusals: tuple[int, ...] = (400, 401, 403, 404)
    """Statuses which the provider's own error body makes definite."""
    other: Mapping[str, Json] = field(default_factory=dict)
    """Arguments to change for "the same key with other arguments"; empty = that is not shown."""
    fails_with: Mapping[str, Json] = field(default_factory=dict)
    """Arguments to change so that the double keeps an object whose status says that nothing was done, such as a declined
    card; empty = that is not shown."""
    lags_s: Sequence[float] = LAGS_S
    """Index lags to try, up to the worst that the provider documents."""
    world: Mapping[str, object] = field(default_factory=dict)
    """Settings of the sandbox, such as what a provider does where it does not say."""
    secrets: tuple[str, ...] = ()
    """Credentials that must be in no outcome."""

    def __post_init__(self) -> None:
        if not self.name:
            if self.spec is None:
                raise ValueError("a Subject needs a `name`, or the `tool` that has one")
            object.__setattr__(self, "name", self.spec.name)
        if self.adapter is None and self.spec is None:
            raise ValueError(f"{self.name}: a Subject needs a `tool` or an `adapter`")

    def __str__(self) -> str:
        return self.name

    @property
    def spec(self) -> ToolSpec | None:
        """What the tool declares, None where only an adapter is known."""
        if self.tool is None or isinstance(self.tool, ToolSpec):
            return self.tool
        spec = getattr(self.tool, SPEC_ATTRIBUTE, None)
        if not isinstance(spec, ToolSpec):
            raise ToolDefinitionError("the subject's tool is no tool: decorate it with @tool", file="", line=0)
        return spec

    @property
    def tool_name(self) -> str:
        """What a call names: the tool, of which there may be several subjects."""
        return self.name if self.spec is None else self.spec.name

    @property
    def contract(self) -> Contract:
        """What is declared; of an adapter alone, a look-up where an operation is named for it."""
        return self.spec.contract if self.spec is not None else Contract(lookup=bool(self.lookup_operation))

    def adapter_at(self, sandbox: Sandbox) -> Adapter:
        """A new client, as each worker process has one. Raises ValueError where nothing says how it reaches the sandbox."""
        if self.adapter is not None:
            return self.adapter(sandbox)
        spec = self.spec
        if spec is None or spec.adapter is not None:
            raise ValueError(f"{self.name}: give `adapter=`, a function of the sandbox that makes its client")
        if self.address is None:
            raise ValueError(f"{self.name}: give `address=`, where the tool has the base address of its API")
        _place_of(self.address)
        return _Placed(adapter_of(with_functions(spec)), self.address, sandbox.provider(self.provider).url)


class _Placed:
    """A tool's own function, which during each call finds the sandbox where it has its API's address."""

    def __init__(self, adapter: Adapter, address: str, url: str) -> None:
        self.adapter, self._address, self._url = adapter, address, url

    def send(self, call: Call, *, timeout_s: float) -> Outcome:
        with _standing(self._address, self._url):
            return self.adapter.send(call, timeout_s=timeout_s)

    def lookup(self, calls: Sequence[Call], *, timeout_s: float) -> Mapping[str, Finding]:
        with _standing(self._address, self._url):
            return self.adapter.lookup(calls, timeout_s=timeout_s)

    def version(self, call: Call, *, timeout_s: float) -> Reading:
        with _standing(self._address, self._url):
            return self.adapter.version(call, timeout_s=timeout_s)


_STANDING: dict[str, list[object]] = {}
"""By address: what stood there before the oldest of the calls under way, once for each of them."""


@contextmanager
def _standing(address: str, url: str) -> Iterator[None]:
    place, name = _place_of(address)
    before = None
    if address not in _STANDING:
        before = os.environ.get(name) if place is os.environ else vars(place)[name]
    under_way = _STANDING.setdefault(address, [before])
    under_way.append(url)
    _put(place, name, url)
    try:
        yield
    finally:
        under_way.pop()
        if len(under_way) == 1:
            _put(place, name, _STANDING.pop(address)[0])


def _place_of(address: str) -> tuple[object, str]:
    """The module, or the environment, and the name there. Raises ValueError where there is no such module or name."""
    module, colon, name = address.partition(":")
    if not colon:
        return os.environ, address
    try:
        place = import_module(module)
    except ModuleNotFoundError as missing:
        if missing.name is None or not f"{module}.".startswith(f"{missing.name}."):
            raise
        raise ValueError(f"there is no module {module!r}, which the subject's address names") from None
    if name not in vars(place):
        raise ValueError(f"the module {module!r} has no {name!r}, which is the subject's address")
    return place, name


def _put(place: object, name: str, value: object) -> None:
    if place is not os.environ:
        setattr(place, name, value)
    elif value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = str(value)
