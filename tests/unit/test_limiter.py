"""What the fleet's limits mean, one rule at a time, in the model that the script in Redis follows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from counterfoil.settings_providers import ProviderSettings
from counterfoil.workers.fleet_limits import Limits, Recalled, Said
from counterfoil.workers.kinds import Ask, Kind, Result
from counterfoil.workers.limiter import Limiter
from counterfoil.workers.setup import limits_of

START_MS = 1_796_000_000_000.0
TIMEOUT, THROTTLE = Kind.AFTER_TIMEOUT, Kind.AFTER_THROTTLE


class Play:
    """One provider, one clock; each call asks for one try, in a batch of its own."""

    def __init__(self, **changes: Any) -> None:
        loose = {"rate_per_s": 1000.0, "concurrency_max": 100, "refill_per_min": 0.0, "refill_per_success": 0.0}
        self.limits: Limits = replace(limits_of(ProviderSettings()), **{**loose, **changes})
        self.now = START_MS
        self.limiter = Limiter.fresh(self.now, self.limits)
        self.tickets = 0

    def wait(self, seconds: float) -> None:
        self.now += seconds * 1000

    def ask(self, kind: Kind = Kind.FIRST, *, tenant: str = "acme", lease_s: float = 30, **more: Any) -> Said:
        self.tickets += 1
        [said] = self.limiter.admit(
            self.now,
            self.limits,
            ticket=f"t{self.tickets}",
            worker=more.pop("worker", "w"),
            lease_ms=lease_s * 1000,
            asks=[Ask(kind, tenant)],
            **more,
        )
        return said

    def tell(self, result: Result, kind: Kind = Kind.FIRST, *, tenant: str = "acme", ticket: int | None = None) -> bool:
        """The result of the call that was admitted last, or of an earlier ticket."""
        name = f"t{self.tickets if ticket is None else ticket}"
        told = [(Ask(kind, tenant), result)]
        return self.limiter.report(self.now, self.limits, ticket=name, results=told, done=True)

    def call(self, result: Result, kind: Kind = Kind.FIRST, *, tenant: str = "acme") -> Said:
        """Asks, and if it may go, comes to this result; a hundredth of a second passes."""
        said = self.ask(kind, tenant=tenant)
        if said.reason is None:
            self.tell(result, kind, tenant=tenant)
        self.wait(0.01)
        return said

    def seen(self) -> dict[str, Any]:
        return self.limiter.seen(self.now, self.limits)

    @property
    def tokens(self) -> float:
        tokens: float = self.seen()["tokens"]
        return tokens

    def fail_until_open(self) -> int:
        for calls in range(1, 1000):
            self.call(Result.TIMEOUT)
            if self.seen()["breaker"] == "open":
                return calls
        raise AssertionError("never opened")


def test_a_retry_costs_more_after_a_timeout_than_after_a_throttle() -> None:
    """Ten tokens after a timeout, five after a 429; a first attempt is free."""
    play = Play()
    play.wait(1)
    play.ask()
    assert play.tokens == 500
    play.ask(TIMEOUT)
    assert play.tokens == 490
    play.ask(THROTTLE)
    assert play.tokens == 485


def test_a_failed_first_attempt_takes_its_cost() -> None:
    """What a failure may cost later is taken when it fails, so that a wave of failures leaves nothing for retries."""
    play = Play(failures_min=1000)
    play.call(Result.TIMEOUT)
    assert play.tokens == 490
    play.call(Result.THROTTLE)
    assert play.tokens == 485
    play.call(Result.NOT_SENT)
    assert play.tokens == 480
    play.call(Result.REFUSED)
    assert play.tokens == 480, "a definite answer costs nothing"


def test_a_retry_that_succeeds_returns_both_costs() -> None:
    """Its own, and that of the failure it repaired; one that fails returns nothing."""
    play = Play(failures_min=1000)
    play.call(Result.TIMEOUT)
    play.call(Result.OK, TIMEOUT)
    assert play.tokens == 500
    play.call(Result.TIMEOUT)
    play.call(Result.TIMEOUT, TIMEOUT)
    assert play.tokens == 480


def test_without_tokens_first_attempts_go_and_retries_wait() -> None:
    """An empty bucket holds retries only, and says when it may have enough."""
    play = Play(tokens_max=20, refill_per_min=10, failures_min=1000)
    play.call(Result.TIMEOUT)
    play.call(Result.TIMEOUT)
    said = play.ask(TIMEOUT)
    assert said.reason == "budget"
    assert 59_000 < said.wait_ms <= 60_000
    assert play.ask().reason is None


def test_successes_and_time_refill_the_bucket_and_never_beyond_its_size() -> None:
    """A tenth of a token for a clean call, ten a minute by time alone."""
    play = Play(tokens_max=100, refill_per_success=0.1, failures_min=1000)
    play.call(Result.TIMEOUT)
    play.call(Result.OK)
    assert play.tokens == pytest.approx(90.1)
    play.limits = replace(play.limits, refill_per_min=10)
    play.wait(30)
    assert play.tokens == pytest.approx(95.1, abs=0.05)
    play.wait(3600)
    assert play.tokens == 100


def test_retries_are_a_tenth_of_the_first_attempts_of_a_minute() -> None:
    """Tokens or not: ten retries go on a hundred first attempts, the eleventh waits until the minute has moved on."""
    play = Play(retries_per_min_min=0)
    for _ in range(100):
        play.call(Result.OK)
    assert [play.call(Result.OK, TIMEOUT).reason for _ in range(11)] == [None] * 10 + ["ratio"]
    play.wait(61)
    assert play.call(Result.OK, TIMEOUT).reason == "ratio", "and no first attempt any more"


def test_a_quiet_provider_may_retry_a_few_times_a_minute() -> None:
    """Without first attempts the ratio would stop every retry."""
    play = Play(retries_per_min_min=2)
    assert [play.call(Result.OK, TIMEOUT).reason for _ in range(3)] == [None, None, "ratio"]


def test_a_tenant_cannot_use_what_is_another_s() -> None:
    """With a share of a fifth one tenant's failures end its own retries, and nobody else's."""
    play = Play(tokens_max=100, tenant_share=0.2, failures_min=1000)
    for _ in range(4):
        play.call(Result.TIMEOUT, tenant="loud")
    assert play.ask(TIMEOUT, tenant="loud").reason == "budget"
    assert play.ask(TIMEOUT, tenant="quiet").reason is None
    assert play.ask(tenant="loud").reason is None, "first attempts are no matter of the bucket"


def test_a_tenth_of_a_second_s_rate_goes_at_once() -> None:
    """At 100 a second ten calls go in one moment, the eleventh a hundredth of a second later."""
    play = Play(rate_per_s=100.0)
    play.wait(1)
    assert [play.ask().reason for _ in range(11)] == [None] * 10 + ["rate"]
    assert play.ask().wait_ms == 10
    play.wait(0.01)
    assert play.ask().reason is None


def test_an_unused_admission_gives_everything_back() -> None:
    """Rate, tokens and the minute's count are as before, when nothing was tried."""
    play = Play(rate_per_s=10.0)
    before = play.seen()
    play.ask(TIMEOUT)
    play.tell(Result.UNUSED, TIMEOUT)
    after = play.seen()
    assert {k: v for k, v in after.items() if k not in ("processes", "hours")} == {
        k: v for k, v in before.items() if k not in ("processes", "hours")
    }


