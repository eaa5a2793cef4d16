"""What agents of episodes want, and the provider that does it: each effect names its wish in its arguments."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import requests

from counterfoil import Rejected, tool

LANDING_S = 1.0


@dataclass(frozen=True, slots=True)
class Wish:
    """One thing that an agent wants done. `target` and `tool` may be those of another wish: then it is the same call."""

    number: int
    tool: str
    target: str
    label: bool = False
    refused: bool = False
    """The provider says no."""

    @property
    def once(self) -> bool:
        return self.tool == "fee"


@dataclass
class Effect:
    tool: str
    target: str
    wish: str
    """`RUN/NUMBER`."""
    visible_at: float


@dataclass
class EpisodeShop:
    """Counts effects where they happen; loses answers, and lets some be found a little later, as its episode says."""

    now: Callable[[], float]
    rng: random.Random = field(default_factory=random.Random)
    lies: float = 0.0
    """How often an answer is lost although the effect has happened."""
    effects: list[Effect] = field(default_factory=list)
    undone: list[str] = field(default_factory=list)
    _by_key: dict[str, Effect] = field(default_factory=dict)

    def of(self, run: str) -> list[Effect]:
        return [effect for effect in self.effects if effect.wish.rpartition("/")[0] == run]

    def tools(self) -> tuple[Any, ...]:
        def find(key: str) -> object:
            effect = self._by_key.get(key)
            return {"id": key} if effect is not None and effect.visible_at <= self.now() else None

        shape: dict[str, Any] = {"target": "order", "provider": "shop", "landing_max_s": LANDING_S, "lookup": find}
        paid = {**shape, "cls": "compensatable", "audience": ["team"]}

        @tool(effect="refund", once_per=None, undo="take_back", **paid)
        def refund(order: str, words: str, *, key: str) -> object:
            """May be repeated."""
            return self._happens(key, "refund", order, words)

        @tool(effect="fee", once_per="order", undo="take_back", **paid)
        def fee(order: str, words: str, *, key: str) -> object:
            """Happens once for an order."""
            return self._happens(key, "fee", order, words)

        @tool(effect="take_back", once_per=None, undo=None, **paid)
        def take_back(order: str, *, key: str, of: str) -> object:
            """The counter-action."""
            self.undone.append(of)
            self._by_key[key] = Effect("take_back", order, "", self.now())
            return {"id": key}

        @tool(cls="reversible", effect="tag", once_per=None, audience=["team"], undo="take_back", **shape)
        def tag(order: str, words: str, *, key: str) -> object:
            """Goes past what waits for a person."""
            return self._happens(key, "tag", order, words)

        @tool(cls="irreversible", effect="mail", once_per=None, audience=["customer"], **shape)
        def mail(order: str, words: str, *, key: str) -> object:
            """Waits for a person."""
            return self._happens(key, "mail", order, words)

        return refund, fee, take_back, tag, mail

    def _happens(self, key: str, name: str, order: str, words: str) -> object:
        wish = words.partition("~")[0]
        if wish.endswith("!"):
            return Rejected("no_such_order")
        if key not in self._by_key:  # a key of our own is repeated after evidence only, but this provider knows keys
            late = LANDING_S * self.rng.random() if self.rng.random() < self.lies else 0.0
            self._by_key[key] = Effect(name, order, wish, self.now() + late)
            self.effects.append(self._by_key[key])
        if self.rng.random() < self.lies:
            raise requests.ReadTimeout
        return {"id": key}
