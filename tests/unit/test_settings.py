"""Configuration: what the documented file means, who wins, and that every mistake names its place and no value."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from counterfoil.ledger.errors import ConfigError
from counterfoil.settings import Settings
from counterfoil.settings_providers import ProviderSettings

DOCUMENTED = """
tools = ["myapp.tools"]
[database]
url = "postgresql+psycopg://cf_worker:s3cret@db/app"
key_secret_file = "secrets/counterfoil_key"
[broker]
url = "rediss://cf:s3cret@redis:6379/0"
[limits]
arguments_bytes_max = 65536
actions_per_run_max = 200
calls_per_run_max = 1000
refs_per_step_max = 50
waiting_per_tenant_max = 10000
proposals_open_per_run_max = 3
[workers]
lease_s = 90
pause_allowance_s = 10
[reconciler]
sweep_every_s = 5
uncertain_after_s = 5
[approval]
expiry_s = 86400
audiences_always = ["public", "legal"]
two_person = ["charge_card"]
[providers.stripe]
timeout_s = 20
attempts_max = 5
backoff_base_s = 1
backoff_cap_s = 300
retry_after_cap_s = 900
rate_per_s = 25
concurrency_max = 16
uncertain_max_s = 3600
[providers.stripe.retry_budget]
tokens_max = 500
refill_per_success = 0.1
cost_after_timeout = 10
cost_after_throttle = 5
ratio_max = 0.1
[tool.charge_card]
approval_above_minor = 5000
"""

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a `counterfoil.toml` and returns its path."""

    def _write(text: str) -> Path:
        path = tmp_path / "counterfoil.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return _write


def refused(path: Path | None, **environ: str) -> ConfigError:
    with pytest.raises(ConfigError) as error:
        Settings.load(path, environ)
    return error.value


def test_the_documented_file(write: Write, tmp_path: Path) -> None:
    """The file in the documentation loads, and its values are the defaults wherever they are not names or secrets."""
    settings, defaults = Settings.load(write(DOCUMENTED), {}), Settings()
    for section in ("limits", "workers", "reconciler", "relay"):
        assert getattr(settings, section) == getattr(defaults, section)
    assert settings.providers["stripe"] == ProviderSettings()
    assert settings.tools == ("myapp.tools",)
    assert settings.database_address().url == "postgresql+psycopg://cf_worker:s3cret@db/app"
    assert settings.broker_url() == "rediss://cf:s3cret@redis:6379/0"
    assert settings.database.key_secret_file == tmp_path / "secrets/counterfoil_key"
    assert settings.approval.two_person == ("charge_card",)
    assert settings.tool["charge_card"].approval_above_minor == 5000
    assert "s3cret" not in repr(settings)
    assert "s3cret" not in str(settings.model_dump())


def test_only_load_reads_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`Settings()` holds the defaults whatever the environment says; `load()` without arguments reads it."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("COUNTERFOIL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("COUNTERFOIL_WORKERS__LEASE_S", "120")
    assert Settings().workers.lease_s == 90
    assert Settings.load().workers.lease_s == 120
    assert Settings.load(None, {}).workers.lease_s == 90