def test_calls_in_flight_are_counted_and_end_by_themselves() -> None:
    """Two at once and no third; a process that never reports counts until its lease is over."""
    play = Play(concurrency_max=2)
    play.wait(1)
    assert [play.ask(lease_s=30).reason for _ in range(3)] == [None, None, "concurrency"]
    play.wait(29)
    assert play.ask().reason == "concurrency"
    play.wait(1)
    assert play.ask().reason is None


def test_the_breaker_opens_at_half_of_the_window() -> None:
    """Ten failures beside ten answers open it; nine do not, nor ten beside more answers."""
    play = Play()
    for _ in range(9):
        play.call(Result.OK)
        play.call(Result.TIMEOUT)
    assert play.seen()["breaker"] == "closed"
    play.call(Result.OK)
    play.call(Result.TIMEOUT)
    assert play.seen()["breaker"] == "open"
    other = Play()
    for _ in range(20):
        other.call(Result.OK)
        other.call(Result.OK)
        other.call(Result.TIMEOUT)
    assert other.seen()["breaker"] == "closed"


def test_a_run_of_failures_opens_the_breaker_of_a_busy_fleet() -> None:
    """Twenty failures in a row are an outage, although thousands of answers are in the window."""
    play = Play()
    for _ in range(900):
        play.call(Result.OK)
    assert play.fail_until_open() == 20


def test_throttling_opens_no_breaker() -> None:
    """A provider that says "not now" is well."""
    play = Play(tokens_max=100_000.0)
    for _ in range(100):
        play.call(Result.THROTTLE)
    assert play.seen()["breaker"] == "closed"


def test_an_open_breaker_lets_one_call_through_and_waits_twice_as_long_after_it() -> None:
    """Open for 1 s, one probe; it fails: 2 s, then 4, and never longer; it succeeds: closed."""
    play = Play()
    play.fail_until_open()
    for open_s in (1, 2, 4, 4):
        play.wait(open_s - 0.1)
        assert play.ask().reason == "breaker"
        play.wait(0.1)
        assert play.ask().reason is None, "the probe"
        assert play.ask().reason == "breaker", "no second one"
        assert play.tell(Result.TIMEOUT, ticket=play.tickets - 1) is False
    play.wait(4)
    play.ask()
    assert play.tell(Result.OK) is True
    assert play.seen()["breaker"] == "closed"


def test_a_batch_is_one_probe() -> None:
    """Of a batch that meets a half-open breaker one call goes."""
    play = Play()
    play.fail_until_open()
    play.wait(1)
    batch = [Ask(Kind.FIRST, "acme")] * 3
    said = play.limiter.admit(play.now, play.limits, ticket="b", worker="w", lease_ms=1000, asks=batch)
    assert [one.reason for one in said] == [None, "breaker", "breaker"]


