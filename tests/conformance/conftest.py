"""One sandbox for the folder's tests, as empty as new before each; adapters that reach it through their real clients."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import requests

from counterfoil.providers.jira.client import JiraAdapter
from counterfoil.providers.jira.config import JiraConfig
from counterfoil.providers.linear.client import LinearAdapter
from counterfoil.providers.linear.config import LinearConfig
from counterfoil.providers.stripe.client import StripeAdapter
from counterfoil.providers.stripe.config import StripeConfig
from counterfoil.providers.twilio.client import TwilioAdapter
from counterfoil.providers.twilio.config import TwilioConfig
from counterfoil.providers.zendesk.client import ZendeskAdapter
from counterfoil.providers.zendesk.config import ZendeskConfig
from counterfoil.sandbox.client import Sandbox
from counterfoil.sandbox.process import running


@pytest.fixture(scope="session")
def sandbox_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """A sandbox on a free port of loopback."""
    with running(tmp_path_factory.mktemp("sandbox")) as sandbox:
        # Linear's first request loads the GraphQL library, for longer than some of the tests wait.
        requests.post(f"{sandbox.linear.url}/graphql", json={"query": "{ viewer { id } }"}, timeout=30)
        yield sandbox


@pytest.fixture
def sandbox(sandbox_process: Sandbox) -> Sandbox:
    """An empty world whose searches do not lag."""
    sandbox_process.reset()
    sandbox_process.config(
        search_lag_s={"stripe": 0, "stripe_events": 0, "jira": 0, "zendesk": 0, "twilio": 0, "slack": 0}
    )
    return sandbox_process


@pytest.fixture
def stripe_adapter(sandbox: Sandbox) -> StripeAdapter:
    return StripeAdapter(StripeConfig(api_key="sk_test_sandbox", base_url=sandbox.stripe.url))


@pytest.fixture
def jira_adapter(sandbox: Sandbox) -> JiraAdapter:
    return JiraAdapter(
        JiraConfig(server=sandbox.jira.url, email="bot@example.test", token="sandbox", staging_transition="51")
    )


@pytest.fixture
def linear(sandbox: Sandbox) -> LinearAdapter:
    return LinearAdapter(LinearConfig(api_key="lin_api_sandbox", base_url=sandbox.linear.url, read_lag_s=0))


@pytest.fixture
def zendesk_adapter(sandbox: Sandbox) -> ZendeskAdapter:
    return ZendeskAdapter(ZendeskConfig(server=sandbox.zendesk.url, email="bot@example.test", token="sandbox"))


@pytest.fixture
def twilio(sandbox: Sandbox) -> TwilioAdapter:
    return TwilioAdapter(
        TwilioConfig(account_sid="AC_1", token="sandbox", messaging_service="MG_1", base_url=sandbox.twilio.url)
    )
