"""How mail server, mailbox and Resend are reached by the settings: what is missing, or would leave in clear, is named."""

from __future__ import annotations

from typing import Any

import pytest

from counterfoil.ledger.errors import ConfigError
from counterfoil.providers.email.config import EmailConfig, ImapConfig
from counterfoil.providers.email.tools import email_draft
from counterfoil.providers.resend.config import API, ResendConfig
from counterfoil.providers.resend.tools import resend_send
from counterfoil.providers.tool import SPEC_ATTRIBUTE
from counterfoil.settings import Settings
from counterfoil.workers.clients import client_config

MAIL = {
    "server": "smtps://mail.example.com",
    "email": "shop@example.com",
    "username": "shop",
    "token": "secret",
    "imap_server": "imaps://box.example.com:1993",
}
RESEND = {"api_key": "re_secret", "email": "shop@example.com"}


def email_of(account: str = "default", **given: Any) -> EmailConfig:
    settings = Settings(tools=("x",), providers={"email": MAIL | given})
    config = client_config(getattr(email_draft, SPEC_ATTRIBUTE), account, settings)
    assert isinstance(config, EmailConfig)
    return config


def resend_of(account: str = "default", **given: Any) -> ResendConfig:
    settings = Settings(tools=("x",), providers={"resend": RESEND | given})
    config = client_config(getattr(resend_send, SPEC_ATTRIBUTE), account, settings)
    assert isinstance(config, ResendConfig)
    return config


def test_a_mailbox_beside_the_mail_server() -> None:
    """The same login, an address and a folder of its own; no text of the config shows the password."""
    config = email_of(drafts_folder="INBOX.Drafts")
    assert config.imap == ImapConfig(
        host="box.example.com", port=1993, tls=True, username="shop", password="secret", folder="INBOX.Drafts"
    )
    assert "secret" not in repr(config)
    assert email_of(imap_server=None).imap is None
    accounts = {
        "eu": {"tenants": ["acme"], "username": "eu", "token": "other", "imap_server": "imaps://eu.example.com"}
    }
    eu = email_of("eu", accounts=accounts)
    assert eu.imap == ImapConfig(host="eu.example.com", port=993, tls=True, username="eu", password="other")


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({"imap_server": "imap://box.example.com"}, "providers.email.imap_server"),
        ({"imap_server": "box.example.com"}, "providers.email.imap_server"),
        ({"username": None, "token": None}, "providers.email.username"),
        ({"drafts_folder": "Entwürfe"}, "providers.email.drafts_folder"),
        ({"email": "Shop <shop@example.com>"}, "providers.email.email"),
    ],
)
def test_a_mailbox_that_cannot_be_reached_so(given: dict[str, Any], key: str) -> None:
    """In clear to another machine, without a login, in letters that a server does not know: refused by name."""
    with pytest.raises(ConfigError) as refused:
        email_of(**given)
    assert refused.value.key == key


@pytest.mark.parametrize("imap_server", ["imaps://box.example.com", None])
def test_a_mailbox_elsewhere_is_no_loopback(imap_server: str | None) -> None:
    """Times are loosened only where every address is this machine's, the mailbox's included."""
    given = {"server": "smtp://127.0.0.1:8725", "imap_server": imap_server}
    settings = Settings(tools=("x",), providers={"email": MAIL | given})
    assert settings.provider("email").is_loopback is (imap_server is None)


def test_resend() -> None:
    """The account's own key; the real service where no address is given; what is missing is named."""
    accounts = {"eu": {"tenants": ["acme"], "api_key": "re_eu"}}
    assert resend_of() == ResendConfig(api_key="re_secret", sender="shop@example.com", base_url=API)
    assert resend_of("eu", accounts=accounts).api_key == "re_eu"
    assert resend_of(base_url="http://127.0.0.1:8700/resend").base_url == "http://127.0.0.1:8700/resend"
    for given, key in (({"api_key": None}, "api_key"), ({"email": None}, "email"), ({"email": "a@b@c"}, "email")):
        with pytest.raises(ConfigError) as refused:
            resend_of(**given)
        assert refused.value.key == f"providers.resend.{key}"
