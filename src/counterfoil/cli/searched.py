"""What to search for at a provider: an action's key, in the forms in which a provider shows it."""

from __future__ import annotations

from pathlib import Path

from counterfoil.cli import place
from counterfoil.ledger.errors import ConfigError
from counterfoil.ledger.keys import label, message_id, uuid_form

_MAIL = ("email", "resend")


def forms_of(key: str | None, provider: str, config: Path | None) -> dict[str, str]:
    """By name: `key`, as it is sent; `label`, as text, tag or part of a comment; `uuid`; and a mail's `message_id`.

    Empty before the first claim, which writes the key. The Message-ID needs the sender's domain, which the settings hold.
    """
    if key is None:
        return {}
    forms = {"key": key, "label": label(key), "uuid": str(uuid_form(key))}
    domain = _domain(provider, config) if provider in _MAIL else None
    return {**forms, "message_id": message_id(key, domain)} if domain else forms


def _domain(provider: str, config: Path | None) -> str | None:
    try:
        given = place.load_settings(config).providers.get(provider)
    except ConfigError:
        return None
    sender = None if given is None else given.email
    return sender.rpartition("@")[2] if sender and "@" in sender else None
