"""What the findings of a look-up, or the outcome of a call, say about their provider."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast

import pytest

from counterfoil.ledger import health as ledger_health
from counterfoil.ledger.connection import Ledger
from counterfoil.providers.contract import OTHER_KEY, Contract
from counterfoil.providers.outcomes import Absent, Finding, Found, Many, Succeeded, Unknown
from counterfoil.reconciler.health import Health
from counterfoil.workers.policy import REPEATS_MAX, Policy, limits_for

NOBODY = cast("Ledger", None)
POLICY = Policy(
    timeout_s=20, attempts_max=5, not_sent_max=50, backoff_base_s=1, backoff_cap_s=300, retry_after_cap_s=900
)


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str | None]]:
    """What was written down: the way and the failure."""
    made: list[tuple[str, str | None]] = []

    def note(_ledger: Any, _provider: str, _account: str, way: str, *, failed: str | None) -> None:
        made.append((way, failed))

    monkeypatch.setattr(ledger_health, "note", note)
    return made


@pytest.mark.parametrize(
    ("findings", "failed"),
    [
        ([Found(Succeeded("pi_1"))], None),
        ([Absent()], None),
        ([Many(("a", "b"))], None),
        ([Unknown(OTHER_KEY)], None),
        ([Unknown("too_fresh")], None),
        ([Unknown("http_503"), Unknown("http_503"), Absent()], None),
        ([Unknown("http_503"), Unknown("timeout")], "http_503"),
        ([Unknown("of_unresolved"), Unknown("ReadTimeout")], "ReadTimeout"),
    ],
)
def test_what_findings_say(noted: list[tuple[str, str | None]], findings: list[Finding], failed: str | None) -> None:
    """One answer about one row is an answer; only where all of them failed it did not answer, with the first code."""
    Health(ledger=NOBODY, uncertain_max_s=lambda _: 1.0).note("p", "a", findings, reachable=True)
    assert noted == [("look_up", failed)]


@pytest.mark.parametrize("findings", [[], [None, None], [Unknown("of_unresolved")], [Unknown("no_lookup"), None]])
def test_what_says_nothing(noted: list[tuple[str, str | None]], findings: list[Finding | None]) -> None:
    """Nobody was asked: neither an answer nor a failure."""
    Health(ledger=NOBODY, uncertain_max_s=lambda _: 1.0).note("p", "a", findings, reachable=True)
    assert noted == []


def test_our_own_configuration_is_no_outage(noted: list[tuple[str, str | None]]) -> None:
    """What could not be asked for want of an account or a secret has a way of its own."""
    Health(ledger=NOBODY, uncertain_max_s=lambda _: 1.0).note("p", "a", [Unknown("x")], reachable=False)
    assert noted == [("configuration", "unreachable")]


@pytest.mark.parametrize(
    ("contract", "in_doubt", "attempts_max"),
    [
        (Contract(native_key_ttl_s=86_400, lookup=False, landing_max_s=1), True, REPEATS_MAX),
        (Contract(native_key_ttl_s=86_400, lookup=False, landing_max_s=1), False, 5),
        (Contract(native_key_ttl_s=86_400, lookup=True, landing_max_s=1), True, 5),
        (Contract(native_key_ttl_s=None, lookup=False, landing_max_s=1), True, 5),
    ],
)
def test_which_repeats_are_no_attempts(contract: Contract, in_doubt: bool, attempts_max: int) -> None:
    """Only those in doubt under a native key that is the only look-up."""
    limits = limits_for(POLICY, contract, in_doubt=in_doubt)
    assert limits.attempts_max == attempts_max
    assert limits.repeats_key == (contract.native_key_ttl_s is not None and not contract.lookup)


def test_how_long_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of repeats the provider's own setting counts, by what sends have shown since then."""
    asked: dict[str, Any] = {}

    def answered_for(_ledger: Any, provider: str, account: str, way: str, **more: Any) -> bool:
        asked.update(provider=provider, account=account, way=way, **more)
        return True

    monkeypatch.setattr(ledger_health, "answered_for", answered_for)
    since = datetime(2026, 11, 30, tzinfo=UTC)
    assert Health(ledger=NOBODY, uncertain_max_s={"p": 60.0}.__getitem__).took_too_long("p", "a", since=since)
    assert asked == {"provider": "p", "account": "a", "way": "send", "since": since, "for_s": 60.0}
