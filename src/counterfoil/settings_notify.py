"""Decides what may be configured about telling people that something waits for them, and the reason for each default."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, model_validator

from counterfoil.ledger.errors import ConfigError
from counterfoil.settings_providers import Count, Ratio, Seconds, Section, is_loopback, read_secret_file


class Notify(Section):
    """Whom to tell when something waits for a person; nobody by default. Command and URL may both be given."""

    command: tuple[str, ...] = ()  # program and arguments, no shell; gets the notice as JSON on its standard input
    url: SecretStr | None = None  # gets the notice as a POST; the address of a chat's webhook is a secret
    url_file: Path | None = None  # the same from a file; read by workers only
    timeout_s: Seconds = 10  # for one delivery; three times as long must fit into workers.soft_limit_s
    every_s: Seconds = 5  # a person takes minutes, so seconds are soon enough
    batch_max: Annotated[Count, Field(le=1000)] = 50  # a chat channel takes about one message a second
    remind_ratio: Annotated[Ratio, Field(gt=0)] = 0.8  # one reminder with a fifth of the time left; 1 = none

    @model_validator(mode="after")
    def _one_address(self) -> Self:
        if self.url is not None and self.url_file is not None:
            raise ValueError("give url or url_file, not both")
        if any(not part or "\0" in part for part in self.command):
            raise ValueError("command is a list of program and arguments, none of them empty")
        if self.url is not None:
            _check_url(self.url.get_secret_value())
        return self

    @property
    def is_on(self) -> bool:
        """Whether anybody is told."""
        return bool(self.command) or self.url is not None or self.url_file is not None

    def webhook(self) -> str | None:
        """The address, from the setting or its file; None = not configured. Raises ConfigError for one that cannot be."""
        if self.url is not None:
            return self.url.get_secret_value()
        if self.url_file is None:
            return None
        key = "notify.url_file"
        try:
            return _check_url(read_secret_file(self.url_file, key).decode())
        except ValueError as error:
            problem = str(error) if type(error) is ValueError else "not UTF-8"
        raise ConfigError(f"{key}: {problem}.", key=key)  # outside the handler: a decoding error holds the text


def _check_url(url: str) -> str:
    """The address as it is. No message shows it."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host, parts = None, urlsplit("")
    if not host or parts.username is not None or not (url.isascii() and url.isprintable()) or " " in url:
        raise ValueError("the url is no plain address without a login in it")
    if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(url)):
        raise ValueError("the url must begin with https:// (http:// to this machine only)")
    return url
