"""Decides what can be configured: `counterfoil.toml` and COUNTERFOIL_* variables, checked as a whole at the start.

A leaf: entry points (command line, worker app, `Counterfoil.from_settings`) load it and pass values on; nothing below reads
a file or the environment. Every default has its reason beside it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from counterfoil.ledger.address import Address, Pooler
from counterfoil.ledger.errors import ConfigError
from counterfoil.outbox.addresses import is_redis, read_broker, read_redis
from counterfoil.settings_http import HttpTool
from counterfoil.settings_notify import Notify
from counterfoil.settings_providers import (
    SECRETS,
    Count,
    EffectSettings,
    ProviderSettings,
    Seconds,
    SecondsOrZero,
    Section,
    ToolSettings,
    read_secret_file,
)
from counterfoil.settings_sources import explain, find_file, merge, read_environ, read_file

KEY_SECRET_BYTES_MIN = 32
"""As many bytes as the hash that it keys gives out."""

FAST: dict[str, Any] = {
    "workers": {"lease_s": 6, "pause_allowance_s": 1, "guard_s": 1},
    "relay": {"poll_s": 0.1, "lost_after_s": 2},
    "reconciler": {
        "sweep_every_s": 0.5,
        "rescue_every_s": 2,
        "uncertain_after_s": 0.5,
        "lookup_base_s": 0.2,
        "lookup_lease_s": 12,
    },
    "notify": {"timeout_s": 3, "every_s": 0.5},
}
"""What `profile = "fast"` puts in place of the defaults, so that a demo or test sees in seconds what takes minutes."""

FAST_PROVIDER: dict[str, Any] = {
    "timeout_s": 3,
    "backoff_base_s": 0.2,
    "backoff_cap_s": 2,
    "rate_per_s": 1000,
    "lookups_per_s": 100,
    "breaker": {"open_s": 0.2, "open_max_s": 1},
}
"""The same for each provider; a sandbox on this machine answers at once or never."""


class Database(Section):
    """Postgres, which is the truth."""

    url: SecretStr | None = None  # holds a password, so it is never shown
    pooler: Pooler = "auto"  # found out at each connection; wrong only where a pooler passes Postgres' process ids on
    key_secret_file: Path | None = None  # for provider keys; workers only


class Broker(Section):
    """Redis, Valkey or RabbitMQ, which is a hint: losing it loses no work."""

    url: SecretStr | None = None  # holds a password, so it is never shown
    key_prefix: Annotated[str, Field(pattern=r"^[A-Za-z0-9:_{}-]{1,40}$")] = (
        "cf:"  # several installations may share one
    )
    queue_type: Literal["classic", "quorum"] = "classic"  # RabbitMQ's; a queue that is lost loses nothing but time

    @field_validator("url")
    @classmethod
    def _can_work(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and value.get_secret_value():
            read_broker(value.get_secret_value())
        return value


class AdmissionStore(Section):
    """Redis or Valkey, where the fleet counts retries, calls in flight and failures. Losing it loses no work."""

    url: SecretStr | None = None  # None = the broker's, where that is Redis; holds a password, so it is never shown
    timeout_s: Seconds = 0.5  # it answers within a millisecond or is away: then each process keeps to its share
    retry_after_s: Seconds = 1  # how long a process that found it away leaves it alone

    @field_validator("url")
    @classmethod
    def _is_a_redis(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and value.get_secret_value():
            read_redis(value.get_secret_value())
        return value


class Limits(Section):
    """Caps at the door, so that a model in a loop costs a refusal and not a bill."""

    arguments_bytes_max: Annotated[Count, Field(le=65_536)] = 65_536  # far above a sane call; the ledger holds no more
    actions_per_run_max: Count = 200  # tasks have tens of steps; a run with more is usually a loop
    calls_per_run_max: Count = 1000  # replays count too: five for each action
    refs_per_step_max: Count = 50  # a framework that names one step fifty times is in a loop
    waiting_per_tenant_max: Count = 10_000  # minutes of work for a fleet; beyond it one tenant would starve the others
    proposals_open_per_run_max: Count = 3  # a person cannot weigh more alternatives of one task


class Workers(Section):
    """Who acts. The lease must outlast a call, a pause of the process and the guards; this is checked."""

    lease_s: Seconds = 90  # over four request timeouts: a lease that ends under a slow call costs a look-up
    pause_allowance_s: Seconds = 10  # garbage collection, a slow disk, a virtual machine that moves
    guard_s: Seconds = 5  # reading the row again and comparing versions before the send
    concurrency: Annotated[Count, Field(le=1000)] = 8  # calls mostly wait for the network: more processes than cores
    soft_limit_s: Seconds = 40  # for a whole message: no action starts that cannot end within it
    hard_limit_s: Seconds = 60  # time to release the rest of the batch before the process is killed


class Reconciler(Section):
    """Who finds out: how often beat sweeps, and how soon and how patiently providers are asked."""

    sweep_every_s: Seconds = 5  # an ended lease is noticed within this; one indexed query each
    rescue_every_s: Seconds = 60  # finds nothing unless there is a bug
    uncertain_after_s: Seconds = 5  # most late effects are visible by then; asking sooner mostly asks twice
    lookup_base_s: Seconds = 1  # the shortest pause between two look-ups of one row; it doubles
    lookup_lease_s: Seconds = 60  # three request timeouts: a batch may need several requests
    lookup_batch_max: Annotated[Count, Field(le=1000)] = 100  # a page of most lists; tenfold where rows share requests
    skew_s: Seconds = 60  # provider clocks are kept by NTP, but some stamp whole minutes
    watch_s: Seconds = 86_400  # ended rows are looked up again for a day: an index that was down is up by then


class Relay(Section):
    """From the outbox to the broker."""

    poll_s: Seconds = 0.5  # the longest idle pause; nobody notices half a second before an agent's effect
    lost_after_s: Seconds = 20  # unclaimed for this long: published again; longer than a shallow queue needs to drain
    chunk_max: Annotated[Count, Field(le=100)] = 20  # actions in one message; workers accept at most 100
    high_water: Count = 400  # actions of one queue in the broker: drained well within lost_after_s, the rest stays fair
    publishes_max: Annotated[Count, Field(ge=2)] = (
        8  # half an hour of tries by then, each unclaimed by workers that were up
    )


class Approval(Section):
    """Who must be asked. The two audiences cannot be taken out."""

    expiry_s: Seconds = 86_400  # a day: what was seen yesterday is not what would be approved today
    audiences_always: tuple[str, ...] = ("public", "legal")  # what reaches them cannot be taken back
    two_person: tuple[str, ...] = ()  # names of tools; a policy of the house, so none by default
    bulk_above: Count = 1  # a second letter may be a bulk that begins: irreversible calls of one effect in one run
    hold_margin_s: SecondsOrZero = 3600  # a plan is decided this long before what it has staged lapses

    @field_validator("audiences_always")
    @classmethod
    def _keeps_the_two(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not {"public", "legal"} <= set(value):
            raise ValueError('may add audiences, but "public" and "legal" stay')
        return value


class Settings(BaseSettings):
    """All settings, checked together. `Settings()` holds the defaults; only `load` reads files and the environment."""

    model_config = SettingsConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    profile: Literal["standard", "fast"] = "standard"
    tools: tuple[str, ...] = ()  # modules that register tools; none is right for a program that registers its own
    database: Database = Database()
    broker: Broker = Broker()
    admission: AdmissionStore = AdmissionStore()
    limits: Limits = Limits()
    workers: Workers = Workers()
    reconciler: Reconciler = Reconciler()
    relay: Relay = Relay()
    approval: Approval = Approval()
    notify: Notify = Notify()
    providers: dict[str, ProviderSettings] = {}
    tool: dict[str, ToolSettings] = {}
    effect: dict[str, EffectSettings] = {}
    http: dict[str, HttpTool] = {}  # tools by configuration; none is right for a program whose tools are code

    @classmethod
    def load(
        cls,
        path: Path | None = None,
        environ: Mapping[str, str] | None = None,
        *,
        over: Mapping[str, Any] | None = None,
    ) -> Self:
        """Reads the TOML file and COUNTERFOIL_* variables (`__` nests), which win over it.

        The file is `path`, else what COUNTERFOIL_CONFIG names, else `counterfoil.toml` in the working directory if it is
        there; `over` stands in place of its keys and tables. Raises `ConfigError` naming the key and the file for an
        unknown name, a wrong value, or values that do not fit together. No error shows a value. Secret files are read at
        first use, by those that need them.
        """
        environ = os.environ if environ is None else environ
        file = find_file(path, environ)
        written = {**({} if file is None else read_file(file)), **(over or {})}
        from_environ = read_environ(cls, environ)
        try:
            return cls(**merge(written, from_environ))
        except ValidationError as error:
            mistake = explain(error, cls, from_environ, file)
        raise mistake  # outside the handler: pydantic's exception holds the values

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Nothing but arguments: reading the environment is `load`'s business."""
        return (init_settings,)

    @model_validator(mode="before")
    @classmethod
    def _under_the_fast_profile(cls, data: Any) -> Any:
        if not isinstance(data, dict) or data.get("profile") != "fast":
            return data
        providers = data.get("providers")
        if isinstance(providers, Mapping):
            fast = {
                name: merge(FAST_PROVIDER, table) for name, table in providers.items() if isinstance(table, Mapping)
            }
            data = {**data, "providers": {**providers, **fast}}
        return merge(FAST, data)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        workers = self.workers
        if workers.soft_limit_s >= workers.hard_limit_s:
            raise ConfigError(
                "workers.soft_limit_s must be less than workers.hard_limit_s.", key="workers.soft_limit_s"
            )
        if 3 * self.notify.timeout_s >= workers.soft_limit_s:  # both hooks, after one that was just in time
            raise ConfigError(
                "notify.timeout_s must be less than a third of workers.soft_limit_s.", key="notify.timeout_s"
            )
        for name, provider in {"NAME": self.provider(""), **self.providers}.items():
            key = f"providers.{name}.timeout_s"
            call_s = provider.timeout_s + workers.pause_allowance_s
            if workers.lease_s <= call_s + workers.guard_s:
                raise ConfigError(f"workers.lease_s must be more than {key} + pause_allowance_s + guard_s.", key=key)
            if workers.soft_limit_s <= call_s + workers.guard_s:
                raise ConfigError(
                    f"workers.soft_limit_s must be more than {key} + pause_allowance_s + guard_s.", key=key
                )
            if self.reconciler.lookup_lease_s <= call_s:
                raise ConfigError(f"reconciler.lookup_lease_s must be more than {key} + pause_allowance_s.", key=key)
            if self.profile == "fast" and name in self.providers and not provider.is_loopback:
                raise ConfigError(
                    f'profile = "fast" is for sandboxes on this machine, and providers.{name} is not one.',
                    key="profile",
                    fix=f"Give providers.{name}.base_url a loopback address, or take the profile out.",
                )
        return self

    def provider(self, name: str) -> ProviderSettings:
        """The provider's settings, or the defaults where it has no table."""
        listed = self.providers.get(name)
        if listed is not None:
            return listed
        return ProviderSettings(**FAST_PROVIDER) if self.profile == "fast" else ProviderSettings()

    def admission_url(self) -> str | None:
        """The Redis with the fleet's counters: its own, else the broker's if that is Redis; None = there is none."""
        own = "" if self.admission.url is None else self.admission.url.get_secret_value()
        broker = "" if self.broker.url is None else self.broker.url.get_secret_value()
        return own or (broker if is_redis(broker) else None)

    def database_address(self) -> Address:
        """Where the ledger is, with the password; `ConfigError` if none is configured."""
        return Address(_required(self.database.url, "database.url"), self.database.pooler)

    def broker_url(self) -> str:
        """The URL with its password; `ConfigError` if none is configured."""
        return _required(self.broker.url, "broker.url")

    def key_secret(self) -> bytes:
        """The secret behind provider keys, at least 32 bytes; `ConfigError` if it is missing or shorter."""
        key = "database.key_secret_file"
        if self.database.key_secret_file is None:
            raise ConfigError(f"{key} is not configured.", key=key, fix="Workers need it, agents do not.")
        secret = read_secret_file(self.database.key_secret_file, key)
        if len(secret) < KEY_SECRET_BYTES_MIN:
            raise ConfigError(f"{key}: the file holds fewer than {KEY_SECRET_BYTES_MIN} bytes.", key=key)
        return secret

    def check_secret_files(self) -> None:
        """Reads every secret file that is named, as a worker will; raises `ConfigError` for the first that fails."""
        if self.database.key_secret_file is not None:
            self.key_secret()
        self.notify.webhook()
        for name, provider in self.providers.items():
            accounts = {f"providers.{name}.accounts.{account}": given for account, given in provider.accounts.items()}
            for place, reach in {f"providers.{name}": provider, **accounts}.items():
                for secret in SECRETS:
                    path: Path | None = getattr(reach, f"{secret}_file")
                    if path is not None:
                        read_secret_file(path, f"{place}.{secret}_file")
        for name, tool in self.http.items():
            for header, source in tool.headers.items():
                if source.secret_file is not None:
                    read_secret_file(source.secret_file, f"http.{name}.headers.{header}.secret_file")


def _required(value: SecretStr | None, key: str) -> str:
    text = "" if value is None else value.get_secret_value()
    if not text:
        variable = "COUNTERFOIL_" + key.replace(".", "__").upper()
        raise ConfigError(
            f"{key} is not configured.",
            key=key,
            fix=f'Set it in counterfoil.toml or as {variable}; for a local stack: eval "$(counterfoil up --env)".',
        )
    return text
