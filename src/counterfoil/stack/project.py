"""Decides what configuration the processes of `counterfoil up` get: the project's own, with everything local put in.

The file in the home holds no password of a service: those go to each process as variables, for its role alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from counterfoil.settings_sources import FILE_NAME, read_file
from counterfoil.stack.home import Home, write_private

SHIPPED_TOOLS = (
    "counterfoil.providers.stripe.tools",
    "counterfoil.providers.jira.tools",
)
"""What a project gets that names no tools of its own: the providers that the sandbox plays."""

KEY_SECRET = "provider-keys"
"""The name of the home's secret behind provider keys."""

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


class MailUrls(NamedTuple):
    """Where the sandbox's mail server and mailbox are."""

    smtp: str
    imap: str


def config_path(home: Home) -> Path:
    """Where the generated file is."""
    return home.path / FILE_NAME


def write_config(
    home: Home, project: Path, *, sandbox_url: str, mail: MailUrls, fast: bool, tools: Sequence[str]
) -> Path:
    """Write the file anew from the project's `counterfoil.toml`, if there is one, and give its path.

    Under the fast profile Stripe, Jira, Zendesk and the mail server are the sandbox whatever the project says; without
    it, what the project configures for them wins. Database and broker are never taken from the project. Raises
    ConfigError if the project's file cannot be read.
    """
    file = project / FILE_NAME
    written = read_file(file) if file.is_file() else {}
    providers = _sandbox_providers(sandbox_url, mail)
    own = written.get("providers", {})
    config = {
        **written,
        "profile": "fast" if fast else "standard",
        "tools": list(dict.fromkeys([*written.get("tools", SHIPPED_TOOLS), *tools])),
        "database": {"key_secret_file": str(home.path / "secrets" / KEY_SECRET)},
        "broker": {},
        "providers": {**own, **providers} if fast else {**providers, **own},
    }
    home.secret(KEY_SECRET)
    path = config_path(home)
    write_private(path, _HEAD + to_toml(config))
    return path


def local_parts(home: Home, project: Path) -> dict[str, Any]:
    """What the stack that has been started puts in place of the project's own: profile, tools, providers, services."""
    given, file = read_file(config_path(home)), project / FILE_NAME
    own = read_file(file).get("tools", []) if file.is_file() else []
    tools = list(dict.fromkeys([*own, *given["tools"]]))
    return {"tools": tools, **{name: given[name] for name in ("profile", "database", "broker", "providers")}}


def to_toml(config: Mapping[str, Any]) -> str:
    """Values and tables as TOML takes them: JSON's strings, numbers and lists are TOML's as well."""
    lines = [f"{_key(name)} = {_value(value)}\n" for name, value in config.items() if not isinstance(value, Mapping)]
    for name, value in config.items():
        if isinstance(value, Mapping):
            lines.append(f"\n[{_key(name)}]\n")
            lines += [f"{_key(inner)} = {_value(held)}\n" for inner, held in value.items()]
    return "".join(lines)


_HEAD = "# Written by `counterfoil up`, anew at each start: change the project's own counterfoil.toml instead.\n"


def _sandbox_providers(sandbox_url: str, mail: MailUrls) -> dict[str, dict[str, str]]:
    return {
        "stripe": {"base_url": f"{sandbox_url}/stripe", "api_key": "sk_test_sandbox"},
        "linear": {"base_url": f"{sandbox_url}/linear", "api_key": "lin_api_sandbox"},
        "warehouse": {"base_url": f"{sandbox_url}/warehouse"},
        "mail": {"base_url": f"{sandbox_url}/mail"},
        "zendesk": {"server": f"{sandbox_url}/zendesk", "email": "bot@sandbox.example", "token": "sandbox"},
        "email": {
            "server": mail.smtp,
            "imap_server": mail.imap,
            "email": "shop@sandbox.example",
            "username": "shop",
            "token": "sandbox",
        },
        "resend": {"base_url": f"{sandbox_url}/resend", "email": "shop@sandbox.example", "api_key": "re_sandbox"},
        "twilio": {
            "base_url": f"{sandbox_url}/twilio",
            "account_sid": "AC_sandbox",
            "token": "sandbox",
            "messaging_service": "MG_sandbox",
        },
        "slack": {"base_url": f"{sandbox_url}/slack/api/", "token": "sandbox"},
        "aws": {
            "base_url": f"{sandbox_url}/aws",
            "region": "eu-central-1",
            "username": "AKIDSANDBOX",
            "token": "sandbox",
            "schedule_target": "arn:aws:sqs:eu-central-1:123456789012:follow-ups",
            "schedule_role": "arn:aws:iam::123456789012:role/scheduler",
        },
        "jira": {
            "server": f"{sandbox_url}/jira",
            "email": "bot@sandbox.example",
            "token": "sandbox",
            "staging_transition": "51",
        },
    }


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else json.dumps(name, ensure_ascii=False)


def _value(value: object) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(name)} = {_value(held)}" for name, held in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    return (
        json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f") if isinstance(value, str) else _scalar(value)
    )


def _scalar(value: object) -> str:
    if isinstance(value, bool | int | float):
        return str(value).lower()  # true, 1, 0.5, inf, nan: TOML's spelling
    return str(value)  # a date or time, in ISO form as TOML writes it
