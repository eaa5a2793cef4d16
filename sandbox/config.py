"""Decides which settings the outside world has, their defaults and their bounds."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self, get_args
from urllib.parse import urlsplit

Span = tuple[float, float]
TwilioStatus = Literal["queued", "sending", "sent", "delivered", "undelivered", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where a provider sends its events, on this machine, what it signs them with, and what befalls them on the way."""

    url: str
    secret: str
    delay_s: float = 0.0
    duplicate: int = 1
    reorder: bool = False
    drop: bool = False


@dataclass(frozen=True, slots=True)
class Config:
    """Settings of the world; `POST /_sandbox/config` changes some, a reset brings these defaults back."""

    search_lag_s: Mapping[str, Span] = field(
        default_factory=lambda: {
            "stripe": (1.0, 3.0),
            "jira": (1.0, 3.0),
            "zendesk": (1.0, 3.0),
            "twilio": (1.0, 3.0),
            "slack": (1.0, 3.0),
            "stripe_events": (1.0, 1.0),
        }
    )
    """Per provider: how much later a search sees a write; a number or [least, most], drawn anew for each write."""
    latency_s: Mapping[str, float] = field(default_factory=dict)
    """Per provider: how long a request takes before its handler runs."""
    idem_ttl_s: float = 24 * 3600.0
    """Stripe forgets an idempotency key after this long, and then runs it again."""
    zendesk_idem_ttl_s: float = 2 * 3600.0
    """The same of Zendesk, whose keys are for creating tickets only."""
    zendesk_in_flight: Literal["conflict", "execute"] = "conflict"
    """What a twin of a creation that is under way meets; Zendesk does not say."""
    resend_idem_ttl_s: float = 24 * 3600.0
    """The same of Resend."""
    imap_uidplus: bool = True
    """Whether the mailbox can remove one message by its number."""
    imap_search: Literal["part", "whole"] = "part"
    """What a header must hold to be found: the text that is searched for, as the standard says, or nothing else than that."""
    resend_tags: Literal["shown", "hidden"] = "shown"
    """Whether a mail that is read shows its tags; Resend's own clients call them optional."""
    refund_pending_s: float = 0.0
    """How long a refund at Stripe is pending before it has succeeded."""
    jira_deployment: Literal["cloud", "data_center"] = "cloud"
    """Data Center has the older search, with an index of its own on each of two nodes, and other logins."""
    slack_history: Literal["full", "limited"] = "full"
    """`limited`: 15 messages a reading and one reading a minute, as apps get that are sold outside Slack's Marketplace."""
    slack_shared: tuple[str, ...] = ()
    """The Slack channels that another company is in, too."""
    twilio_status: TwilioStatus = "delivered"
    """What has become of a text when somebody asks; an answer to its creation is always earlier than that."""
    aws_tokens: Literal["kept", "forgotten"] = "kept"
    """What AWS's scheduler does with the client tokens that it has seen; how long it keeps them, it does not say."""
    hold_s: float = 7 * 24 * 3600.0
    """An authorisation that was not captured lapses after this long."""
    customers: Literal["auto", "strict"] = "auto"
    """`auto`: a customer id that a payment names exists; `strict`: it must have been created."""
    linear_duplicate_id: Literal["error", "overwrite", "second"] = "error"
    """What a second creation under one id does at Linear, which does not say: it is refused, it writes over the first, or it
    makes another under an id of Linear's own."""
    linear_teams: tuple[str, ...] = ("SUP",)
    """The keys of the Linear teams that exist."""
    reship: Literal["reject", "accept"] = "reject"
    """Whether the warehouse accepts a reship."""
    projects: tuple[str, ...] = ("SUP",)
    """The keys of the Jira projects that exist."""
    first_issue: int = 1
    """The number of the first issue in a project."""
    webhooks: Mapping[str, Endpoint] = field(default_factory=dict)
    """Per provider: where it sends its events; None ends that, a part of an endpoint changes that part."""
    seed: int = 1
    """Fixes the sequence of search lags."""

    def search_lag(self, provider: str) -> Span:
        return self.search_lag_s.get(provider, (0.0, 0.0))

    def changed(self, changes: Mapping[str, Any]) -> Self:
        """A copy with these settings; per-provider settings are merged; ValueError names what is wrong."""
        new: dict[str, Any] = {}
        for name, value in changes.items():
            new[name] = self._checked(name, value)
        return dataclasses.replace(self, **new)

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> Self:
        return cls().changed(saved)

    def _checked(self, name: str, value: Any) -> Any:
        match name, value:
            case "search_lag_s", dict():
                return {**self.search_lag_s, **{provider: _span(name, lag) for provider, lag in value.items()}}
            case "webhooks", dict():
                changed = {provider: _endpoint(self.webhooks.get(provider), given) for provider, given in value.items()}
                return {p: endpoint for p, endpoint in {**self.webhooks, **changed}.items() if endpoint is not None}
            case "latency_s", dict():
                return {**self.latency_s, **{provider: _span(name, wait)[0] for provider, wait in value.items()}}
            case (("idem_ttl_s" | "refund_pending_s" | "zendesk_idem_ttl_s" | "resend_idem_ttl_s" | "hold_s"), _):
                return _span(name, value)[0]
            case (
                ("customers", "auto" | "strict")
                | ("jira_deployment", "cloud" | "data_center")
                | ("reship", "reject" | "accept")
                | ("aws_tokens", "kept" | "forgotten")
                | ("zendesk_in_flight", "conflict" | "execute")
                | ("linear_duplicate_id", "error" | "overwrite" | "second")
                | ("resend_tags", "shown" | "hidden")
                | ("imap_search", "part" | "whole")
                | ("slack_history", "full" | "limited")
            ):
                return value
            case "twilio_status", str() if value in get_args(TwilioStatus):
                return value
            case "slack_shared", [*channels] if all(isinstance(channel, str) for channel in channels):
                return tuple(channels)
            case "imap_uidplus", bool():
                return value
            case (("projects" | "linear_teams"), [*keys]) if keys and all(isinstance(key, str) for key in keys):
                return tuple(keys)
            case (("first_issue" | "seed"), int()) if value >= 0:
                return value
        known = ", ".join(entry.name for entry in dataclasses.fields(self))
        raise ValueError(f"no such setting, or not such a value: {name}. Settings: {known}.")


def _endpoint(before: Endpoint | None, given: Any) -> Endpoint | None:
    if given is None:
        return None
    kinds = {"url": str, "secret": str, "delay_s": int | float, "duplicate": int, "reorder": bool, "drop": bool}
    wanted = {**(dataclasses.asdict(before) if before else {}), **given}
    wrong = [name for name, value in wanted.items() if not isinstance(value, kinds.get(name, ()))]
    if wrong or not {"url", "secret"} <= set(wanted) or not 1 <= wanted.get("duplicate", 1) <= 100:
        raise ValueError(f"webhooks wants url, secret and {', '.join(kinds)} of the right kind: {wrong or given!r}")
    if urlsplit(wanted["url"]).hostname not in ("127.0.0.1", "::1", "localhost"):
        raise ValueError("webhooks are sent to this machine only")
    return Endpoint(**wanted)


def _span(name: str, value: Any) -> Span:
    edges: list[Any] = list(value) if isinstance(value, list | tuple) else [value, value]
    if len(edges) != 2 or not all(isinstance(edge, int | float) for edge in edges) or not 0 <= edges[0] <= edges[1]:
        raise ValueError(f"{name} wants seconds, or [least, most] seconds: {value!r}")
    return float(edges[0]), float(edges[1])
