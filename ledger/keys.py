"""Decides the names of an action: its id, its key at the provider, and which ids an application may give.

Everything is computed from the identity alone. Arguments, attempt numbers, hosts, tokens and the clock are never in it,
so every attempt of one action carries the same bytes, and a repeated proposal finds the recorded action.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from typing import Literal, NewType
from uuid import UUID

from counterfoil.ledger.canonical import canonical_json
from counterfoil.ledger.errors import ArgumentError

ActionId = NewType("ActionId", str)
"""`act_` and 26 letters or digits of base32; the primary key of an action."""

Phase = Literal["do", "undo", "correct"]
"""The effect itself, its compensation, or a correction after an effect that cannot be taken back."""

DEFAULT_ACCOUNT = "default"
"""The account whose credentials stand in a provider's own table; other accounts have names of their own."""

TENANT_CHARS_MAX = 200
RUN_CHARS_MAX = 400
ACTOR_CHARS_MAX = 200
STEP_CHARS_MAX = 200

_SCHEME = "cf1"  # in every hash: a later scheme can never give the id or key of an earlier one
_ACTION_ID = re.compile(r"act_[a-z2-7]{26}", re.ASCII)
_NUMBER = re.compile(r"[1-9][0-9]{0,9}", re.ASCII)  # "03" is another text, so another step; "0" is none
_KEY = re.compile(r"[0-9a-f]{32}", re.ASCII)
_DOMAIN = re.compile(r"[A-Za-z0-9-]{1,63}(\.[A-Za-z0-9-]{1,63}){0,10}", re.ASCII)


def action_id(tenant: str, run: str, step: str | int, revision: int, phase: Phase) -> ActionId:
    """The id of this intent: 130 bits of SHA-256 over a canonical JSON array, so no two tuples share a text.

    A label `step` is text, the ledger's own step is a number from 1; `revision` counts from 1.
    """
    if isinstance(step, bool) or (isinstance(step, int) and step < 1) or isinstance(revision, bool) or revision < 1:
        raise ValueError("step and revision are counted from 1")
    digest = hashlib.sha256(canonical_json([_SCHEME, tenant, run, step, revision, phase]).encode()).digest()
    return ActionId("act_" + base64.b32encode(digest).decode().lower()[:26])


def step_of(recorded: str) -> str | int:
    """A step as the id was made from it: the ledger's own number as it writes it, else a label. Never raises."""
    return int(recorded) if _NUMBER.fullmatch(recorded) else recorded


def is_action_id(text: str) -> bool:
    """Whether `text` has the form of an action id; it need not exist."""
    return _ACTION_ID.fullmatch(text) is not None


def provider_key(secret: bytes, tenant: str, tool: str, action_id: str) -> str:
    """The key under which the provider knows this action: 32 hex digits of an HMAC-SHA256, the same on every attempt.

    Without the secret nobody can guess another tenant's key. The first claim stores it and the stored one wins, so the
    secret may be replaced while actions are under way.
    """
    if not secret:
        raise ValueError("the key secret is empty")
    text = canonical_json([_SCHEME, tenant, tool, action_id])
    return hmac.new(secret, text.encode(), hashlib.sha256).hexdigest()[:32]


def label(key: str) -> str:
    """The key where a provider takes labels: `cf-` and 32 hex digits, no blank or quote, 35 characters."""
    return f"cf-{_checked(key)}"


def uuid_form(key: str) -> UUID:
    """The key where a provider takes a client-made UUID: its bits, with version 4 and the RFC variant set."""
    return UUID(hex=_checked(key), version=4)


def message_id(key: str, domain: str) -> str:
    """The key as the Message-ID header of a mail, angle brackets included."""
    if not _DOMAIN.fullmatch(domain):
        raise ValueError("the domain of a Message-ID is letters, digits, hyphens and dots")
    return f"<{label(key)}@{domain}>"


def check_id(value: object, path: str, max_len: int) -> str:
    """`value` if it may be an id that the application gives: a string of 1 to `max_len` characters.

    Raises `ArgumentError` at `path` with code `wrong_type`, `empty`, `too_long`, `nul` or `lone_surrogate`. Any other
    character is fine: ids are hashed and bound as parameters, never pasted into a label or a query.
    """
    if not isinstance(value, str):
        raise ArgumentError(f"expected a string, got {type(value).__name__}", path=path, code="wrong_type")
    if not value:
        raise ArgumentError("may not be empty", path=path, code="empty")
    if len(value) > max_len:
        raise ArgumentError(f"longer than {max_len} characters", path=path, code="too_long")
    if "\0" in value:
        raise ArgumentError("holds a NUL character", path=path, code="nul")
    if any("\ud800" <= char <= "\udfff" for char in value):
        raise ArgumentError("holds half of a surrogate pair", path=path, code="lone_surrogate")
    return value


def check_step_label(value: object, path: str = "step") -> str:
    """`value` if code may use it as a step's label: an id of at most 200 characters that is not a number.

    Numbers are the steps that the ledger itself counts (code `digits_only`).
    """
    text = check_id(value, path, STEP_CHARS_MAX)
    if text.isdecimal():
        raise ArgumentError("digits only would look like the ledger's own step", path=path, code="digits_only")
    return text


def _checked(key: str) -> str:
    if not _KEY.fullmatch(key):
        raise ValueError("a provider key is 32 hex digits")
    return key
