"""How one Jira Cloud site is reached. Nothing here reads the environment."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class JiraConfig:
    """`email` and `token` are the service account's. `retry_after_cap_s` bounds what a Retry-After header may ask for.

    `staging_transition` is the id of the workflow's move from the first status to `staging_status`, where no team's queue
    shows a ticket; None = tickets cannot be staged here. `queue_status` is where an opened one goes.
    """

    server: str
    email: str
    token: str = field(repr=False)
    timeout_s: float = 20.0
    retry_after_cap_s: float = 900.0
    staging_transition: str | None = None
    staging_status: str = "Staged"
    queue_status: str = "To Do"