def test_a_probe_that_hangs_does_not_keep_the_next_one_back() -> None:
    """Its process died, or its call takes a minute: another probe goes after `open_max_s`, and its answer counts."""
    play = Play()
    play.fail_until_open()
    play.wait(1)
    assert play.ask(lease_s=60).reason is None
    hung = play.tickets
    play.wait(3.9)
    assert play.ask(lease_s=60).reason == "breaker"
    play.wait(0.1)
    assert play.ask(lease_s=60).reason is None
    assert play.tell(Result.TIMEOUT, ticket=hung) is False
    assert play.seen()["breaker"] == "half", "the hung one says how it was, not how it is"
    assert play.tell(Result.OK) is True


def steady(play: Play, seconds: int, per_s: int = 20) -> None:
    for _ in range(seconds * per_s):
        assert play.ask().reason is None
        play.tell(Result.OK)
        play.wait(1 / per_s)


def test_after_an_outage_the_rate_is_what_it_was_before_and_a_little_more() -> None:
    """20 a second before, so 22.4 after it, for ten times as long as it took, whatever is configured."""
    play = Play()
    steady(play, 1)
    assert play.seen()["usual_per_s"] == 0, "a second says nothing yet"
    steady(play, 59)
    assert play.seen()["usual_per_s"] == pytest.approx(20)
    play.fail_until_open()
    play.wait(9)
    play.ask()
    play.tell(Result.OK)
    assert play.seen()["rate_per_s"] == pytest.approx(22.4)
    play.wait(80)
    assert play.seen()["rate_per_s"] == pytest.approx(22.4)
    play.wait(20)
    assert play.seen()["rate_per_s"] == 1000


def test_calls_that_hang_do_not_lower_what_was_usual() -> None:
    """Half a minute without an answer before the breaker opened is part of the outage, not of the time before."""
    play = Play()
    steady(play, 60)
    for _ in range(10):
        play.ask(lease_s=40)
    play.wait(30)
    for ticket in range(play.tickets - 9, play.tickets + 1):
        play.tell(Result.TIMEOUT, ticket=ticket)
    assert play.seen()["breaker"] == "open"
    play.wait(1)
    play.ask()
    play.tell(Result.OK)
    assert play.seen()["rate_per_s"] == pytest.approx(22.4)
    play.wait(300)
    assert play.seen()["rate_per_s"] == pytest.approx(22.4), "ten times the half minute, too"


def test_a_store_that_lost_everything_is_told_by_those_who_remember() -> None:
    """Amid an outage: the breaker opens again, and afterwards the rate is what it was; a young store is told nothing new."""
    play = Play()
    said = play.ask(recalled=Recalled(START_MS - 5000, 20.0, True))
    assert said.reason == "breaker"
    play.wait(1)
    assert play.ask(recalled=Recalled(START_MS - 5000, 20.0, True)).reason is None
    play.tell(Result.OK)
    assert play.seen()["rate_per_s"] == pytest.approx(22.4)
    assert play.ask(recalled=Recalled(START_MS - 5000, 20.0, True)).reason is None, "it knows better by now"
    other = Play()
    other.ask(recalled=Recalled(START_MS, 20.0, True))
    assert (other.seen()["breaker"], other.seen()["rate_per_s"]) == ("closed", 1000)


def test_what_was_not_tried_is_not_counted() -> None:
    """A call that was admitted and given back leaves the hour's counts as they were."""
    play = Play()
    play.call(Result.OK)
    play.call(Result.UNUSED)
    [counts] = play.seen()["hours"].values()
    assert counts["firsts"] == 1


def test_look_ups_have_a_rate_of_their_own() -> None:
    """Five a second, of which the time between two sweeps is saved up: what is granted is taken, the rest is told when."""
    play = Play(lookups_per_s=5.0)
    play.wait(60)
    assert play.limiter.look_up(play.now, play.limits, 27) == (25, 200)
    play.wait(0.2)
    assert play.limiter.look_up(play.now, play.limits, 7) == (1, 200)


def test_a_timeout_that_was_a_success_gets_its_cost_back() -> None:
    """A look-up found the effect."""
    play = Play(failures_min=1000)
    play.call(Result.TIMEOUT)
    play.limiter.found(play.now, play.limits, 1)
    assert play.tokens == 500


def test_a_process_by_itself_has_its_share_and_no_retry() -> None:
    """One of ten: a little less than a tenth of the usual rate, one failure is its outage, and it stays away for longer."""
    share = limits_of(ProviderSettings(rate_per_s=1000)).share(10, 50.0)
    assert (share.rate_per_s, share.failures_min, share.open_ms) == (4.5, 1, 10_000)
    play = Play()
    play.limits = share
    play.limiter = Limiter.fresh(play.now, share)
    assert play.ask(TIMEOUT).reason == "budget"
    assert play.ask().reason is None
    assert play.ask().reason == "rate"
    play.tell(Result.TIMEOUT, ticket=play.tickets - 1)
    assert play.ask().reason == "breaker"
    assert limits_of(ProviderSettings(rate_per_s=40)).share(10, 0.0).rate_per_s == 4, (
        "nothing known: the configured rate"
    )
