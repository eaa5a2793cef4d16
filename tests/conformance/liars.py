"""An honest adapter of parcels, and some that lie, each in the way of a mistake that is easily made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import requests

from counterfoil.providers.contract import Call
from counterfoil.providers.frame import each_found
from counterfoil.providers.outcomes import (
    Absent,
    Finding,
    Found,
    Many,
    NotSent,
    Outcome,
    Reading,
    Rejected,
    Succeeded,
    Uncertain,
    Unknown,
    Unreadable,
)
from counterfoil.providers.transport import classify_exception, classify_status, retry_after_of
from counterfoil.sandbox.client import Sandbox


class Honest:
    """Says what is proved, and nothing else."""

    redirects = False
    sends_key = True

    def __init__(self, sandbox: Sandbox) -> None:
        self.url = f"{sandbox.provider('parcels').url}/parcels"

    def send(self, call: Call, *, timeout_s: float) -> Outcome:
        try:
            return self.judged(self.posted(call, timeout_s))
        except (requests.RequestException, ValueError, KeyError, TypeError) as exc:
            return classify_exception(exc)

    def lookup(self, calls: Sequence[Call], *, timeout_s: float) -> Mapping[str, Finding]:
        return each_found(calls, lambda call: self.found(call, timeout_s))

    def version(self, call: Call, *, timeout_s: float) -> Reading:
        del call, timeout_s
        return Unreadable("no_version")

    def posted(self, call: Call, timeout_s: float) -> requests.Response:
        headers = {"Idempotency-Key": call.key} if self.sends_key else {}
        body = {"reference": call.key, **call.arguments}
        return requests.post(self.url, json=body, headers=headers, timeout=timeout_s, allow_redirects=self.redirects)

    def judged(self, reply: requests.Response) -> Outcome:
        if reply.status_code == 422:
            return Uncertain("idempotency_mismatch", evidence="HTTP 422")
        if not 200 <= reply.status_code < 300:
            return classify_status(reply.status_code, retry_after_s=retry_after_of(reply.headers, cap_s=900))
        return self.parcel(reply.json())

    def parcel(self, parcel: Mapping[str, Any]) -> Succeeded | Rejected:
        return Succeeded(parcel["id"]) if parcel["status"] == "booked" else Rejected("refused")

    def found(self, call: Call, timeout_s: float) -> Finding:
        reply = requests.get(self.url, params={"reference": call.key}, timeout=timeout_s, allow_redirects=False)
        reply.raise_for_status()
        return self.seen(reply.json()["parcels"])

    def seen(self, parcels: Sequence[Mapping[str, Any]]) -> Finding:
        if len(parcels) > 1:
            return Many(tuple(parcel["id"] for parcel in parcels))
        return Found(self.parcel(parcels[0])) if parcels else Absent()


class TriesAgain(Honest):
    """A second request inside the attempt."""

    def send(self, call: Call, *, timeout_s: float) -> Outcome:
        first = super().send(call, timeout_s=timeout_s)
        return super().send(call, timeout_s=timeout_s) if isinstance(first, Uncertain) else first


class FailsOn504(Honest):
    """A gateway's word taken for the provider's."""

    def judged(self, reply: requests.Response) -> Outcome:
        return Rejected("gateway_timeout") if reply.status_code == 504 else super().judged(reply)


class BelievesAnEmptyAnswer(Honest):
    """A look-up that failed taken for one that found nothing."""

    def found(self, call: Call, timeout_s: float) -> Finding:
        try:
            return super().found(call, timeout_s)
        except (requests.RequestException, ValueError, KeyError):
            return Absent()


class BelievesPresence(Honest):
    """An object taken for its success."""

    def parcel(self, parcel: Mapping[str, Any]) -> Succeeded | Rejected:
        return Succeeded(parcel["id"])


class Repeats(Honest):
    """The provider's words in the outcome."""

    def judged(self, reply: requests.Response) -> Outcome:
        if reply.status_code < 400 or reply.status_code == 429:
            return super().judged(reply)
        return Uncertain("refused", evidence=reply.text[:200])


class QuotesArguments(Honest):
    """The call's arguments in the outcome."""

    def judged(self, reply: requests.Response) -> Outcome:
        if reply.status_code < 500:
            return super().judged(reply)
        sent = reply.request.body
        return Uncertain("failed", evidence=sent.decode() if isinstance(sent, bytes) else str(sent))


class ForgetsTheKey(Honest):
    """A native key that is declared and not sent."""

    sends_key = False


class FollowsRedirects(Honest):
    """A redirect followed: by a GET after a 302, by the same POST after a 307."""

    redirects = True


class RefusesTheTwin(Honest):
    """A key that is known with other words taken for a refusal of this call."""

    def judged(self, reply: requests.Response) -> Outcome:
        return Rejected("unprocessable") if reply.status_code == 422 else super().judged(reply)


class SeesOne(Honest):
    """The first of several taken for the only one."""

    sends_key = False

    def seen(self, parcels: Sequence[Mapping[str, Any]]) -> Finding:
        return super().seen(parcels[:1])


class GivesUpAtOnce(Honest):
    """A connection that broke taken for one that was never made."""

    def send(self, call: Call, *, timeout_s: float) -> Outcome:
        outcome = super().send(call, timeout_s=timeout_s)
        return NotSent("network") if isinstance(outcome, Uncertain) and outcome.code == "connection_lost" else outcome


class Raises(Honest):
    """An answer that is raised, not given."""

    def send(self, call: Call, *, timeout_s: float) -> Outcome:
        return self.judged(self.posted(call, timeout_s))


class FindsByOrder(Honest):
    """A look-up that answers by something else than the key, and so always finds."""

    def seen(self, parcels: Sequence[Mapping[str, Any]]) -> Finding:
        return super().seen(parcels) if parcels else Found(Succeeded("par_of_the_order"))


class FindsTheOrder(Honest):
    """A look-up by the order, not by the key: another call's parcel of it is taken for this one's."""

    def found(self, call: Call, timeout_s: float) -> Finding:
        order = str(call.arguments["order_id"])
        reply = requests.get(self.url, params={"reference": order}, timeout=timeout_s, allow_redirects=False)
        reply.raise_for_status()
        return self.seen(reply.json()["parcels"][-1:])


class MixesUp(Honest):
    """The first call's finding given for all that are asked for together."""

    def lookup(self, calls: Sequence[Call], *, timeout_s: float) -> Mapping[str, Finding]:
        first = self.found(calls[0], timeout_s)
        return {call.action_id: first for call in calls}


class Guesses(Honest):
    """A status that says nothing taken for a refusal."""

    def judged(self, reply: requests.Response) -> Outcome:
        return Rejected("conflict") if reply.status_code == 409 else super().judged(reply)


class WaitsForEver(Honest):
    """Unknown, whatever the look-up says."""

    def seen(self, parcels: Sequence[Mapping[str, Any]]) -> Finding:
        del parcels
        return Unknown("not_yet")
