"""Settings that are changed while processes run: who sees them, how soon, who may change them, and what is left out."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import structlog
from tests.integration.relaying import Broker, broker, fill, relay_to, taken_by_workers

from counterfoil import Counterfoil
from counterfoil.ledger.changes import Mode, change_settings, list_changes, modes, read_changes
from counterfoil.ledger.connection import Ledger
from counterfoil.ledger.errors import LedgerUnavailable, NotAllowed
from counterfoil.workers.admission import FleetAdmission, Store
from counterfoil.workers.live import LiveSettings
from counterfoil.workers.setup import limits_of

if TYPE_CHECKING:
    from tests.conftest import Database

    from counterfoil.outbox.relay import Relay
    from counterfoil.settings import Settings
    from counterfoil.testing import World

__all__ = ["broker", "relay_to"]  # fixtures

CHARGE = {"customer": "cus_1", "amount_minor": 500, "currency": "usd", "order_id": "1182"}
SEEN_WITHIN_S = 5.0
NOWHERE = "postgresql://nobody@127.0.0.1:1/none"

Change = Callable[..., int]


class Clock:
    """A process's monotonic clock, which stands still until the test moves it."""

    def __init__(self) -> None:
        self.at = 1000.0

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def ledgers(database: Database) -> Iterator[Callable[[str], Ledger]]:
    """Connections under each role."""
    made: list[Ledger] = []

    def make(role: str) -> Ledger:
        made.append(Ledger(database.url(role)))
        return made[-1]

    yield make
    for ledger in made:
        ledger.close()


@pytest.fixture
def change(ledgers: Callable[[str], Ledger]) -> Change:
    """Changes keys of providers, as an operator of all tenants."""
    operator = ledgers("operator2")

    def through(values: dict[str, str | None], reason: str = "an incident") -> int:
        keys = {f"providers.{name}": value for name, value in values.items()}
        return change_settings(operator, keys, by="ada", channel="cli", reason=reason)

    return through


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def live(settings: Settings, ledgers: Callable[[str], Ledger], clock: Clock) -> LiveSettings:
    """A worker's view."""
    return LiveSettings(settings, ledgers("worker"), monotonic=clock)


@pytest.fixture
def enqueue(world: World, database: Database) -> Iterator[Callable[[str], str]]:
    """Records one charge."""
    with closing(Counterfoil(database.url("agent"), settings=world.settings, registry=world.registry)) as client:

        def record(step: str) -> str:
            with psycopg.connect(database.url("agent")) as connection:
                return client.enqueue(
                    connection, "stripe_charge", CHARGE, tenant="acme", run="r1", step=step, actor="bot"
                )

        yield record


def logged(entries: Any, event: str) -> list[dict[str, Any]]:
    return [entry for entry in entries if entry["event"] == event]


def test_a_change_is_seen_within_seconds(live: LiveSettings, change: Change, clock: Clock) -> None:
    """A value holds from the next reading on, is taken back likewise, and leaves other providers and keys alone."""
    configured = live.provider("stripe")
    newest = change({"stripe.rate_per_s": "3.5", "stripe.breaker.open_s": "0.1", "stripe.retry_budget.tokens_max": "7"})
    assert live.provider("stripe") == configured
    clock.at += SEEN_WITHIN_S
    changed = live.provider("stripe")
    assert (changed.rate_per_s, changed.breaker.open_s, changed.retry_budget.tokens_max) == (3.5, 0.1, 7)
    assert live.version == newest
    assert changed.breaker.open_max_s == configured.breaker.open_max_s
    assert changed.timeout_s == configured.timeout_s
    assert changed.api_key == configured.api_key
    assert live.provider("jira").rate_per_s == 1000
    change({"stripe.rate_per_s": None})
    clock.at += SEEN_WITHIN_S
    assert (live.provider("stripe").rate_per_s, live.provider("stripe").breaker.open_s) == (1000, 0.1)


def test_between_two_readings_nothing_is_asked(
    settings: Settings, clock: Clock, ledgers: Callable[[str], Ledger]
) -> None:
    """However often it is asked, the database is read once in two seconds."""
    asked = 0

    class Counted(Ledger):
        def rows(self, *args: Any, **options: Any) -> Any:
            nonlocal asked
            asked += 1
            return reader.rows(*args, **options)

    reader = ledgers("reader")
    live = LiveSettings(settings, Counted("unused"), monotonic=clock)
    for _ in range(100):
        live.provider("stripe")
        live.mode("jira")
    assert asked == 1
    clock.at += 2
    assert live.version == 0
    assert asked == 2


def test_a_running_worker_stops_at_the_new_number_of_attempts(
    world: World, change: Change, enqueue: Callable[[str], str]
) -> None:
    """A worker that has begun under five attempts sends no third request once a person has said two."""
    world.sandbox.fault("429_bare", times=100)
    enqueue("s1")
    world.work()
    assert len(world.sandbox.requests("stripe")) == 1
    change({"stripe.attempts_max": "2"})
    world.advance(SEEN_WITHIN_S)
    world.settle()
    assert len(world.sandbox.requests("stripe")) == 2
    assert world.states() == {"stripe_charge/s1/do": "permanent_failure"}


