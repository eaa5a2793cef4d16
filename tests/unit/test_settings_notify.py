"""Who may be told: addresses that can be, secrets that show nowhere, times that fit."""

from __future__ import annotations

from pathlib import Path

import pytest

from counterfoil.ledger.errors import ConfigError
from counterfoil.reconciler.hooks import Command, Webhook
from counterfoil.reconciler.setup import hooks_from
from counterfoil.settings import Settings

SECRET = "https://hooks.example/T1?token=s3cret"


def load(tmp_path: Path, text: str) -> Settings:
    path = tmp_path / "counterfoil.toml"
    path.write_text(text)
    return Settings.load(path, {})


def test_nobody_is_told_by_default() -> None:
    """No hook."""
    assert hooks_from(Settings()) == ()


def test_both_may_be_given(tmp_path: Path) -> None:
    """A command and an address, each with the configured time; the address shows in neither form of the settings."""
    settings = load(tmp_path, f'[notify]\ncommand = ["page", "--team"]\nurl = "{SECRET}"\ntimeout_s = 7\n')
    assert hooks_from(settings) == (
        Command(arguments=("page", "--team"), timeout_s=7),
        Webhook(url=SECRET, timeout_s=7),
    )
    assert "s3cret" not in repr(settings)
    assert "s3cret" not in settings.model_dump_json()


def test_an_address_in_a_file(tmp_path: Path) -> None:
    """Read from beside the configuration, without the line's end."""
    (tmp_path / "url").write_text(f"{SECRET}\n")
    settings = load(tmp_path, '[notify]\nurl_file = "url"\n')
    settings.check_secret_files()
    assert hooks_from(settings) == (Webhook(url=SECRET, timeout_s=10),)


@pytest.mark.parametrize(
    "url",
    [
        "http://hooks.example/s3cret",
        "ftp://hooks.example/s3cret",
        "hooks.example/s3cret",
        "https:///s3cret",
        "https://mia:s3cret@hooks.example/",
        "https://hooks.example:port/s3cret",
        "https://hooks.example/s3cret with a space",
        "https://hooks.example/s3cret\\r\\nHost: other",
        "https://[::1/s3cret",
        "https://hööks.example/s3cret",
    ],
)
def test_addresses_that_cannot_be(tmp_path: Path, url: str) -> None:
    """Refused when the configuration is read or checked, with the key and without the address."""
    with pytest.raises(ConfigError) as refused:
        load(tmp_path, f'[notify]\nurl = "{url}"\n')
    assert "notify" in str(refused.value)
    assert "s3cret" not in str(refused.value)
    (tmp_path / "url").write_text(url.replace("\\r\\n", "\r\n"))
    settings = load(tmp_path, '[notify]\nurl_file = "url"\n')
    with pytest.raises(ConfigError) as refused:
        settings.check_secret_files()
    assert refused.value.key == "notify.url_file"
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:8080/x", "http://localhost/x", "http://[::1]:1/", "https://a.example"]
)
def test_addresses_that_can_be(tmp_path: Path, url: str) -> None:
    """https anywhere, http on this machine."""
    assert load(tmp_path, f'[notify]\nurl = "{url}"\n').notify.webhook() == url


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('url = "https://a.example"\nurl_file = "url"', "not both"),
        ('command = ["page", ""]', "none of them empty"),
        ("timeout_s = 14", "a third of workers.soft_limit_s"),
        ("remind_ratio = 0", "greater than 0"),
        ("remind_ratio = 1.5", "less than or equal to 1"),
        ("webhook = 1", "is no setting"),
    ],
)
def test_mistakes(tmp_path: Path, text: str, said: str) -> None:
    """What does not fit is refused, and said."""
    with pytest.raises(ConfigError) as refused:
        load(tmp_path, f"[notify]\n{text}\n")
    assert said in str(refused.value)
