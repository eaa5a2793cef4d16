"""Which requests count as a provider's: by whose secret they are signed, and when. Signatures are made here, not by ours."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
import stripe
from hypothesis import given
from hypothesis import strategies as st

from counterfoil.webhooks.signatures import PARTS_MAX, PROVIDERS, TOLERANCE_S, BadSignature, signers

NOW = 1_800_000_000.0
BODY = b'{"object": "event"}'
OLD, NEW, OTHER = b"whsec_old", b"whsec_new", b"whsec_other"
SECRETS = {"default": (OLD, NEW), "eu": (OTHER,)}

Headers = dict[str, str]


def mac(secret: bytes, message: bytes) -> bytes:
    return hmac.new(secret, message, hashlib.sha256).digest()


def by_stripe(secret: bytes = OLD, body: bytes = BODY, at: float = NOW, more: str = "") -> Headers:
    seconds = str(int(at))
    return {"stripe-signature": f"t={seconds},v1={mac(secret, seconds.encode() + b'.' + body).hex()}{more}"}


def by_zendesk(secret: bytes = OLD, body: bytes = BODY, at: float = NOW) -> Headers:
    when = datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    signature = base64.b64encode(mac(secret, when.encode() + body)).decode()
    return {"x-zendesk-webhook-signature": signature, "x-zendesk-webhook-signature-timestamp": when}


def by_jira(secret: bytes = OLD, body: bytes = BODY, at: float = NOW) -> Headers:
    del at  # Jira signs no time
    return {"x-hub-signature": f"sha256={mac(secret, body).hex()}"}


SIGN: dict[str, Callable[..., Headers]] = {"stripe": by_stripe, "zendesk": by_zendesk, "jira": by_jira}
each = pytest.mark.parametrize("provider", SIGN)


def code(provider: str, headers: Headers, body: bytes = BODY, now: float = NOW) -> str:
    """Why the request is refused."""
    with pytest.raises(BadSignature) as refused:
        signers(provider, headers, body, secrets=SECRETS, now=now)
    return refused.value.code


def test_every_provider_is_tested() -> None:
    """The tests below are about all whose events are understood."""
    assert set(SIGN) == PROVIDERS


@each
@pytest.mark.parametrize(("secret", "account"), [(OLD, "default"), (NEW, "default"), (OTHER, "eu")])
def test_the_account_whose_secret_it_is(provider: str, secret: bytes, account: str) -> None:
    """Each of an account's secrets is valid while they are replaced, and tells that account and no other."""
    assert signers(provider, SIGN[provider](secret), BODY, secrets=SECRETS, now=NOW) == (account,)


@each
def test_accounts_that_share_a_secret(provider: str) -> None:
    """Two logins at one place have one webhook: both are meant."""
    shared = {"default": (OLD,), "eu": (OLD,), "none": ()}
    assert signers(provider, SIGN[provider](), BODY, secrets=shared, now=NOW) == ("default", "eu")


@each
def test_forgeries(provider: str) -> None:
    """Another secret, another body, no secret at all, no header: refused."""
    sign = SIGN[provider]
    assert code(provider, sign(b"guess")) == "not_ours"
    assert code(provider, sign(b"")) == "not_ours"
    assert code(provider, sign(), BODY + b" ") == "not_ours"
    assert code(provider, {}) == "unsigned"
    for name in sign():
        assert code(provider, {**sign(), name: ""}) == "unsigned"
        assert code(provider, {other: value for other, value in sign().items() if other != name}) == "unsigned"
    with pytest.raises(BadSignature):
        signers(provider, sign(), BODY, secrets={}, now=NOW)


@pytest.mark.parametrize("provider", ["stripe", "zendesk"])
def test_its_time(provider: str) -> None:
    """300 s either way are accepted, a second more is not: neither what was recorded nor what is dated ahead."""
    for off in (-TOLERANCE_S, 0, TOLERANCE_S):
        assert signers(provider, SIGN[provider](at=NOW + off), BODY, secrets=SECRETS, now=NOW)
    assert code(provider, SIGN[provider](at=NOW - TOLERANCE_S - 1)) == "too_old"
    assert code(provider, SIGN[provider](at=NOW + TOLERANCE_S + 1)) == "ahead_of_time"