def test_a_running_reconciler_sees_it(world: World, change: Change) -> None:
    """The reconciler's look-ups go by the changed time-out, too."""
    assert world.reconciler.look_ups.policy("stripe").timeout_s == 3
    change({"stripe.timeout_s": "2"})
    world.advance(SEEN_WITHIN_S)
    assert world.reconciler.look_ups.policy("stripe").timeout_s == 2


def test_a_paused_provider_is_sent_nothing(world: World, change: Change, enqueue: Callable[[str], str]) -> None:
    """From the commit of the pause on nothing is claimed, without any process having read it; resumed, it goes out once."""
    action = enqueue("s1")
    change({"stripe.mode": '"paused"'})
    world.work()
    assert world.sandbox.requests("stripe") == []
    change({"stripe.mode": '"running"'})
    world.settle()
    assert world.sandbox.count("charges") == 1
    assert action


@pytest.mark.parametrize(("value", "mode"), [('"paused"', Mode.PAUSED), ('"draining"', Mode.DRAINING)])
def test_a_mode_is_told(
    live: LiveSettings, change: Change, clock: Clock, ledgers: Callable[[str], Ledger], value: str, mode: Mode
) -> None:
    """What the claim reads and what processes read is the same mode."""
    change({"stripe.mode": value})
    clock.at += SEEN_WITHIN_S
    assert (live.mode("stripe"), live.mode("jira")) == (mode, Mode.RUNNING)
    assert {name: since.mode for name, since in modes(ledgers("reader")).items()} == {"stripe": mode}
    change({"stripe.mode": None})
    clock.at += SEEN_WITHIN_S
    assert live.mode("stripe") == Mode.RUNNING
    assert modes(ledgers("reader")) == {}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rate_per_s", '"fast"'),
        ("rate_per_s", "-1"),
        ("attempts_max", "true"),
        ("timeout_s", "5"),  # a lease of 6 s does not cover it
        ("timeout_s", "1e9"),
        ("base_url", '"http://elsewhere.example"'),
        ("api_key", '"sk_other"'),
        ("ttl_margin_s", "1"),
        ("added_in_a_later_version", "1"),
    ],
)
def test_what_a_process_cannot_use_is_told_once_and_left_out(
    live: LiveSettings, change: Change, clock: Clock, key: str, value: str
) -> None:
    """A change that does not hold together, or is no setting that may change, leaves everything else in force."""
    configured = live.provider("stripe")
    change({f"stripe.{key}": value, "stripe.concurrency_max": "2"})
    clock.at += SEEN_WITHIN_S
    with structlog.testing.capture_logs() as entries:
        assert live.provider("stripe") == configured.model_copy(update={"concurrency_max": 2})
        change({"stripe.not_sent_max": "9"})
        clock.at += SEEN_WITHIN_S
        assert live.provider("stripe").not_sent_max == 9
    ignored = logged(entries, "change_ignored")
    assert [entry["key"] for entry in ignored] == [f"providers.stripe.{key}"]
    assert "sk_" not in str(ignored)


def test_a_time_out_that_a_tool_s_contract_does_not_fit_is_left_out(world: World, change: Change) -> None:
    """What is refused at the start is not let in later: a resend under a native key must arrive before its end."""
    narrow = {**{n: getattr(world.settings, n) for n in world.settings.model_fields_set}}
    stripe = world.settings.providers["stripe"]
    narrow["providers"] = {**world.settings.providers, "stripe": stripe.model_copy(update={"ttl_margin_s": 6.5})}
    world.settings = type(world.settings)(**narrow)
    assert world.executor.policy("stripe").timeout_s == 3
    change({"stripe.timeout_s": "3.9"})  # fits the lease, and with a pause and the landing not the margin
    world.advance(SEEN_WITHIN_S)
    assert world.executor.policy("stripe").timeout_s == 3


def test_without_the_database_the_last_known_stays(
    settings: Settings, change: Change, clock: Clock, database: Database
) -> None:
    """An outage changes no limit and raises nothing; what was changed meanwhile holds once it is over."""

    class Failing(Ledger):
        away = False

        def rows(self, *args: Any, **options: Any) -> Any:
            if self.away:
                raise LedgerUnavailable("away")
            return super().rows(*args, **options)

    with closing(Failing(database.url("worker"))) as ledger:
        live = LiveSettings(settings, ledger, monotonic=clock)
        change({"stripe.rate_per_s": "3"})
        assert live.provider("stripe").rate_per_s == 3
        ledger.away = True
        change({"stripe.rate_per_s": "4"})
        clock.at += SEEN_WITHIN_S
        assert live.provider("stripe").rate_per_s == 3
        ledger.away = False
        clock.at += SEEN_WITHIN_S
        assert live.provider("stripe").rate_per_s == 4


