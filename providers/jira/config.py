"""How one Jira Cloud site is reached. Nothing here reads the environment."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class JiraConfig:
    """`email` and `token` are the service account's. `retry_after_cap_s` bounds what a Retry-After header may ask for."""

    server: str
    email: str
    token: str = field(repr=False)
    timeout_s: float = 20.0
    retry_after_cap_s: float = 900.0
