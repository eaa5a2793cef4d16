"""Whose credentials Linear's client gets."""

from __future__ import annotations

import pytest

from counterfoil.ledger.errors import ConfigError
from counterfoil.providers.linear.config import LinearConfig
from counterfoil.providers.linear.tools import linear_create
from counterfoil.providers.tool import SPEC_ATTRIBUTE
from counterfoil.settings import Settings
from counterfoil.workers.clients import client_config

SPEC = getattr(linear_create, SPEC_ATTRIBUTE)


def config_of(account: str = "default", **given: object) -> LinearConfig:
    config = client_config(SPEC, account, Settings(tools=("x",), providers={"linear": given}))
    assert isinstance(config, LinearConfig)
    return config


def test_each_account_has_its_own() -> None:
    """A key or a token, of the account if it has one; two of them compare equal only where all is equal."""
    accounts = {"eu": {"tenants": ["acme"], "api_key": "eu"}}
    house, eu = (config_of(name, api_key="house", accounts=accounts) for name in ("default", "eu"))
    assert (house.authorization, eu.authorization) == ("house", "eu")
    assert house != eu
    assert house == config_of(api_key="house")
    assert config_of(token="t").authorization == "Bearer t"
    assert config_of(token="t", base_url="http://127.0.0.1:8/linear/").url == "http://127.0.0.1:8/linear/graphql"


@pytest.mark.parametrize(
    ("account", "given", "said"),
    [
        ("default", {}, "providers.linear.api_key is not configured"),
        ("default", {"api_key": "a", "token": "b"}, "an API key and an OAuth token"),
        (
            "eu",
            {"api_key": "a", "accounts": {"eu": {"tenants": ["acme"], "token": "b"}}},
            "an API key and an OAuth token",
        ),
    ],
)
def test_it_is_never_a_guess(account: str, given: dict[str, object], said: str) -> None:
    """No credentials, or two kinds, also where an account would have to choose between its own and the house's."""
    with pytest.raises(ConfigError, match=said):
        config_of(account, **given)
