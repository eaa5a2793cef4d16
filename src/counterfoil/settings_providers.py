"""Decides what may be configured for one provider and one tool, and the reason for each default."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, model_validator

from counterfoil.ledger.errors import ConfigError
from counterfoil.ledger.keys import DEFAULT_ACCOUNT


def _no_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("expected a number, not true or false")
    return value


DAYS_30_S = 2_592_000
"""No time setting is longer: beyond it a typing mistake is likelier than a wish."""

Seconds = Annotated[float, BeforeValidator(_no_bool), Field(gt=0, le=DAYS_30_S, allow_inf_nan=False)]
SecondsOrZero = Annotated[float, BeforeValidator(_no_bool), Field(ge=0, le=DAYS_30_S, allow_inf_nan=False)]
Count = Annotated[int, BeforeValidator(_no_bool), Field(ge=1, le=100_000_000)]
Minor = Annotated[int, BeforeValidator(_no_bool), Field(ge=0, le=2**53 - 1)]
Word = Annotated[str, Field(min_length=1, max_length=100)]
AccountName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")]
Ratio = Annotated[float, BeforeValidator(_no_bool), Field(ge=0, le=1, allow_inf_nan=False)]
Tokens = Annotated[float, BeforeValidator(_no_bool), Field(ge=0, le=1_000_000, allow_inf_nan=False)]


SecretName = Literal["api_key", "token"]
SECRETS: tuple[SecretName, ...] = ("api_key", "token")


class Section(BaseModel):
    """A table of `counterfoil.toml`: every key is known, and nothing changes after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class RetryBudget(Section):
    """What the whole fleet may spend on retries at one provider; first attempts are free."""

    tokens_max: Tokens = 500  # fifty timeouts in a burst, then retries wait for successes
    refill_per_success: Tokens = 0.1  # ten clean calls earn one token: in the long run retries stay under a tenth
    cost_after_timeout: Tokens = 10  # a timeout may mean that the provider is drowning
    cost_after_throttle: Tokens = 5  # a 429 says so itself, and cost the provider little
    ratio_max: Ratio = 0.1  # retries per first attempt in a minute: a full outage is amplified by 1.10 at most
    retries_per_min_min: Tokens = 10  # below this the ratio does not count: a quiet provider has few first attempts
    refill_per_min: Tokens = 10  # by time alone: one retry a minute, where no success would ever come without it
    tenant_share: Ratio | None = None  # None = tenants share the bucket; 0.2 = none of them takes more than a fifth


class Breaker(Section):
    """When the whole fleet stops calling one provider, and how it finds out that it may go on."""

    failures_min: Count = 10  # fewer prove nothing: one slow call is no outage
    failure_ratio: Annotated[Ratio, Field(gt=0)] = (
        0.5  # timeouts, 5xx and refused connections of all answers in window_s
    )
    window_s: Seconds = 10  # long enough for a few calls of every worker, short enough to notice an outage at once
    open_s: Seconds = 1  # then one call is let through; doubled each time that it fails
    open_max_s: Seconds = 4  # one call in four seconds is no load, and a provider that is back is used within five

    @model_validator(mode="after")
    def _opens_for_no_longer_than_the_most(self) -> Self:
        if self.open_s > self.open_max_s:
            raise ValueError("open_s must not be more than open_max_s")
        return self


