"""When a door counts a tenant's waiting actions: seldom, and again at once where there was no room."""

from __future__ import annotations

from dataclasses import dataclass

from counterfoil.outbox.backlog import COUNTED_EVERY_S, TENANTS_MAX, Backlog


@dataclass
class Clock:
    """A monotonic clock that the test moves."""

    now: float = 100.0

    def __call__(self) -> float:
        return self.now


def counts(backlog: Backlog, calls: int, tenant: str = "acme") -> int:
    return sum(backlog.to_count(tenant) is not None for _ in range(calls))


def test_a_quiet_tenant_is_counted_once_a_second() -> None:
    """The first call counts; the next ones within a second do not, and each tenant has its own second."""
    clock = Clock()
    backlog = Backlog(waiting_max=10_000, monotonic=clock)
    assert backlog.to_count("acme") == 10_000
    assert counts(backlog, 50) == 0
    assert counts(backlog, 50, "globex") == 1
    clock.now += COUNTED_EVERY_S
    assert counts(backlog, 50) == 1


def test_a_busy_tenant_is_counted_each_hundredth_of_its_cap() -> None:
    """However fast one process records, it goes beyond the cap by a hundredth at most."""
    assert counts(Backlog(waiting_max=10_000, monotonic=Clock()), 1010) == 10


def test_a_small_cap_is_counted_at_every_call() -> None:
    """A cap below a hundred is exact."""
    assert counts(Backlog(waiting_max=99, monotonic=Clock()), 30) == 30


def test_a_full_tenant_is_counted_at_every_call() -> None:
    """What was told to be full is believed full by nobody: the next call may find room, and another tenant is not asked."""
    backlog = Backlog(waiting_max=10_000, monotonic=Clock())
    assert counts(backlog, 2, "globex") == 1
    for _ in range(3):
        assert backlog.to_count("acme") == 10_000
        backlog.is_full("acme")
    assert counts(backlog, 5, "globex") == 0


def test_tenants_are_forgotten_before_they_fill_the_memory() -> None:
    """A process that meets very many tenants remembers a bounded number of them."""
    backlog = Backlog(monotonic=Clock())
    assert sum(counts(backlog, 1, f"t{n}") for n in range(2 * TENANTS_MAX + 5)) == 2 * TENANTS_MAX + 5
    assert len(backlog._believed) <= TENANTS_MAX
