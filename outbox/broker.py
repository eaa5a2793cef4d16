"""Decides what the broker carries and how Celery is set up: ids in one queue a provider, acknowledged before the work.

The broker is a hint. Postgres holds every action and publishes its wake-up again until a claim deletes it, so a message
may be lost, doubled or late. That is why messages are acknowledged early and no Celery retry, countdown or result is used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from celery import Celery
from kombu.entity import Queue
from kombu.messaging import Producer

from counterfoil.ledger.claims import WakeUp
from counterfoil.ledger.errors import ConfigError
from counterfoil.ledger.keys import is_action_id
from counterfoil.outbox.addresses import AddressRefused, RabbitAddress, RedisAddress, read_broker

EXECUTE = "counterfoil.execute"
"""The one task that the relay sends: execute the actions of these wake-ups."""

RECONCILE_QUEUE = "cf-reconcile"
"""Where beat's ticks go."""

WAKE_UPS_MAX = 100
"""Wake-ups in one message; a longer one is not ours."""

_GENERATION_MAX = 2**31 - 1  # a Postgres integer


def broker_app(
    *,
    url: str,
    key_prefix: str,
    queues: Sequence[str],
    concurrency: int | None = None,
    soft_limit_s: float | None = None,
    hard_limit_s: float | None = None,
    include: Sequence[str] = (),
    beat_schedule: Mapping[str, Mapping[str, object]] | None = None,
    visibility_timeout_s: float = 3600,
    socket_timeout_s: float = 10,
    queue_type: str = "classic",
) -> Celery:
    """The Celery app of relay, workers and beat. Opens no connection. Raises `ConfigError` for an address that cannot work.

    `key_prefix` stands before every key in Redis. `concurrency` is how many processes a worker has (None: one a core). A
    call to a broker that hangs ends after `socket_timeout_s`. The limits are for a whole message, whatever number of actions
    it carries. Modules of `include` are loaded by workers only.
    """
    try:
        address = read_broker(url)
        reached = address.celery()
    except AddressRefused as refused:
        raise ConfigError(f"the broker's address {refused}.", key="broker.url") from None
    app = Celery("counterfoil", set_as_current=True, include=list(include))
    options = _transport_options(address, key_prefix, visibility_timeout_s, socket_timeout_s, publishes_only=not queues)
    arguments = _queue_arguments(address, queue_type)
    app.conf.update(
        broker_url=reached["broker_url"],
        broker_use_ssl=reached["broker_use_ssl"],
        broker_transport_options={**reached["broker_transport_options"], **options},
        counterfoil_queue_arguments=arguments,  # these two are ours, for `send_wake_ups`
        counterfoil_answer_s=socket_timeout_s,
        broker_connection_retry_on_startup=True,
        # A Redis that becomes a replica or loads its data answers, and with an error: that is no reason to end, either.
        broker_channel_error_retry=True,
        broker_connection_max_retries=None,
        broker_pool_limit=10,
        broker_pool_acquire_timeout=10,  # the default waits for ever
        task_publish_retry=False,  # whoever publishes has a loop of its own
        # Early acknowledgement: a message redelivered by the broker could only repeat what Postgres redelivers anyway.
        # With late ones, a broker outage while every slot is busy stalls the worker for good.
        task_acks_late=False,
        worker_disable_prefetch=True,
        worker_prefetch_multiplier=1,
        worker_enable_remote_control=True,  # its connection is what notices a dead broker while all slots are busy
        result_backend=None,
        task_ignore_result=True,
        task_store_errors_even_if_ignored=False,
        task_serializer="json",
        accept_content=["json"],
        result_accept_content=["json"],
        event_serializer="json",
        task_create_missing_queues=False,
        task_queues=[Queue(name, queue_arguments=arguments) for name in queues],
        task_default_queue="cf-dead",  # not declared: a task without a queue is refused instead of lost
        worker_send_task_events=False,
        task_send_sent_event=False,
        worker_concurrency=concurrency,  # `celery worker -c` wins
        task_soft_time_limit=soft_limit_s,
        task_time_limit=hard_limit_s,
        worker_max_tasks_per_child=500,
        worker_max_memory_per_child=400_000,  # KiB
        worker_soft_shutdown_timeout=25,
        worker_enable_soft_shutdown_on_idle=False,
        worker_cancel_long_running_tasks_on_connection_loss=False,  # a killed call is an unknown outcome for nothing
        worker_deduplicate_successful_tasks=False,  # the claim does
        worker_redirect_stdouts=False,  # our log lines are whole already
        beat_schedule={name: dict(entry) for name, entry in (beat_schedule or {}).items()},
        beat_scheduler="counterfoil.workers.beat:BoundedScheduler",  # in memory: ticks are idempotent, no file is needed
        beat_max_loop_interval=5,
        beat_cron_starting_deadline=60,
    )
    return app


