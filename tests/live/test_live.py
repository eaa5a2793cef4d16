"""The shipped adapters against the providers themselves, in test modes and on sites for tests; docs/live-tests.md says how.

Skipped where the environment does not say as whom. The same round trips are rehearsed against the sandbox, so that a live
test that fails does not fail for its own mistakes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from threading import Event
from typing import Any

import pytest
from tests.live.round_trip import Trip, round_trip

from counterfoil.sandbox.client import Sandbox
from counterfoil.sandbox.process import running
from counterfoil.settings import Settings

BETWEEN_S = 5.0
STRIPE_TEST_KEYS = ("sk_test_", "rk_test_")


@dataclass(frozen=True, kw_only=True)
class Live:
    """A provider's round trip, and which variables of the environment say as whom and where."""

    trip: Trip
    variables: tuple[str, ...]
    settings: Callable[[Mapping[str, str]], dict[str, object]]
    """The provider's table of the configuration, of the variables' values by name."""
    sandbox: Mapping[str, str]
    """Values for the rehearsal; `{url}` is the sandbox's address for the provider."""
    world: Mapping[str, Any]
    """The sandbox's settings for the rehearsal."""
    title: str

    def __str__(self) -> str:
        return self.title


def jira(values: Mapping[str, str]) -> dict[str, object]:
    return {"server": values["CF_LIVE_JIRA_SERVER"], "email": values["CF_LIVE_JIRA_EMAIL"]} | {
        "token": values["CF_LIVE_JIRA_TOKEN"]
    }


def jira_data_center(values: Mapping[str, str]) -> dict[str, object]:
    reach = {"server": values["CF_LIVE_JIRA_DC_SERVER"], "token": values["CF_LIVE_JIRA_DC_TOKEN"]}
    return {"deployment": "data_center", **reach}


def zendesk(values: Mapping[str, str]) -> dict[str, object]:
    return {"server": values["CF_LIVE_ZENDESK_SERVER"], "email": values["CF_LIVE_ZENDESK_EMAIL"]} | {
        "token": values["CF_LIVE_ZENDESK_TOKEN"]
    }


def ticket(project: str) -> Callable[[Mapping[str, str]], dict[str, Any]]:
    return lambda values: {
        "project": values[project],
        "summary": "Live test of Counterfoil",
        "order_id": values["order_id"],
        "description": "Made and closed by a test.",
    }


LIVE = (
    Live(
        title="stripe",
        trip=Trip(
            provider="stripe",
            tool="stripe_charge",
            arguments=lambda values: {
                "customer": values["CF_LIVE_STRIPE_CUSTOMER"],
                "amount_minor": 100,
                "currency": "usd",
                "order_id": values["order_id"],
            },
        ),
        variables=("CF_LIVE_STRIPE_KEY", "CF_LIVE_STRIPE_CUSTOMER"),
        settings=lambda values: {"api_key": values["CF_LIVE_STRIPE_KEY"]},
        sandbox={"CF_LIVE_STRIPE_KEY": "sk_test_sandbox", "CF_LIVE_STRIPE_CUSTOMER": "cus_1"},
        world={},
    ),
    Live(
        title="jira_cloud",
        trip=Trip(provider="jira", tool="jira_create", arguments=ticket("CF_LIVE_JIRA_PROJECT")),
        variables=("CF_LIVE_JIRA_SERVER", "CF_LIVE_JIRA_EMAIL", "CF_LIVE_JIRA_TOKEN", "CF_LIVE_JIRA_PROJECT"),
        settings=jira,
        sandbox={
            "CF_LIVE_JIRA_SERVER": "{url}",
            "CF_LIVE_JIRA_EMAIL": "bot@example.test",
            "CF_LIVE_JIRA_TOKEN": "t",
            "CF_LIVE_JIRA_PROJECT": "SUP",
        },
        world={},
    ),
    Live(
        title="jira_data_center",
        trip=Trip(provider="jira", tool="jira_create", arguments=ticket("CF_LIVE_JIRA_DC_PROJECT")),
        variables=("CF_LIVE_JIRA_DC_SERVER", "CF_LIVE_JIRA_DC_TOKEN", "CF_LIVE_JIRA_DC_PROJECT"),
        settings=jira_data_center,
        sandbox={
            "CF_LIVE_JIRA_DC_SERVER": "{url}",
            "CF_LIVE_JIRA_DC_TOKEN": "t",
            "CF_LIVE_JIRA_DC_PROJECT": "SUP",
        },
        world={"jira_deployment": "data_center"},
    ),
    Live(
        title="zendesk",
        trip=Trip(
            provider="zendesk",
            tool="zendesk_create",
            arguments=lambda values: {
                "subject": "Live test of Counterfoil",
                "body": "Made and solved by a test.",
                "order_id": values["order_id"],
            },
        ),
        variables=("CF_LIVE_ZENDESK_SERVER", "CF_LIVE_ZENDESK_EMAIL", "CF_LIVE_ZENDESK_TOKEN"),
        settings=zendesk,
        sandbox={
            "CF_LIVE_ZENDESK_SERVER": "{url}",
            "CF_LIVE_ZENDESK_EMAIL": "bot@example.test",
            "CF_LIVE_ZENDESK_TOKEN": "t",
        },
        world={},
    ),
    Live(
        title="linear",
        trip=Trip(
            provider="linear",
            tool="linear_create",
            arguments=lambda values: {
                "team": values["CF_LIVE_LINEAR_TEAM"],
                "title": "Live test of Counterfoil",
                "order_id": values["order_id"],
            },
        ),
        variables=("CF_LIVE_LINEAR_KEY", "CF_LIVE_LINEAR_TEAM"),
        settings=lambda values: {"api_key": values["CF_LIVE_LINEAR_KEY"]},
        sandbox={"CF_LIVE_LINEAR_KEY": "lin_api_sandbox", "CF_LIVE_LINEAR_TEAM": "SUP"},
        world={},
    ),
    Live(
        title="slack",
        trip=Trip(
            provider="slack",
            tool="slack_schedule",
            arguments=lambda values: {
                "channel": values["CF_LIVE_SLACK_CHANNEL"],
                "text": "Live test of Counterfoil, taken back before it is posted.",
                "post_at": (datetime.now(UTC) + timedelta(days=1)).strftime("%Y-%m-%dT%H:%M:%SZ"),
            },
        ),
        variables=("CF_LIVE_SLACK_TOKEN", "CF_LIVE_SLACK_CHANNEL"),
        settings=lambda values: {"token": values["CF_LIVE_SLACK_TOKEN"]},
        sandbox={"CF_LIVE_SLACK_TOKEN": "xoxb-sandbox", "CF_LIVE_SLACK_CHANNEL": "C0123456789"},
        world={},
    ),
)


