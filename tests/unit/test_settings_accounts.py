"""Accounts in the configuration: who goes by which, what they take over, and every mistake with its key."""

from __future__ import annotations

from pathlib import Path

import pytest

from counterfoil.cli.tool import check_tools
from counterfoil.ledger.errors import ConfigError
from counterfoil.outbox.setup import accounts_of
from counterfoil.providers.http.config import HttpConfig
from counterfoil.providers.registry import Registry
from counterfoil.providers.stripe.config import StripeConfig
from counterfoil.providers.zendesk.config import ZendeskConfig
from counterfoil.settings import Settings
from counterfoil.workers.clients import client_config

STRIPE = """
[providers.stripe]
api_key = "sk_house"
timeout_s = 7
former_tenants = ["old"]
[providers.stripe.accounts.eu]
api_key_file = "eu"
base_url = "http://127.0.0.1:8/eu"
tenants = ["acme", "globex"]
former_tenants = ["initech"]
"""
NOTE = """
[providers.crm]
base_url = "http://127.0.0.1:8"
token = "house"
[providers.crm.accounts.eu]
tenants = ["acme"]
token = "eu"
[http.note]
provider = "crm"
description = "Add a note."
class = "reversible"
effect = "note"
target = "customer"
audience = ["support_team"]
once_per = []
path = "/notes"
key_ttl_s = 86400
arguments.customer = { type = "string", max_length = 40 }
headers.Authorization = { secret = "token", prefix = "Bearer " }
"""


def load(folder: Path, text: str) -> Settings:
    (folder / "eu").write_text("sk_eu\n")
    file = folder / "counterfoil.toml"
    file.write_text(text)
    return Settings.load(file, {})


def test_who_goes_by_which(tmp_path: Path) -> None:
    """A tenant's new actions by its own account; earlier ones by those it is still listed for; by no other."""
    accounts = accounts_of(load(tmp_path, STRIPE))
    assert [accounts.of("stripe", tenant) for tenant in ("acme", "globex", "old", "x")] == [
        "eu",
        "eu",
        "default",
        "default",
    ]
    assert accounts.of("jira", "acme") == "default"
    allowed = {
        (tenant, account)
        for tenant in ("acme", "old", "initech", "x")
        for account in ("default", "eu", "us")
        if accounts.allow("stripe", tenant, account)
    }
    assert allowed == {("acme", "eu"), ("old", "default"), ("initech", "default"), ("initech", "eu"), ("x", "default")}


def test_an_account_takes_over_what_it_does_not_give(tmp_path: Path) -> None:
    """Its own key and address, the provider's times; the default account is the provider's table."""
    settings = load(tmp_path, STRIPE)
    spec = Registry.load(["counterfoil.providers.stripe.tools"]).get("stripe_charge")
    house, eu = (client_config(spec, name, settings) for name in ("default", "eu"))
    assert isinstance(house, StripeConfig)
    assert isinstance(eu, StripeConfig)
    assert (house.api_key, house.base_url, house.timeout_s) == ("sk_house", None, 7)
    assert (eu.api_key, eu.base_url, eu.timeout_s) == ("sk_eu", "http://127.0.0.1:8/eu", 7)
    with pytest.raises(ConfigError, match="'us' is not configured"):
        client_config(spec, "us", settings)


@pytest.mark.parametrize(("house", "eu"), [("server", "base_url"), ("base_url", "server")])
def test_an_account_s_address_is_the_one_that_counts(tmp_path: Path, house: str, eu: str) -> None:
    """Under either of its two names: no tenant's actions go to another's address."""
    table = f"""
[providers.zendesk]
{house} = "https://house.example"
token = "t"
[providers.zendesk.accounts.eu]
{eu} = "https://eu.example"
token = "t2"
tenants = ["acme"]
"""
    settings = load(tmp_path, table)
    spec = Registry.load(["counterfoil.providers.zendesk.tools"]).get("zendesk_create")
    configs = [client_config(spec, name, settings) for name in ("default", "eu")]
    servers = [config.server for config in configs if isinstance(config, ZendeskConfig)]
    assert servers == ["https://house.example", "https://eu.example"]


