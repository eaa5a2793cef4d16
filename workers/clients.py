"""Decides how each provider is reached, from the settings: one builder of a client's config a provider.

Called before each call, so that a credential that was replaced in its file, or moved to another, is the next call's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from counterfoil.ledger.errors import ConfigError
from counterfoil.providers.aws.config import READ_LAG_S as AWS_LAG_S
from counterfoil.providers.aws.config import AwsConfig
from counterfoil.providers.email.config import EmailConfig, ImapConfig, checked_folder, imap_of, server_of
from counterfoil.providers.http.config import HttpConfig
from counterfoil.providers.http.tools import ADAPTER as HTTP_ADAPTER
from counterfoil.providers.jira.config import JiraConfig
from counterfoil.providers.linear.config import READ_LAG_S as LINEAR_LAG_S
from counterfoil.providers.linear.config import LinearConfig
from counterfoil.providers.messages import checked_address
from counterfoil.providers.resend.config import API, ResendConfig
from counterfoil.providers.slack.config import BASE_URL as SLACK_URL
from counterfoil.providers.slack.config import READ_LAG_S as SLACK_LAG_S
from counterfoil.providers.slack.config import SlackConfig
from counterfoil.providers.spec import ToolSpec
from counterfoil.providers.stripe.config import StripeConfig
from counterfoil.providers.twilio.config import TwilioConfig
from counterfoil.providers.zendesk.config import ZendeskConfig
from counterfoil.settings import Settings
from counterfoil.settings_contracts import http_address
from counterfoil.settings_providers import SECRETS, ProviderSettings, is_loopback


def client_config(spec: ToolSpec, account: str, settings: Settings) -> object:
    """The config of the tool's adapter for one account; `ConfigError` naming what is missing.

    A table `[http.NAME]` may use any provider's name, a shipped one's too.
    """
    given = settings.provider(spec.provider).through(account)
    if spec.adapter == HTTP_ADAPTER:
        return _http(spec.provider, account, settings)
    build = BUILDERS.get(spec.provider)
    if build is None:
        raise ConfigError(f"provider {spec.provider!r} has no client here.", key=f"providers.{spec.provider}")
    return build(given)


def _http(provider: str, account: str, settings: Settings) -> HttpConfig:
    """The API's address and its tools; `ConfigError` where the address is missing or none."""
    given = settings.provider(provider).through(account)
    return HttpConfig(
        base_url=http_address(provider, settings, account),
        tools={name: tool for name, tool in settings.http.items() if tool.provider == provider},
        timeout_s=given.timeout_s,
        retry_after_cap_s=given.retry_after_cap_s,
        secrets={name: secret for name in SECRETS if (secret := given.secret(name)) is not None},
    )


def _stripe(given: ProviderSettings) -> StripeConfig:
    return StripeConfig(
        api_key=needed(given.secret("api_key"), "providers.stripe.api_key"),
        base_url=given.base_url,
        timeout_s=given.timeout_s,
        retry_after_cap_s=given.retry_after_cap_s,
    )


def _jira(given: ProviderSettings) -> JiraConfig:
    is_cloud = given.deployment == "cloud"
    return JiraConfig(
        deployment=given.deployment,
        server=needed(given.server or given.base_url, "providers.jira.server"),
        email=needed(given.email, "providers.jira.email") if is_cloud else None,
        username=None if is_cloud else given.username,
        token=needed(given.secret("token"), "providers.jira.token"),
        timeout_s=given.timeout_s,
        retry_after_cap_s=given.retry_after_cap_s,
        staging_transition=given.staging_transition,
        staging_status=given.staging_status,
        queue_status=given.queue_status,
    )


def _zendesk(given: ProviderSettings) -> ZendeskConfig:
    return ZendeskConfig(
        server=needed(given.server or given.base_url, "providers.zendesk.server"),
        email=given.email,
        token=needed(given.secret("token"), "providers.zendesk.token"),
        timeout_s=given.timeout_s,
        retry_after_cap_s=given.retry_after_cap_s,
    )


