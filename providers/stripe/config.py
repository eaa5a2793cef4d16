"""How one Stripe account is reached. Nothing here reads the environment."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class StripeConfig:
    """`base_url` None = Stripe's own. `retry_after_cap_s` bounds what a Retry-After header may ask for."""

    api_key: str = field(repr=False)
    base_url: str | None = None
    timeout_s: float = 20.0
    retry_after_cap_s: float = 900.0