def send_wake_ups(
    app: Celery, producer: Producer, *, queue: str, wake_ups: Sequence[WakeUp], publish_count: int
) -> None:
    """Publishes one message: ids and generations, nothing else. Raises whatever the broker's client raises.

    The queue need not be declared in the app: another process may serve a provider that this one does not know.
    """
    assert 1 <= len(wake_ups) <= WAKE_UPS_MAX
    first = wake_ups[0]
    app.send_task(
        EXECUTE,
        args=([[wake_up.action_id, wake_up.generation] for wake_up in wake_ups],),
        task_id=f"{first.action_id}:{first.generation}:{publish_count}",
        queue=Queue(queue, queue_arguments=app.conf.counterfoil_queue_arguments),  # declared as workers declare it
        producer=producer,
        argsrepr="-",
        kwargsrepr="-",
        ignore_result=True,
        retry=False,
        timeout=app.conf.counterfoil_answer_s,
        confirm_timeout=app.conf.counterfoil_answer_s,
    )


def read_wake_ups(value: object) -> list[WakeUp]:
    """The wake-ups of a message, each once. Raises ValueError for anything that `send_wake_ups` cannot have sent."""
    if not isinstance(value, list) or not 1 <= len(value) <= WAKE_UPS_MAX:
        raise ValueError(f"a message is a list of 1 to {WAKE_UPS_MAX} wake-ups")
    return list(dict.fromkeys(_read_wake_up(pair) for pair in value))


def _read_wake_up(pair: object) -> WakeUp:
    match pair:
        case [str(action_id), int(generation)]:
            if is_action_id(action_id) and type(generation) is int and 0 <= generation <= _GENERATION_MAX:
                return WakeUp(action_id, generation)
    raise ValueError("a wake-up is [action id, generation]")


def _queue_arguments(address: RedisAddress | RabbitAddress, queue_type: str) -> dict[str, str]:
    return {"x-queue-type": queue_type} if isinstance(address, RabbitAddress) and queue_type != "classic" else {}


def _transport_options(
    address: RedisAddress | RabbitAddress,
    key_prefix: str,
    visibility_timeout_s: float,
    socket_timeout_s: float,
    *,
    publishes_only: bool,
) -> dict[str, Any]:
    if isinstance(address, RabbitAddress):
        # RabbitMQ drops silently at an alarm unless it confirms. A worker waits for messages by a heartbeat of its own.
        waits = {"read_timeout": socket_timeout_s, "write_timeout": socket_timeout_s} if publishes_only else {}
        return {"confirm_publish": True, "max_retries": 0, **waits}
    return {
        **_sentinel_options(address, socket_timeout_s),
        "global_keyprefix": key_prefix,
        "visibility_timeout": visibility_timeout_s,
        "unacked_restore_interval": 10,
        "unacked_restore_throttle": 1,  # looks every 10 s; the default is every 100 s
        "socket_timeout": socket_timeout_s,  # the default waits for a hung broker for ever
        "socket_connect_timeout": min(3, socket_timeout_s),
        "socket_keepalive": True,
        "health_check_interval": 25,
        "max_retries": 0,
        "priority_steps": [0],  # one list a queue, so that its length is the depth
    }


def _sentinel_options(address: RedisAddress, socket_timeout_s: float) -> dict[str, Any]:
    """A sentinel that is away or hangs is asked once and for seconds: the next one knows as much."""
    if not address.master_name:
        return {}
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    waits = {"socket_timeout": min(3, socket_timeout_s), "socket_connect_timeout": min(3, socket_timeout_s)}
    return {"sentinel_kwargs": {**address.sentinel_options(), **waits, "retry": Retry(NoBackoff(), 0)}}
