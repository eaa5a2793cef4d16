"""A shop's tools for tests about agents: the effects happen in this process, and are counted where they happen."""

from __future__ import annotations

from typing import Any

import requests

from counterfoil import tool


class Shop:
    """Tools whose effects are counted here, and whose answers may get lost. The worker calls them in this process."""

    def __init__(self) -> None:
        self.effects: list[tuple[str, ...]] = []
        """(tool, its arguments …), in the order in which they happened."""
        self.loses_answers = 0
        """So many answers from now on do not arrive, although the effect happened."""
        self._receipts: dict[str, str] = {}

        def find(key: str) -> object:
            return self.find(key)

        made: dict[str, Any] = {"provider": "shop", "landing_max_s": 1.0, "target": "order"}
        paid: dict[str, Any] = {
            **made,
            "cls": "compensatable",
            "audience": ["customer"],
            "lookup": find,
        }
        once: dict[str, Any] = {
            **made,
            "cls": "irreversible",
            "audience": ["customer"],
            "once_per": "order",
            "lookup": find,
        }

        @tool(effect="refund", once_per=None, undo="take_back", **paid)
        def refund(order: str, amount: int = 500, reason: str = "", *, key: str) -> dict[str, str]:
            """May be repeated: two refunds of one order are two wishes."""
            return self._happens(key, "refund", order, reason or str(amount))

        @tool(effect="refund", once_per=None, undo=None, **paid)
        def take_back(order: str, *, key: str, of: str) -> dict[str, str]:
            """The counter-action."""
            return self._happens(key, "take_back", order)

        @tool(effect="fee", once_per="order", undo="take_back", **paid)
        def charge_fee(order: str, amount: int = 500, reason: str = "", *, key: str) -> dict[str, str]:
            """Happens once for an order."""
            return self._happens(key, "charge_fee", order, reason or str(amount))

        @tool(effect="note", approval="never", **once)
        def send_note(order: str, text: str = "", *, key: str) -> dict[str, str]:
            """Cannot be taken back, and needs nobody's approval."""
            return self._happens(key, "send_note", order, text)

        @tool(effect="question", approval="always", **once)
        def ask_customer(order: str, text: str = "", *, key: str) -> dict[str, str]:
            """Waits for a person first."""
            return self._happens(key, "ask_customer", order, text)

        self.tools = (refund, take_back, charge_fee, send_note, ask_customer)

    def count(self, name: str) -> int:
        """How often a tool has had its effect."""
        return sum(effect[0] == name for effect in self.effects)

    def find(self, key: str) -> object:
        """The look-up: what happened under this key."""
        return {"id": self._receipts[key]} if key in self._receipts else None

    def _happens(self, key: str, *effect: str) -> dict[str, str]:
        self.effects.append(effect)
        self._receipts[key] = f"r{len(self.effects)}"
        if self.loses_answers:
            self.loses_answers -= 1
            raise requests.ReadTimeout
        return {"id": self._receipts[key]}