def test_a_process_that_starts_without_a_database_has_the_configuration(settings: Settings, clock: Clock) -> None:
    """Nothing known yet is no error."""
    with closing(Ledger(NOWHERE)) as ledger:
        assert LiveSettings(settings, ledger, monotonic=clock).provider("stripe") == settings.provider("stripe")


def test_changes_are_kept(change: Change, ledgers: Callable[[str], Ledger], database: Database) -> None:
    """Who, through which login, why and what: also of changes that others have replaced, and nobody takes them out."""
    change({"stripe.rate_per_s": "3"}, reason="they asked us to")
    change({"stripe.rate_per_s": None, "jira.rate_per_s": "1"}, reason="over")
    reader = ledgers("reader")
    kept = [
        (c.provider, c.name, c.value, c.by_person, c.db_role, c.channel, c.reason)
        for c in reversed(list_changes(reader, provider=None, limit=10))
    ]
    assert [(*c[:3], c[6]) for c in kept] == [
        ("stripe", "rate_per_s", "3", "they asked us to"),
        ("stripe", "rate_per_s", None, "over"),
        ("jira", "rate_per_s", "1", "over"),
    ]
    assert {c[3:6] for c in kept} == {("ada", "cf_operator2", "cli")}
    assert [c.value for c in read_changes(reader)] == [None, "1"]
    assert [c.key for c in list_changes(reader, provider="jira", limit=10)] == ["providers.jira.rate_per_s"]
    for statement in ("DELETE FROM", "TRUNCATE"):
        with pytest.raises(psycopg.DatabaseError), psycopg.connect(database.url("owner")) as owner:
            owner.execute(f"{statement} counterfoil.setting_change".encode())


@pytest.mark.parametrize("role", ["operator", "reader", "worker", "agent"])
def test_only_an_operator_of_all_tenants_changes_settings(
    ledgers: Callable[[str], Ledger], database: Database, role: str
) -> None:
    """An operator of some tenants, a worker, a reader, an agent: refused, and nothing has changed."""
    with psycopg.connect(database.url("owner")) as owner:
        owner.execute("UPDATE counterfoil.principal SET tenant_id = 'acme' WHERE role_name = 'cf_operator'")
    with pytest.raises(NotAllowed):
        change_settings(
            ledgers(role), {"providers.stripe.mode": '"paused"'}, by="mallory", channel="cli", reason="mine"
        )
    assert modes(ledgers("reader")) == {}
    assert read_changes(ledgers("reader")) == []


def test_all_or_none(change: Change, ledgers: Callable[[str], Ledger]) -> None:
    """A batch with one impossible mode or key changes nothing."""
    for key, value in (("stripe.mode", '"asleep"'), ("stripe.rate_per_s", "not json"), ("Stripe;.x", "1")):
        with pytest.raises(psycopg.DatabaseError):
            change({"jira.mode": '"paused"', key: value})
    assert modes(ledgers("reader")) == {}
    assert read_changes(ledgers("reader")) == []


def test_no_change_is_overtaken(
    settings: Settings, database: Database, ledgers: Callable[[str], Ledger], clock: Clock, change: Change
) -> None:
    """Two people at once: a change that is committed late has the later id, so a process that has seen the other reads it."""
    live = LiveSettings(settings, ledgers("worker"), monotonic=clock)
    call = "SELECT counterfoil.change_settings('{providers.stripe.rate_per_s}', '{3}', 'bob', 'cli', 'slow')"
    with psycopg.connect(database.url("operator2")) as slow:
        slow.execute(call.encode())
        other = threading.Thread(target=change, args=({"jira.rate_per_s": "4"},))
        other.start()
        other.join(0.2)
        assert other.is_alive()
        assert live.version == 0
        slow.commit()
    other.join(10)
    clock.at += SEEN_WITHIN_S
    assert (live.provider("stripe").rate_per_s, live.provider("jira").rate_per_s) == (3, 4)


def test_a_running_relay_holds_back_more_from_then_on(
    settings: Settings, live: LiveSettings, clock: Clock, change: Change, database: Database, broker: Broker,
    relay_to: Callable[..., Relay], valkey: tuple[str, str],
) -> None:  # fmt: skip
    """A relay that has published fifty rows at once lets two go after a person has said eight calls a second."""
    store = Store(url=valkey[0], key_prefix=valkey[1], timeout_s=5, retry_after_s=0)
    admission = FleetAdmission(limits=lambda name: limits_of(live.provider(name)), worker="relay", store=store)
    relay = relay_to(broker.url, broker.prefix, gate=admission.gate)
    fill(database, 50)
    assert relay.publish_due() == 50
    taken_by_workers(database, broker.wake_ups())
    change({"a.rate_per_s": "8"})
    clock.at += SEEN_WITHIN_S
    fill(database, 50)
    assert relay.publish_due() == 2
    store.close()
