"""Where a request goes: what changes it, and what must not, or every action in doubt would be a person's."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from counterfoil.providers.aws.config import AwsConfig
from counterfoil.providers.email.config import EmailConfig, ImapConfig
from counterfoil.providers.http.config import HttpConfig
from counterfoil.providers.jira.config import JiraConfig
from counterfoil.providers.reach import REACH_CHARS, is_elsewhere, reach_of
from counterfoil.providers.slack.config import SlackConfig
from counterfoil.providers.stripe.config import StripeConfig
from counterfoil.providers.twilio.config import TwilioConfig
from counterfoil.providers.zendesk.config import ZendeskConfig
from counterfoil.settings_http import HttpTool

SECRET = b"0123456789abcdef"
JIRA = JiraConfig(server="https://acme.atlassian.net", email="bot@example.test", token="t")
STRIPE = StripeConfig(api_key="sk_test_1")
ZENDESK = ZendeskConfig(server="https://acme.zendesk.com", token="t")
TWILIO = TwilioConfig(account_sid="AC1", token="t", sender="+1")
AWS = AwsConfig(region="eu", access_key="a", secret_key="s", target_arn="t", role_arn="r")
IMAP = ImapConfig(host="imap.example.test", port=993, username="u", password="p")
EMAIL = EmailConfig(host="smtp.example.test", port=587, sender="a@example.test", imap=IMAP)


def digest(config: object, tool: str = "tool") -> str:
    return reach_of(config, tool, SECRET)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (STRIPE, replace(STRIPE, api_key="sk_test_2")),
        (STRIPE, replace(STRIPE, base_url="https://stripe.example.test")),
        (JIRA, replace(JIRA, server="https://other.atlassian.net")),
        (JIRA, replace(JIRA, deployment="data_center")),
        (JIRA, replace(JIRA, email="other@example.test")),
        (TWILIO, replace(TWILIO, account_sid="AC2")),
        (AWS, replace(AWS, group="other")),
        (AWS, replace(AWS, session_token="other")),
        (EMAIL, replace(EMAIL, imap=None)),
        (EMAIL, replace(EMAIL, imap=replace(IMAP, folder="Other"))),
        (EMAIL, replace(EMAIL, imap=replace(IMAP, host="other.example.test"))),
    ],
)
def test_another_address_login_or_secret_is_another_place(one: object, other: object) -> None:
    """Nothing that was sent to one is asked for at the other."""
    assert digest(one) != digest(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (STRIPE, replace(STRIPE, timeout_s=1, retry_after_cap_s=1)),
        (JIRA, replace(JIRA, staging_transition="51", staging_status="Aside", queue_status="Open")),
        (JIRA, replace(JIRA, server="https://acme.atlassian.net/")),
        (ZENDESK, replace(ZENDESK, server="https://acme.zendesk.com/")),
        (SlackConfig(token="t"), SlackConfig(token="t", base_url="https://slack.com/api", read_lag_s=1)),
        (TWILIO, replace(TWILIO, sender="+2", reference=False)),
    ],
)
def test_what_says_how_is_no_other_place(one: object, other: object) -> None:
    """Times, statuses, a sender, and a slash at the end of an address park nothing."""
    assert digest(one) == digest(other)


def test_a_newer_version_s_setting_is_no_other_place() -> None:
    """A field that a later version adds changes the place only where somebody gives it: an upgrade parks nothing."""

    @dataclass(frozen=True, kw_only=True)
    class Inner:
        host: str
        region: str = "eu"

    @dataclass(frozen=True, kw_only=True)
    class Newer:
        api_key: str
        base_url: str | None = None
        api_version: str | None = None
        tags: tuple[str, ...] = field(default_factory=tuple)
        inner: Inner | None = None

    newer = Newer(api_key="sk_test_1")
    assert digest(newer) == digest(STRIPE)
    assert digest(replace(newer, api_version="2026-01-01")) != digest(STRIPE)
    inside = replace(newer, inner=Inner(host="h"))
    assert digest(inside) != digest(newer)
    assert digest(inside) != digest(replace(newer, inner=Inner(host="h", region="us")))


def test_an_http_tool_s_table_is_part_of_the_place() -> None:
    """What makes the request is; what judges its answer, and what says nothing new, is not."""

    def config(**table: Any) -> HttpConfig:
        given = {"provider": "parcels", "description": "d", "class": "irreversible", "effect": "e", "target": "t"}
        given |= {"audience": [], "once_per": [], "path": "/parcels", "uncertain": "operator_review"}
        tool = HttpTool.model_validate({**given, "arguments": {"t": {"type": "string"}}, **table})
        return HttpConfig(base_url="https://parcels.example.test", tools={"ship": tool})

    assert digest(config(), "ship") == digest(config(method="POST", key_format="bare"), "ship")
    assert digest(config(), "ship") == digest(config(success=[201], receipt="/number"), "ship")
    assert digest(config(), "ship") != digest(config(method="PUT"), "ship")
    assert digest(config(), "ship") != digest(config(path="/v2/parcels"), "ship")
    assert digest(config(), "ship") != digest(config(headers={"X-Site": {"value": "2"}}), "ship")


def test_a_place_tells_nothing() -> None:
    """A few hex digits, another for another key; none for a person's own function."""
    assert len(digest(STRIPE)) == REACH_CHARS
    assert digest(STRIPE) != reach_of(STRIPE, "tool", b"another")
    assert reach_of(None, "tool", SECRET) == ""


def test_two_tools_of_one_api_are_of_one_place() -> None:
    """A counter-action has another table than what it takes back; another address or secret is another place."""
    table = {"provider": "p", "description": "d", "class": "reversible", "effect": "e", "target": "t", "audience": []}
    given = {**table, "once_per": [], "key_ttl_s": 60, "arguments": {"t": {"type": "string"}}}
    tools = {name: HttpTool.model_validate({**given, "path": f"/{name}"}) for name in ("ship", "unship")}
    here = HttpConfig(base_url="https://parcels.example.test", tools=tools, secrets={"token": "a"})
    ship, unship = (reach_of(here, name, SECRET) for name in tools)
    assert ship != unship
    assert not is_elsewhere(ship, unship)
    for there in (replace(here, base_url="https://other.example.test"), replace(here, secrets={"token": "b"})):
        assert is_elsewhere(ship, reach_of(there, "unship", SECRET))
    assert not is_elsewhere(None, ship)
    assert not is_elsewhere(ship, "")