def values_of(live: Live, environment: Mapping[str, str]) -> dict[str, str]:
    """The variables' values. Skips where one is missing; fails for a Stripe key that is not one of its test mode."""
    missing = [name for name in live.variables if not environment.get(name)]
    if missing:
        pytest.skip(f"not configured: {', '.join(missing)}")
    key = environment.get("CF_LIVE_STRIPE_KEY", STRIPE_TEST_KEYS[0])
    if live.title == "stripe" and not key.startswith(STRIPE_TEST_KEYS):
        pytest.fail("CF_LIVE_STRIPE_KEY is not a key of Stripe's test mode: nothing is sent with it.")
    return {name: environment[name] for name in live.variables}


@pytest.mark.live
@pytest.mark.parametrize("live", LIVE, ids=str)
def test_made_found_and_taken_back(live: Live) -> None:
    """At the provider itself: one effect under our key is found by it, and so is its compensation."""
    values = values_of(live, os.environ)
    settings = Settings.model_validate({"providers": {live.trip.provider: live.settings(values)}})
    pause = Event()
    round_trip(live.trip, settings, values, wait=lambda: pause.wait(BETWEEN_S))


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    with running(tmp_path_factory.mktemp("sandbox")) as sandbox:
        yield sandbox


@pytest.mark.parametrize("live", LIVE, ids=str)
def test_the_round_trip_is_rehearsed_in_the_sandbox(live: Live, sandbox: Sandbox) -> None:
    """What the live test would do there, it does here, with lags: both effects, and nothing else."""
    sandbox.reset()
    sandbox.config(**live.world)
    url = sandbox.provider(live.trip.provider).url
    values = values_of(live, {name: value.format(url=url) for name, value in live.sandbox.items()})
    base_url = f"{url}/api/" if live.title == "slack" else url
    table = {"base_url": base_url, "lookup_lag_s": 0, **live.settings(values)}
    settings = Settings.model_validate({"providers": {live.trip.provider: table}})
    round_trip(live.trip, settings, values, wait=lambda: sandbox.advance(BETWEEN_S))
    writes = [r for r in sandbox.requests(live.trip.provider) if r.method not in ("GET", "HEAD")]
    assert len(sandbox.effects(provider=live.trip.provider)) >= 2, writes


def test_a_key_that_moves_real_money_is_refused() -> None:
    """Before anything is sent."""
    environment = {"CF_LIVE_STRIPE_KEY": "sk_live_1", "CF_LIVE_STRIPE_CUSTOMER": "cus_1"}
    with pytest.raises(pytest.fail.Exception, match="test mode"):
        values_of(LIVE[0], environment)


def test_what_is_not_configured_is_skipped_by_name() -> None:
    """The reason says which variables are missing."""
    with pytest.raises(pytest.skip.Exception, match="CF_LIVE_STRIPE_KEY"):
        values_of(LIVE[0], {"CF_LIVE_STRIPE_CUSTOMER": "cus_1"})