def test_where_the_file_is(write: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An explicit path wins over COUNTERFOIL_CONFIG, which wins over the working directory."""
    write("[workers]\nlease_s = 101")
    other, named = tmp_path / "other.toml", tmp_path / "named.toml"
    other.write_text("[workers]\nlease_s = 102")
    named.write_text("[workers]\nlease_s = 103")
    monkeypatch.chdir(tmp_path)
    assert Settings.load(None, {}).workers.lease_s == 101
    assert Settings.load(None, {"COUNTERFOIL_CONFIG": str(named)}).workers.lease_s == 103
    assert Settings.load(other, {"COUNTERFOIL_CONFIG": str(named)}).workers.lease_s == 102
    assert "nowhere.toml" in str(refused(None, COUNTERFOIL_CONFIG="nowhere.toml"))


def test_the_environment_wins_key_by_key(write: Write) -> None:
    """A variable replaces one key and leaves its neighbours; names may be upper or lower case; lists are JSON."""
    settings = Settings.load(
        write(DOCUMENTED),
        {
            "COUNTERFOIL_PROVIDERS__STRIPE__TIMEOUT_S": "15",
            "counterfoil_providers__stripe__retry_budget__tokens_max": "50",
            "COUNTERFOIL_PROVIDERS__JIRA__API_KEY": "12345",
            "COUNTERFOIL_TOOLS": '["a.tools", "b.tools"]',
            "COUNTERFOIL_BROKER__KEY_PREFIX": "other",
            "COUNTERFOIL_TOOL__CHARGE_CARD__APPROVAL": "always",
            "UNRELATED__TIMEOUT_S": "x",
        },
    )
    stripe = settings.providers["stripe"]
    assert (stripe.timeout_s, stripe.attempts_max, stripe.retry_budget.tokens_max) == (15, 5, 50)
    assert stripe.retry_budget.ratio_max == 0.1
    assert settings.providers["jira"].secret("api_key") == "12345"
    assert settings.tools == ("a.tools", "b.tools")
    assert settings.broker.key_prefix == "other"
    assert settings.tool["charge_card"].approval == "always"
    assert settings.tool["charge_card"].approval_above_minor == 5000


@pytest.mark.parametrize(
    ("text", "key", "nearest"),
    [
        ("limts = 1", "limts", "limits"),
        ("[limits]\nargument_bytes_max = 1", "limits.argument_bytes_max", "arguments_bytes_max"),
        ("[database]\nurls = 'x'", "database.urls", "url"),
        ("[providers.stripe]\ntimeout = 1", "providers.stripe.timeout", "timeout_s"),
        ("[providers.s.retry_budget]\ntoken_max = 1", "providers.s.retry_budget.token_max", "tokens_max"),
        ("[tool.charge]\naproval = 'always'", "tool.charge.aproval", "approval"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(write: Write, text: str, key: str, nearest: str) -> None:
    """A misspelt key at any depth is refused with the file's name, the key and the nearest valid name."""
    error = refused(write(text))
    assert error.key == key
    assert "counterfoil.toml" in str(error)
    assert f"{key} is no setting" in str(error)
    assert error.fix == f"Did you mean {nearest}?"


def test_an_unknown_name_without_a_near_one(write: Write) -> None:
    """Where nothing is near, the known names are listed."""
    assert "lost_after_s, poll_s" in refused(write("[relay]\nxyzzy = 1")).fix


@pytest.mark.parametrize(
    ("variable", "nearest"),
    [
        ("COUNTERFOIL_LIMIT__CALLS_PER_RUN_MAX", "limits"),
        ("COUNTERFOIL_PROFIL", "profile"),
        ("COUNTERFOIL_LIMITS__CALL_PER_RUN_MAX", "calls_per_run_max"),
        ("COUNTERFOIL_PROVIDERS__STRIPE__TIMEOUTS", "timeout_s"),
    ],
)
def test_an_unknown_variable_is_refused(variable: str, nearest: str) -> None:
    """A misspelt variable is refused by its own name; it is not silently without effect."""
    error = refused(None, **{variable: "1"})
    assert variable in str(error)
    assert str(error).startswith("environment: ")
    assert nearest in error.fix


@pytest.mark.parametrize(
    "variable",
    [
        "COUNTERFOIL_HOME",
        "COUNTERFOIL_POSTGRES",
        "COUNTERFOIL_PORT",
        "COUNTERFOIL_PORT_80_TCP_ADDR",
        "COUNTERFOIL_CONSOLE_SERVICE_HOST",
        "COUNTERFOIL_CONSOLE_SERVICE_PORT_HTTP",
    ],
)
def test_variables_that_are_no_settings(variable: str) -> None:
    """The local stack's own variables, and what Kubernetes puts into every pod, are left alone."""
    assert Settings.load(None, {variable: "tcp://10.0.0.1:80"}) == Settings()


@pytest.mark.parametrize(
    ("text", "key", "expected"),
    [
        ("[workers]\nlease_s = 'long'", "workers.lease_s", "number"),
        ("[workers]\nlease_s = true", "workers.lease_s", "number"),
        ("[workers]\nlease_s = inf", "workers.lease_s", "finite|less than"),
        ("[workers]\nlease_s = nan", "workers.lease_s", "finite|greater than"),
        ("[workers]\nlease_s = 0", "workers.lease_s", "greater than 0"),
        ("[workers]\nconcurrency = 1.5", "workers.concurrency", "integer"),
        ("[relay]\nchunk_max = 101", "relay.chunk_max", "less than or equal to 100"),
        ("[limits]\nactions_per_run_max = -1", "limits.actions_per_run_max", "greater than"),
        ("tools = 'myapp.tools'", "tools", "list"),
        ("limits = 1", "limits", "dictionary|Limits"),
        ("profile = 'slow'", "profile", "'standard' or 'fast'"),
        ("[database]\nurl = 7", "database.url", "string"),
        ("[broker]\nkey_prefix = 'a; DROP'", "broker.key_prefix", "pattern"),
        ("[tool.x]\napproval = 'never'", "tool.x.approval", "'always'"),
        ("[approval]\naudiences_always = ['public']", "approval.audiences_always", "legal"),
        ("[providers.x]\ntoken = 'a'\ntoken_file = 'b'", "providers.x", "not both"),
    ],
)
def test_a_wrong_value_is_refused_with_what_is_expected(write: Write, text: str, key: str, expected: str) -> None:
    """A value of the wrong type or range is refused with the file, the key and what is expected."""
    error = refused(write(text))
    assert error.key == key
    assert str(error).split(": ")[1] == key
    assert "counterfoil.toml" in str(error)
    assert any(word in str(error) for word in expected.split("|"))


@pytest.mark.parametrize("text", ["[workers", "tools = ['a']\n[tools.x]\n", "\x00"])
def test_a_file_that_is_not_toml(write: Write, text: str) -> None:
    """A syntax error is refused with the file's name; the easy mistake of naming a table like the list is explained."""
    error = refused(write(text))
    assert "counterfoil.toml is not readable TOML" in str(error)
    assert ("[tool.NAME]" in error.fix) == ("[tools." in text)


def test_tables_named_like_the_list_are_explained(write: Write) -> None:
    """`[tools.x]` alone parses, and the refusal says what is meant."""
    assert "[tool.NAME]" in refused(write("[tools.x]\napproval = 'always'")).fix


@pytest.mark.parametrize(
    ("text", "environ"),
    [
        ("[database]\nurl = 's3cret'\n[workers]\nlease_s = 's3cret'", {}),
        ("[providers.x]\napi_key = ['s3cret']", {}),
        ("[providers.x]\napi_key = 's3cret'\nx = 's3cret'", {}),
        ("url = 's3cret\nurl", {}),
        ("", {"COUNTERFOIL_TOOLS": "s3cret"}),
        ("", {"COUNTERFOIL_BROKER__URL": "s3cret", "COUNTERFOIL_WORKERS__LEASE_S": "s3cret"}),
    ],
)
def test_no_mistake_shows_a_value(write: Write, text: str, environ: dict[str, str]) -> None:
    """Neither the message nor any exception chained to it holds a configured value."""
    error = refused(write(text), **environ)
    assert "s3cret" not in "".join(traceback.format_exception(error))
    assert error.__context__ is None


def test_secrets_from_files(write: Write, tmp_path: Path) -> None:
    """Secret files are read at first use, from the file's own folder; one that is missing, empty or short is named."""
    text = "[database]\nkey_secret_file = 'k'\n[providers.x]\napi_key_file = 'a'\ntoken = 't'"
    settings = Settings.load(write(text), {})
    for check in (settings.key_secret, settings.check_secret_files):
        with pytest.raises(ConfigError, match=r"database\.key_secret_file.*/k cannot be read"):
            check()
    (tmp_path / "k").write_text("short\n")
    with pytest.raises(ConfigError, match="32 bytes"):
        settings.key_secret()
    (tmp_path / "k").write_text("0123456789abcdef" * 2 + "\n")
    assert settings.key_secret() == b"0123456789abcdef" * 2
    (tmp_path / "a").write_text("\n")
    with pytest.raises(ConfigError, match=r"providers\.x\.api_key_file.*empty"):
        settings.check_secret_files()
    (tmp_path / "a").write_text("key-1\n")
    settings.check_secret_files()
    provider = settings.provider("x")
    assert (provider.secret("api_key"), provider.secret("token")) == ("key-1", "t")
    assert settings.provider("unlisted").secret("api_key") is None


def test_what_is_required_says_how_to_give_it() -> None:
    """A missing URL or key is refused by those who need it, with the name to set."""
    settings = Settings()
    with pytest.raises(ConfigError, match="COUNTERFOIL_DATABASE__URL"):
        settings.database_address()
    with pytest.raises(ConfigError, match="COUNTERFOIL_BROKER__URL"):
        settings.broker_url()
    with pytest.raises(ConfigError, match="key_secret_file"):
        settings.key_secret()


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("[workers]\nlease_s = 35", "providers.NAME.timeout_s"),
        ("[providers.slow]\ntimeout_s = 75", "providers.slow.timeout_s"),
        ("[providers.slow]\ntimeout_s = 30", "providers.slow.timeout_s"),
        ("[reconciler]\nlookup_lease_s = 30", "providers.NAME.timeout_s"),
        ("[workers]\nsoft_limit_s = 60", "workers.soft_limit_s"),
    ],
)
def test_times_must_fit_together(write: Write, text: str, key: str) -> None:
    """A lease or limit that a slow call could outlast is refused at the start, at the exact bound too."""
    assert refused(write(text)).key == key


