"""How one Linear workspace is reached. Nothing here reads the environment."""

from __future__ import annotations

from dataclasses import dataclass, field

BASE_URL = "https://api.linear.app"
READ_LAG_S = 60.0
"""Linear does not say how soon a list shows what was just written, or hides what was deleted. A client's id is not called
unique, either: what a second creation under one does is documented nowhere, so that nothing is repeated before it has been
looked up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearConfig:
    """Either `api_key`, a personal API key, which goes out as it is, or `token`, an OAuth access token, as a Bearer.

    `retry_after_cap_s` bounds what a Retry-After header may ask for. `read_lag_s` is how old a list of Linear's may be.
    """

    api_key: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    base_url: str | None = None
    timeout_s: float = 20.0
    retry_after_cap_s: float = 900.0
    read_lag_s: float = READ_LAG_S

    @property
    def url(self) -> str:
        """Where every document goes."""
        return f"{(self.base_url or BASE_URL).rstrip('/')}/graphql"

    @property
    def authorization(self) -> str:
        """The header's value. ValueError where it is not clear whose it is."""
        if (self.api_key is None) == (self.token is None):
            raise ValueError("Linear takes an API key or an OAuth token, not both")
        return self.api_key or f"Bearer {self.token}"
