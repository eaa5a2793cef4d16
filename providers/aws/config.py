"""How one AWS account is reached. Nothing here reads the environment, a profile or an instance's metadata."""

from __future__ import annotations

from dataclasses import dataclass, field

READ_LAG_S = 60.0
"""How soon a read shows a write, AWS does not say. A resend that comes too early meets the name, and is no second one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AwsConfig:
    """`access_key` is the id that `secret_key` belongs to; temporary credentials have a `session_token` as well.

    `target_arn` is what every schedule calls, as `role_arn`, and `group` where schedules are: no agent chooses these.
    `base_url` None = the region's own service. `read_lag_s` is how old a reading of AWS's may be.
    """

    region: str
    access_key: str
    secret_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)
    target_arn: str
    role_arn: str
    group: str = "default"
    base_url: str | None = None
    timeout_s: float = 20.0
    retry_after_cap_s: float = 900.0
    read_lag_s: float = READ_LAG_S