FAST = "profile = 'fast'\n[providers.stripe]\nbase_url = 'http://127.0.0.1:8401'\n"


def test_the_fast_profile(write: Write) -> None:
    """The fast profile shortens every wait, for listed and unlisted providers, and explicit values still win."""
    settings = Settings.load(write(FAST + "attempts_max = 7\n[reconciler]\nsweep_every_s = 1"), {})
    assert (settings.workers.lease_s, settings.relay.lost_after_s) == (6, 2)
    assert (settings.reconciler.sweep_every_s, settings.reconciler.uncertain_after_s) == (1, 0.5)
    assert settings.provider("stripe").timeout_s == settings.provider("unlisted").timeout_s == 3
    assert settings.provider("stripe").attempts_max == 7
    assert Settings.load(write(FAST), {"COUNTERFOIL_WORKERS__LEASE_S": "8"}).workers.lease_s == 8
    assert Settings.load(write(FAST.split("\n", 1)[1]), {"COUNTERFOIL_PROFILE": "fast"}).workers.lease_s == 6


@pytest.mark.parametrize(
    "table",
    [
        "[providers.jira]\n",
        "[providers.jira]\nserver = 'https://acme.example'",
        "[providers.jira]\nbase_url = '127.0.0.1.example'",
    ],
)
def test_the_fast_profile_needs_loopback(write: Write, table: str) -> None:
    """One provider that is not, or not surely, on this machine refuses the whole profile."""
    error = refused(write(FAST + table))
    assert error.key == "profile"
    assert "providers.jira" in str(error)