def test_the_time_is_signed() -> None:
    """A recorded event under a new time has no valid signature."""
    new = str(int(NOW + 1000))
    sent = by_stripe()["stripe-signature"].replace(str(int(NOW)), new)
    assert code("stripe", {"stripe-signature": sent}, now=NOW + 1000) == "not_ours"
    zendesk = by_zendesk() | {
        "x-zendesk-webhook-signature-timestamp": by_zendesk(at=NOW + 60)["x-zendesk-webhook-signature-timestamp"]
    }
    assert code("zendesk", zendesk) == "not_ours"


def test_jira_signs_no_time() -> None:
    """What was recorded once is valid for ever: it only makes us look."""
    assert signers("jira", by_jira(), BODY, secrets=SECRETS, now=NOW + 10**8) == ("default",)


def test_stripe_s_header() -> None:
    """Several signatures under v1 are tried, other schemes are ignored, spaces are allowed."""
    good = by_stripe()["stripe-signature"]
    seconds, v1 = good.split(",")
    wrong = f"v1={'0' * 64}"
    accepted = [f"{seconds},{wrong},{v1}", f"{seconds}, {v1}, v0={'1' * 64}", f"{v1},{seconds}", f"{good},x,=,v1=short"]
    for header in accepted:
        assert signers("stripe", {"stripe-signature": header}, BODY, secrets=SECRETS, now=NOW) == ("default",), header
    digest = v1.removeprefix("v1=")
    refused = [
        f"{seconds},v0={digest}",
        f"{seconds},v1={digest.upper()}",
        f"{seconds},v1={digest[:-2]}",
        f"{seconds},v1={digest}00",
        v1,
        f"t=,{v1}",
        f"t=-1,{v1}",
        f"t=1e9,{v1}",
        f"t=nan,{v1}",
        f"t=\u0661\u0662,{v1}",
        f"{seconds},{seconds},{v1}",
        f"t={'9' * 400},{v1}",
        good + ",x" * PARTS_MAX,
        ",".join([seconds, *[wrong] * 100_000]),
        "\xff\xfe",
    ]
    for header in refused:
        assert code("stripe", {"stripe-signature": header}) == "malformed", header[:80]


def test_stripe_s_client_agrees() -> None:
    """What this file signs is what Stripe's own client verifies."""
    assert stripe.WebhookSignature.verify_header(  # type: ignore[no-untyped-call]
        BODY.decode(), by_stripe()["stripe-signature"], OLD.decode(), tolerance=None
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"x-zendesk-webhook-signature": "no base64!"},
        {"x-zendesk-webhook-signature": base64.b64encode(b"short").decode()},
        {"x-zendesk-webhook-signature": "\xe9" * 44},
        {"x-zendesk-webhook-signature-timestamp": "yesterday"},
        {"x-zendesk-webhook-signature-timestamp": "2027-01-15T08:00:00"},  # whose time?
        {"x-zendesk-webhook-signature-timestamp": "1800000000"},
        {"x-zendesk-webhook-signature-timestamp": "9" * 100_000},
    ],
)
def test_zendesk_s_headers(changes: Headers) -> None:
    """A signature that is none, and a time that is none or in no zone."""
    assert code("zendesk", by_zendesk() | changes) == "malformed"


@pytest.mark.parametrize("scheme", ["sha1=", "SHA256=", "", "sha256:", "sha256=sha256="])
def test_jira_s_schemes(scheme: str) -> None:
    """SHA-256 alone, and it must say so."""
    value = by_jira()["x-hub-signature"].removeprefix("sha256=")
    assert code("jira", {"x-hub-signature": scheme + value}) == "malformed"


HEADERS = {name for sign in SIGN.values() for name in sign()}


@each
@given(
    headers=st.fixed_dictionaries({}, optional={name: st.text(st.characters(max_codepoint=255)) for name in HEADERS}),
    body=st.binary(max_size=100),
)
def test_nothing_else_is_raised(provider: str, headers: Headers, body: bytes) -> None:
    """Whatever a stranger sends, it is refused, and nothing breaks."""
    with pytest.raises(BadSignature):
        signers(provider, headers, body, secrets=SECRETS, now=NOW)
