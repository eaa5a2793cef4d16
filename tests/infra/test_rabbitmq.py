"""The broker is RabbitMQ: it has no keys in which a fleet could count, no lists that outlive it, and alarms of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.infra.brokers import RabbitMq
from tests.infra.fleet import Fleet, Url
from tests.infra.servers import Place

from counterfoil.sandbox.client import Sandbox

FROZEN_S = 25.0
"""Longer than the fleet's patience with a broker that hangs."""


@pytest.fixture
def broker(place: Place) -> Iterator[RabbitMq]:
    with RabbitMq(place) as started:
        yield started


@pytest.fixture
def fleet(broker: RabbitMq, ledger: Url, world: Sandbox, tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(tmp_path, ledger, ledger, broker.url, world) as started:
        yield started


@pytest.mark.infra(seconds=18)
def test_all_goes_through_it(fleet: Fleet) -> None:
    """As over Redis."""
    fleet.send()
    fleet.settle()


@pytest.mark.infra(seconds=18)
def test_quorum_queues(broker: RabbitMq, ledger: Url, world: Sandbox, tmp_path: Path) -> None:
    """The same with queues of the kind that outlives a node."""
    quorum = {"broker": {"queue_type": "quorum"}}
    with Fleet(tmp_path, ledger, ledger, broker.url, world, settings=quorum) as fleet:
        fleet.send()
        fleet.settle()


@pytest.mark.infra(seconds=30)
def test_killed_in_the_middle(fleet: Fleet, broker: RabbitMq) -> None:
    """SIGKILL, and started again: queues are there, messages may be gone."""
    with fleet.upset():
        broker.crash()
        broker.start()


@pytest.mark.infra(seconds=42)
def test_frozen_in_the_middle(fleet: Fleet, broker: RabbitMq) -> None:
    """It takes bytes and answers none: whoever waits for it gives up, and comes back."""
    with fleet.upset(), broker.frozen():
        fleet.outlast(FROZEN_S)


@pytest.mark.infra(seconds=30)
def test_an_alarm_blocks_who_publishes(fleet: Fleet, broker: RabbitMq) -> None:
    """Its memory alarm stops every publisher's connection without a word: the relay waits, and nothing is lost."""
    with fleet.upset():
        broker.control("set_vm_memory_high_watermark", "0")
        fleet.outlast(FROZEN_S / 2)
        broker.control("set_vm_memory_high_watermark", "0.4")