@pytest.mark.parametrize(
    ("addresses", "loopback"),
    [
        ({"base_url": "http://127.0.0.1:8401/v1"}, True),
        ({"base_url": "http://localhost"}, True),
        ({"base_url": "http://[::1]:80"}, True),
        ({"base_url": "127.9.9.9:25"}, True),
        ({"server": "http://127.0.0.1"}, True),
        ({"server": "http://127.0.0.1", "base_url": "https://api.example"}, False),
        ({"accounts": {"test": {"base_url": "http://127.0.0.1"}}}, False),
        ({"base_url": "http://127.0.0.1", "accounts": {"test": {"tenants": ["x"]}}}, True),
        ({"base_url": "http://127.0.0.1", "accounts": {"test": {"server": "https://api.example"}}}, False),
        ({}, False),
        ({"base_url": "https://api.stripe.example"}, False),
        ({"base_url": "http://127.0.0.1@evil.example/"}, False),
        ({"base_url": "http://localhost.evil.example"}, False),
        ({"base_url": "http://0.0.0.0"}, False),
        ({"base_url": "http://10.0.0.1"}, False),
        ({"base_url": "http://[::1"}, False),
        ({"base_url": ""}, False),
    ],
)
def test_what_is_loopback(addresses: dict[str, Any], loopback: bool) -> None:
    """Only a loopback address or `localhost` is this machine; without an address the real service is meant, by whoever
    goes through no account's own."""
    assert ProviderSettings(**addresses).is_loopback is loopback


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('[admission]\nurl = "http://limits.example"\n', "admission.url"),
        ("[providers.stripe.breaker]\nopen_s = 10\n", "providers.stripe.breaker"),
    ],
)
def test_limits_that_could_not_work_are_refused(tmp_path: Path, text: str, named: str) -> None:
    """A store that is no Redis, and a breaker that would open for longer than its longest."""
    file = tmp_path / "counterfoil.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        Settings.load(file, {})
    assert named in str(caught.value)
