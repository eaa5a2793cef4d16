"""How one Twilio account is reached. Nothing here reads the environment."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class TwilioConfig:
    """`token` is the account's own token or, with an API key's SID as `username`, that key's secret.

    Messages come from `messaging_service` if there is one, else from `sender`; only a messaging service can schedule.
    Without `reference` a text stays as it is written, and cannot be found again. `base_url` None = the real service.
    """

    account_sid: str
    token: str = field(repr=False)
    username: str | None = None
    sender: str | None = None
    messaging_service: str | None = None
    reference: bool = True
    base_url: str | None = None
    timeout_s: float = 20.0
    retry_after_cap_s: float = 900.0
