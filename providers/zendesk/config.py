"""How one Zendesk account is reached. Nothing here reads the environment."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class ZendeskConfig:
    """`server` is the account's address, such as `https://acme.zendesk.com`.

    With an `email`, `token` is that agent's API token; without one it is an OAuth access token. `retry_after_cap_s` bounds
    what a Retry-After header may ask for.
    """

    server: str
    token: str = field(repr=False)
    email: str | None = None
    timeout_s: float = 20.0
    retry_after_cap_s: float = 900.0