class Reach(Section):
    """How one account at a provider is reached, and as whom."""

    base_url: str | None = None  # None = the client library's own address: the real service
    server: str | None = None  # the same for Jira and Zendesk, under the name that their users know
    email: str | None = None  # the login that a token belongs to, where the provider wants both; SMTP: who mail is from
    username: Word | None = None  # SMTP, Jira Data Center: the token is its password; None = none. Twilio: an API key
    imap_server: str | None = None  # e-mail: the mailbox for drafts, under the same login; None = no drafts
    drafts_folder: Word = "Drafts"  # e-mail: what most mailboxes call it; other than ASCII as the server writes it
    api_key: SecretStr | None = None
    api_key_file: Path | None = None  # read by workers only, at each call: a file that is replaced is the next call's
    token: SecretStr | None = None
    token_file: Path | None = None
    webhook_secret_file: Path | None = None  # what its events are signed with; None = events are refused
    webhook_secret_files: tuple[Path, ...] | None = None  # the same while a secret is replaced: each of them is valid
    account_sid: Word | None = None  # Twilio: the account; the token is its own, or that of the API key in username
    sender: Word | None = None  # Twilio: the number or name that texts come from
    messaging_service: Word | None = None  # Twilio: what picks the sender instead; without it nothing is scheduled
    deployment: Literal["cloud", "data_center"] = "cloud"  # Jira: the two have other searches and other logins
    region: Word | None = None  # AWS; username is its access key's id, token the secret, api_key a session's token
    schedule_target: str | None = None  # AWS: what each schedule calls, such as a queue's ARN; no agent chooses it
    schedule_role: str | None = None  # AWS: the role that may call it
    schedule_group: Word = "default"  # AWS: where schedules are; the group that every account has
    staging_transition: Word | None = None  # Jira: the id of the move into staging_status; None = nothing is staged
    staging_status: Word = "Staged"  # Jira: where a prepared ticket waits, on no team's board
    queue_status: Word = "To Do"  # Jira: where an opened one goes; what Jira itself calls a new workflow's first status

    @model_validator(mode="after")
    def _one_source_for_each_secret(self) -> Self:
        for name in SECRETS:
            if getattr(self, name) is not None and getattr(self, f"{name}_file") is not None:
                raise ValueError(f"give {name} or {name}_file, not both")
        if self.webhook_secret_file is not None and self.webhook_secret_files is not None:
            raise ValueError("give webhook_secret_file or webhook_secret_files, not both")
        return self

    def secret(self, name: SecretName) -> str | None:
        """The secret's text, from the setting or its file, without surrounding white space; None = not configured."""
        value: SecretStr | None = getattr(self, name)
        if value is not None:
            return value.get_secret_value()
        path: Path | None = getattr(self, f"{name}_file")
        return None if path is None else read_secret_file(path, f"{name}_file").decode()

    def webhook_secrets(self) -> tuple[bytes, ...]:
        """What this account's events may be signed with, read now; none: it hears no events. Raises `ConfigError`."""
        if self.webhook_secret_file is not None:
            return (read_secret_file(self.webhook_secret_file, "webhook_secret_file"),)
        return tuple(read_secret_file(path, "webhook_secret_files") for path in self.webhook_secret_files or ())


class Account(Reach):
    """`[providers.NAME.accounts.ACCOUNT]`: other credentials of one provider, for some tenants. What is not given here is as
    in the provider's own table."""

    tenants: tuple[Word, ...] = ()  # whose new actions go through it; a tenant that nobody lists goes by "default"
    former_tenants: tuple[Word, ...] = ()  # whose earlier actions it still settles, after they moved to another account