def test_an_http_tool_sends_the_account_s_own_secret(tmp_path: Path) -> None:
    """A header may name the account's secret; one that would go to every account is refused."""
    settings = load(tmp_path, NOTE)
    spec = check_tools(settings).get("note")
    configs = [client_config(spec, name, settings) for name in ("default", "eu")]
    assert [config.secrets for config in configs if isinstance(config, HttpConfig)] == [
        {"token": "house"},
        {"token": "eu"},
    ]
    assert "house" not in repr(configs)
    shared = NOTE.replace('secret = "token"', 'secret_env = "CRM_TOKEN"')
    with pytest.raises(ConfigError, match=r"http.note.headers.Authorization would send one secret for every account"):
        check_tools(load(tmp_path, shared))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ('[providers.stripe.accounts.us]\ntenants = ["acme"]', "tenant 'acme' is in two accounts, eu and us"),
        ('[providers.stripe.accounts.default]\ntenants = ["x"]', "own credentials"),
        ('[providers.stripe.accounts."a b"]\ntenants = ["x"]', "providers.stripe.accounts.a b"),
        ('[providers.stripe.accounts.us]\ntenant = ["x"]', "Did you mean tenants?"),
        ("[providers.stripe.accounts.us]\ntimeout_s = 3", "is no setting"),
        ('[providers.stripe.accounts.us]\nbase_url = "https://us.example"', "needs a secret of its own"),
        ('[providers.jira]\nserver = "http://jira.example"\ntoken = "t0p"', "would be sent a secret in the clear"),
        (
            '[providers.stripe.accounts.us]\nbase_url = "http://stripe.example"\napi_key = "a"',
            "would be sent a secret in the clear",
        ),
        ('[providers.stripe.accounts.us]\napi_key = "a"\napi_key_file = "b"', "not both"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, change: str, said: str) -> None:
    """With the key at which it was written, and without a value."""
    with pytest.raises(ConfigError) as refused:
        load(tmp_path, f"{STRIPE}\n{change}")
    assert said in f"{refused.value} {refused.value.fix}"


def test_a_secret_s_file_is_read_by_the_check(tmp_path: Path) -> None:
    """`config check` finds the file that a worker would not."""
    settings = load(tmp_path, STRIPE)
    settings.check_secret_files()
    (tmp_path / "eu").unlink()
    with pytest.raises(ConfigError, match=r"providers.stripe.accounts.eu.api_key_file: .* cannot be read"):
        settings.check_secret_files()


def test_one_address_beyond_this_machine_is_enough(tmp_path: Path) -> None:
    """The fast profile, which shortens waits, is for sandboxes only: an account's address counts."""
    fast = f'profile = "fast"\n{STRIPE}'.replace("timeout_s = 7\n", "").replace(
        'api_key = "sk_house"', 'base_url = "http://127.0.0.1:8"'
    )
    assert load(tmp_path, fast).provider("stripe").is_loopback
    with pytest.raises(ConfigError, match="fast"):
        load(tmp_path, fast.replace("http://127.0.0.1:8/eu", "https://api.stripe.example"))


def test_an_account_s_events_have_its_own_secrets(tmp_path: Path) -> None:
    """One or several, in place of the provider's; the provider's where it gives none."""
    for name in ("house", "old", "new"):
        (tmp_path / name).write_text(f"{name}\n")
    text = f"""
        [providers.stripe]
        webhook_secret_file = "{tmp_path}/house"
        [providers.stripe.accounts.eu]
        webhook_secret_files = ["{tmp_path}/old", "{tmp_path}/new"]
        [providers.stripe.accounts.us]
        tenants = ["acme"]
        """
    stripe = load(tmp_path, text).provider("stripe")
    secrets = {name: stripe.through(name).webhook_secrets() for name in ("default", "eu", "us")}
    assert secrets == {"default": (b"house",), "eu": (b"old", b"new"), "us": (b"house",)}
    assert load(tmp_path, "").provider("stripe").webhook_secrets() == ()
