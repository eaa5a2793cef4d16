"""How one Jira site is reached. Nothing here reads the environment."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Deployment = Literal["cloud", "data_center"]


@dataclass(frozen=True, slots=True, kw_only=True)
class JiraConfig:
    """`retry_after_cap_s` bounds what a Retry-After header may ask for.

    `token` is an API token of the account `email` in Jira Cloud. In Data Center it is a personal access token, or with
    `username` that account's password.

    `staging_transition` is the id of the workflow's move from the first status to `staging_status`, where no team's queue
    shows a ticket; None = tickets cannot be staged here. `queue_status` is where an opened one goes.
    """

    server: str
    token: str = field(repr=False)
    deployment: Deployment = "cloud"
    email: str | None = None
    username: str | None = None
    timeout_s: float = 20.0
    retry_after_cap_s: float = 900.0
    staging_transition: str | None = None
    staging_status: str = "Staged"
    queue_status: str = "To Do"

    def __post_init__(self) -> None:
        if self.deployment == "cloud" and not self.email:
            raise ValueError("Jira Cloud wants the email of the account that the token belongs to")

    @property
    def is_cloud(self) -> bool:
        """Not Data Center, which has another search, other logins, and shows no properties in its lists."""
        return self.deployment == "cloud"