class ProviderSettings(Reach):
    """`[providers.NAME]`: how to reach it, how hard to try, and how much of it to use."""

    accounts: dict[AccountName, Account] = {}  # none: everybody's actions go through this table's credentials
    former_tenants: tuple[Word, ...] = ()  # whose earlier actions these credentials still settle

    timeout_s: Seconds = 20  # well under the lease; payment APIs answer within seconds or not at all
    attempts_max: Count = 5  # with the backoff below about a quarter of a minute of trying, more after Retry-After
    not_sent_max: Count = 50  # nothing was sent, so trying is safe: hours of a refused connection at the backoff's cap
    backoff_base_s: Seconds = 1  # the first retry within a second: most faults are that short
    backoff_cap_s: Seconds = 300  # a provider that is back is noticed within five minutes
    retry_after_cap_s: Seconds = 900  # no answer can park an action for longer
    rate_per_s: Annotated[float, BeforeValidator(_no_bool), Field(gt=0, le=100_000)] = (
        25  # Stripe's test mode allows 25
    )
    concurrency_max: Count = 16  # calls in flight over the whole fleet; below the usual limits of payment APIs
    lookups_per_s: Annotated[float, BeforeValidator(_no_bool), Field(gt=0, le=10_000)] = (
        5  # questions of the whole fleet, each for up to a hundred actions; most limits count reads, too
    )
    retryable_codes: tuple[Word, ...] | None = None  # None = as each adapter's table says; a list can only shorten that
    uncertain_max_s: Seconds = 3600  # after an hour of answered look-ups a person knows more than the index will
    ttl_margin_s: Seconds | None = None  # None = a quarter of the native key's ttl (18 of Stripe's 24 hours are used)
    reference: bool = True  # Twilio: ends each text with ` (ref …)`, by which it is found again; false = a person looks
    landing_max_s: Seconds | None = None  # None = as the tool's code declares; shorter only on loopback
    lookup_lag_s: SecondsOrZero | None = None  # None = as the tool's code declares; shorter only on loopback
    retry_budget: RetryBudget = RetryBudget()
    breaker: Breaker = Breaker()

    @model_validator(mode="after")
    def _no_secret_in_the_clear(self) -> Self:
        for account in (DEFAULT_ACCOUNT, *self.accounts):
            reach = self.through(account)
            has_secret = any(getattr(reach, name) or getattr(reach, f"{name}_file") for name in SECRETS)
            for address in (reach.base_url, reach.server):
                if has_secret and address and address.startswith("http:") and not is_loopback(address):
                    raise ValueError(
                        f"{address} would be sent a secret in the clear; use https, except on this machine"
                    )
        return self

    @model_validator(mode="after")
    def _no_secret_at_another_address(self) -> Self:
        for name, account in self.accounts.items():
            own = any(getattr(account, secret) or getattr(account, f"{secret}_file") for secret in SECRETS)
            house = any(getattr(self, secret) or getattr(self, f"{secret}_file") for secret in SECRETS)
            elsewhere = {account.base_url, account.server} - {None, self.base_url, self.server}
            if elsewhere and house and not own:
                raise ValueError(f"accounts.{name} has an address of its own, and needs a secret of its own")
        return self

    @model_validator(mode="after")
    def _one_account_for_each_tenant(self) -> Self:
        if DEFAULT_ACCOUNT in self.accounts:
            raise ValueError(f'"{DEFAULT_ACCOUNT}" is the name of this table\'s own credentials')
        owners: dict[str, str] = {}
        for name, account in self.accounts.items():
            for tenant in account.tenants:
                if owners.setdefault(tenant, name) != name:
                    raise ValueError(f"tenant {tenant!r} is in two accounts, {owners[tenant]} and {name}")
        return self

    @property
    def is_loopback(self) -> bool:
        """Every address given here is this machine. False where this table itself gives none: then the client's own address
        counts for whoever goes by it, whatever its accounts have."""
        own, *others = ([r.base_url, r.server, r.imap_server] for r in (self, *self.accounts.values()))
        given = [address for address in sum(others, own) if address is not None]
        return any(own) and all(is_loopback(address) for address in given)

    def through(self, account: str) -> Self:
        """These settings with the account's own in their place. `ConfigError` for an account that is not configured."""
        if account == DEFAULT_ACCOUNT:
            return self
        given = self.accounts.get(account)
        if given is None:
            raise ConfigError(f"account {account!r} is not configured.", key=f"accounts.{account}")
        own = {name: getattr(given, name) for name in given.model_fields_set & set(Reach.model_fields)}
        for name in SECRETS:
            if own.get(name) is not None or own.get(f"{name}_file") is not None:
                own = {name: None, f"{name}_file": None, **own}
        for names in (("base_url", "server"), ("webhook_secret_file", "webhook_secret_files")):
            if set(names) & set(own):  # two names of one thing: the table's other one is not meant besides
                own = {**dict.fromkeys(names), **own}
        return self.model_copy(update=own)


class CapSettings(Section):
    """How much there may be of one tool or effect; nothing is capped unless it is written here. A child run counts as a run
    of its own, the day as one for all runs of a tenant."""

    count_per_run_max: Count | None = None  # None = only limits.actions_per_run_max
    amount_per_run_max_minor: Minor | None = None  # of each currency; a call whose amount nobody knows exceeds it
    count_per_day_max: Count | None = None  # a tenant's day in UTC, by the ledger's clock
    amount_per_day_max_minor: Minor | None = None  # what a tenant can lose before a person has looked


class EffectSettings(CapSettings):
    """`[effect.NAME]`: the caps on all tools of one effect together."""


class ToolSettings(CapSettings):
    """`[tool.NAME]` may only tighten: it asks for approvals, and can lift none that the code declares."""

    approval: Literal["always"] | None = None
    approval_above_minor: Minor | None = None


def read_secret_file(path: Path, key: str) -> bytes:
    """The file's bytes without surrounding white space; `ConfigError` naming `key` if there is none to read."""
    try:
        secret = path.read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"{key}: {path} cannot be read ({error.strerror}).", key=key) from error
    if not secret:
        raise ConfigError(f"{key}: {path} is empty.", key=key)
    return secret


def is_loopback(address: str) -> bool:
    """Whether the address, with or without a scheme, is surely this machine's."""
    try:
        host = urlsplit(address if "//" in address else f"//{address}").hostname or ""
    except ValueError:  # not an address at all, so surely not this machine's
        return False
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name: it may resolve to anything
        return False
