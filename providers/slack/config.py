"""How one Slack app is reached. Nothing here reads the environment."""

from __future__ import annotations

from dataclasses import dataclass, field

BASE_URL = "https://slack.com/api/"
READ_LAG_S = 60.0
"""How fresh a channel's history and the list of scheduled messages are, Slack does not say; usually it is seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlackConfig:
    """`token` is the app's bot token (`xoxb-…`) in one workspace. `retry_after_cap_s` bounds what a Retry-After header may
    ask for. `read_lag_s` is how old a reading of Slack's may be: history and list of scheduled messages."""

    token: str = field(repr=False)
    base_url: str = BASE_URL
    timeout_s: float = 20.0
    retry_after_cap_s: float = 900.0
    read_lag_s: float = READ_LAG_S
