"""How one Resend account is reached. Nothing here reads the environment."""

from __future__ import annotations

from dataclasses import dataclass, field

API = "https://api.resend.com"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResendConfig:
    """`sender` is the address that mail comes from; its domain is one that the account has verified.

    `retry_after_cap_s` bounds what a Retry-After header may ask for.
    """

    api_key: str = field(repr=False)
    sender: str
    base_url: str = API
    retry_after_cap_s: float = 900.0