def _linear(given: ProviderSettings) -> LinearConfig:
    api_key, token = given.secret("api_key"), given.secret("token")
    if api_key and token:
        raise ConfigError(
            "providers.linear has an API key and an OAuth token; which of them it is, an account must not have to guess.",
            key="providers.linear.token",
            fix="Give one of them, and the same one to every account.",
        )
    return LinearConfig(
        api_key=api_key or None,
        token=None if api_key else needed(token, "providers.linear.api_key"),
        base_url=given.base_url,
        timeout_s=given.timeout_s,
        retry_after_cap_s=given.retry_after_cap_s,
        read_lag_s=LINEAR_LAG_S if given.lookup_lag_s is None else given.lookup_lag_s,
    )


def _email(given: ProviderSettings) -> EmailConfig:
    server = needed(given.server or given.base_url, "providers.email.server")
    host, port, tls = server_of(server, is_loopback=given.is_loopback)
    sender = _sender(given, "providers.email.email")
    password = None if given.username is None else needed(given.secret("token"), "providers.email.token")
    return EmailConfig(
        host=host,
        port=port,
        tls=tls,
        sender=sender,
        username=given.username,
        password=password,
        imap=None if given.imap_server is None else _imap(given, given.imap_server),
    )


def _imap(given: ProviderSettings, server: str) -> ImapConfig:
    """The mailbox, under the same login as the mail server."""
    host, port, tls = imap_of(server, is_loopback=is_loopback(server))
    return ImapConfig(
        host=host,
        port=port,
        tls=tls,
        username=needed(given.username, "providers.email.username"),
        password=needed(given.secret("token"), "providers.email.token"),
        folder=checked_folder(given.drafts_folder),
    )


def _resend(given: ProviderSettings) -> ResendConfig:
    return ResendConfig(
        api_key=needed(given.secret("api_key"), "providers.resend.api_key"),
        sender=_sender(given, "providers.resend.email"),
        base_url=given.base_url or API,
        retry_after_cap_s=given.retry_after_cap_s,
    )


def _sender(given: ProviderSettings, key: str) -> str:
    """Who mail is from; `ConfigError` unless it is one plain address."""
    sender = needed(given.email, key)
    try:
        checked_address(sender)
    except ValueError as error:
        raise ConfigError(f"{key} is {error}.", key=key) from None
    return sender


def _twilio(given: ProviderSettings) -> TwilioConfig:
    return TwilioConfig(
        account_sid=needed(given.account_sid, "providers.twilio.account_sid"),
        token=needed(given.secret("token"), "providers.twilio.token"),
        username=given.username,
        sender=given.sender,
        messaging_service=given.messaging_service,
        reference=given.reference,
        base_url=given.base_url,
        timeout_s=given.timeout_s,
        retry_after_cap_s=given.retry_after_cap_s,
    )


def _slack(given: ProviderSettings) -> SlackConfig:
    return SlackConfig(
        base_url=given.base_url or SLACK_URL,
        token=needed(given.secret("token"), "providers.slack.token"),
        timeout_s=given.timeout_s,
        retry_after_cap_s=given.retry_after_cap_s,
        read_lag_s=SLACK_LAG_S if given.lookup_lag_s is None else given.lookup_lag_s,
    )


def _aws(given: ProviderSettings) -> AwsConfig:
    return AwsConfig(
        region=needed(given.region, "providers.aws.region"),
        access_key=needed(given.username, "providers.aws.username"),
        secret_key=needed(given.secret("token"), "providers.aws.token"),
        session_token=given.secret("api_key"),
        target_arn=needed(given.schedule_target, "providers.aws.schedule_target"),
        role_arn=needed(given.schedule_role, "providers.aws.schedule_role"),
        group=given.schedule_group,
        base_url=given.base_url,
        timeout_s=given.timeout_s,
        retry_after_cap_s=given.retry_after_cap_s,
        read_lag_s=AWS_LAG_S if given.lookup_lag_s is None else given.lookup_lag_s,
    )


def needed(value: str | None, key: str) -> str:
    """The value; `ConfigError` naming the key where there is none."""
    if not value:
        raise ConfigError(f"{key} is not configured.", key=key, fix=f"Set it in counterfoil.toml, or {key}_file.")
    return value


BUILDERS: Mapping[str, Callable[[ProviderSettings], object]] = {
    "stripe": _stripe,
    "jira": _jira,
    "zendesk": _zendesk,
    "linear": _linear,
    "email": _email,
    "slack": _slack,
    "resend": _resend,
    "twilio": _twilio,
    "aws": _aws,
}
"""The shipped providers, by name."""
