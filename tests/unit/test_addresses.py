"""What an address of a broker or of the counters' Redis means: one reading for Celery and for our own client."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest
from kombu.connection import Connection
from kombu.entity import Queue

from counterfoil import ConfigError
from counterfoil.cli.reach import check_address_files
from counterfoil.ledger.claims import WakeUp
from counterfoil.outbox.addresses import AddressRefused, RabbitAddress, RedisAddress, is_redis, read_broker, read_redis
from counterfoil.outbox.broker import broker_app, send_wake_ups
from counterfoil.settings import Settings
from counterfoil.workers.redis_client import redis_client

VERIFIED = {"ssl_cert_reqs": ssl.CERT_REQUIRED, "ssl_check_hostname": True}


@pytest.mark.parametrize("spelling", ["CERT_REQUIRED", "required", "Required", None])
def test_both_spellings_of_a_verified_certificate(spelling: str | None) -> None:
    """Celery's and redis-py's mean the same, and so does none at all."""
    query = "" if spelling is None else f"?ssl_cert_reqs={spelling}"
    assert read_redis(f"rediss://h{query}").tls == VERIFIED


@pytest.mark.parametrize("spelling", ["CERT_NONE", "none"])
def test_a_certificate_is_not_verified_only_where_that_is_said(spelling: str) -> None:
    """And then no name is compared, either."""
    assert read_redis(f"rediss://h?ssl_cert_reqs={spelling}").tls == {
        "ssl_cert_reqs": ssl.CERT_NONE,
        "ssl_check_hostname": False,
    }


def test_both_clients_get_the_same() -> None:
    """Host, port, database, login and TLS, by what each client's connection is made with."""
    app = broker_app(url="rediss://u%40:p%3A%2F@h:6380/3?ssl_cert_reqs=required", key_prefix="cf:", queues=["q"])
    with app.connection_for_write() as connection:
        told = _kombu(connection)
    address = read_redis("rediss://u%40:p%3A%2F@h:6380/3?ssl_cert_reqs=CERT_REQUIRED")
    client = redis_client(address, timeout_s=1)
    ours = client.connection_pool.connection_kwargs
    for name in ("host", "port", "db", "username", "password", *VERIFIED):
        assert told[name] == ours[name], name
    assert (told["username"], told["password"]) == ("u@", "p:/")
    client.close()


def _kombu(connection: Connection) -> dict[str, Any]:
    from kombu.transport.redis import Channel

    class Unconnected(Channel):
        def __init__(self, connection: Any) -> None:
            self.connection = connection

    class Transport:
        default_port, client = 6379, connection

    made: dict[str, Any] = Unconnected(Transport())._connparams()
    return made


def test_a_socket() -> None:
    """In redis-py's spelling and in Celery's."""
    ours, celerys = (
        read_redis("unix:///run/redis.sock?db=2"),
        read_redis("redis+socket:///run/redis.sock?virtual_host=2"),
    )
    assert ours == celerys == RedisAddress(path="/run/redis.sock", database=2)
    told = _kombu(Connection(ours.celery()["broker_url"]))
    assert (told["path"], told["db"]) == ("/run/redis.sock", 2)
    assert read_redis("unix://u:p@/run/redis.sock").celery()["broker_url"] == (
        "redis+socket://u:p@/run/redis.sock?virtual_host=0"
    )


def test_sentinels() -> None:
    """Each is named, Celery's list included, and their own password apart from the server's."""
    url = "sentinel://:pw@a:26379;sentinel://b:26380/1?master_name=mymaster&sentinel_password=s"
    found = read_redis(url)
    assert found.hosts == (("a", 26379), ("b", 26380))
    assert (found.database, found.master_name, found.sentinel) == (1, "mymaster", {"password": "s"})
    told = found.celery()
    options = broker_app(url=url, key_prefix="cf:", queues=[]).conf.broker_transport_options
    assert (options["master_name"], options["sentinel_kwargs"]["password"]) == ("mymaster", "s")
    assert options["sentinel_kwargs"]["socket_timeout"] == 3, "one that hangs is left for the next"
    assert [part.partition("://")[0] for part in told["broker_url"].split(";")] == ["sentinel", "sentinel"]


def test_rabbitmq() -> None:
    """Over TLS the certificate and its name are verified unless the address says otherwise."""
    assert read_broker("amqp://u:p@h:5672/v") == RabbitAddress("amqp://u:p@h:5672/v")
    secure = read_broker("amqps://u:p@h/v")
    assert isinstance(secure, RabbitAddress)
    assert secure.tls == {"cert_reqs": ssl.CERT_REQUIRED, "server_hostname": "h"}
    open_ = read_broker("amqps://u:p@h/v?ssl_cert_reqs=none")
    assert isinstance(open_, RabbitAddress)
    assert (open_.url, open_.tls) == ("amqps://u:p@h/v", {"cert_reqs": ssl.CERT_NONE})


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("kafka://h", "none of these kinds"),
        ("h:6379", "none of these kinds"),
        ("redis+cluster://h", "Cluster"),
        ("sentinel://h:26379/0", "master_name"),
        ("redis://a;redis://b", "sentinels only"),
        ("redis://h/zero", "number of a database"),
        ("redis://h:port/0", "port"),
        ("redis://h?ssl_cert_reqs=required", "TLS is rediss://"),
        ("redis://h?timeout=3", "means nothing here"),
        ("rediss://h?ssl_cert_reqs=always", "required, optional, none"),
        ("rediss://h?ssl_ca_file=x", "ssl_ca_certs"),
        ("unix://run/redis.sock", "three slashes"),
        ("amqp://h?heartbeat=1", "means nothing here"),
        ("amqps://h;amqps://i", "several servers"),
        ("redis://[h/0", "percent-encoded"),
    ],
)
def test_an_address_that_cannot_work_is_refused_with_the_reason(url: str, why: str) -> None:
    """When the configuration is read, and without quoting the address."""
    secret = url.replace("://", "://u:hunter2@", 1)
    with pytest.raises(AddressRefused, match=why):
        read_broker(secret)
    with pytest.raises(ConfigError, match=why) as refused:
        Settings.load(environ={"COUNTERFOIL_BROKER__URL": secret})
    assert "BROKER" in refused.value.key
    assert "hunter2" not in f"{refused.value}{refused.value.__cause__}{refused.value.__context__}"


@pytest.mark.parametrize("password", ["hunter2：x", "hun?ter2", "hunter2＠", "hun#ter2", "[hunter2"])
@pytest.mark.parametrize("kind", ["redis", "amqp", "rediss"])
def test_no_part_of_a_password_is_in_an_error(kind: str, password: str) -> None:
    """Where a special character is not percent-encoded, the rest of it stands where something else is looked for."""
    with pytest.raises(ConfigError, match="percent-encoded") as refused:
        Settings.load(environ={"COUNTERFOIL_BROKER__URL": f"{kind}://:{password}@h/0"})
    assert "ter2" not in f"{refused.value}{refused.value.__cause__}{refused.value.__context__}"


def test_a_list_of_sentinels_has_one_login_and_one_database() -> None:
    """Wherever it stands; two that differ are refused."""
    found = read_redis("sentinel://:A@a:26379/2;sentinel://b:26379?master_name=m")
    assert (found.password, found.database) == ("A", 2)
    with pytest.raises(AddressRefused, match="password"):
        read_redis("sentinel://:A@a:26379;sentinel://:B@b:26379/0?master_name=m")


def test_spellings_that_either_client_takes() -> None:
    """Upper case, spaces around it, a zone of an IPv6 address."""
    assert read_redis(" REDIS://h:1/2 ").hosts == (("h", 1),)
    assert read_redis("redis://[fe80::1%25eth0]/0").hosts == (("fe80::1%eth0", 6379),)
    assert read_broker("AMQP://u:p@h/v") == RabbitAddress("amqp://u:p@h/v")


def test_a_file_that_is_not_there_is_told_where_it_is_used(tmp_path: Path) -> None:
    """An agent with the same configuration needs none of it."""
    url = f"rediss://h?ssl_ca_certs={tmp_path}/ca.pem"
    settings = Settings.load(environ={"COUNTERFOIL_BROKER__URL": url})
    assert settings.admission_url() == url
    with pytest.raises(ConfigError, match=r"ssl_ca_certs that cannot be read .*ca\.pem"):
        broker_app(url=url, key_prefix="cf:", queues=[])
    with pytest.raises(ConfigError, match="cannot be read"):
        check_address_files(settings)
    with pytest.raises(AddressRefused, match="cannot be read"):
        redis_client(read_redis(url), timeout_s=1)


def test_where_counters_can_be() -> None:
    """In every kind of Redis; a RabbitMQ keeps none."""
    assert is_redis("sentinel://h")
    assert is_redis("redis+socket:///x")
    assert not is_redis("amqp://h")


def test_a_broker_that_answers_with_an_error_ends_no_worker() -> None:
    """A Redis that was demoted or loads its data does so for a while."""
    assert broker_app(url="redis://h", key_prefix="cf:", queues=[]).conf.broker_channel_error_retry is True


@pytest.mark.parametrize(
    ("url", "queue_type", "arguments"),
    [
        ("amqp://h", "quorum", {"x-queue-type": "quorum"}),
        ("amqp://h", "classic", {}),
        ("redis://h", "quorum", {}),
    ],
)
def test_queues_of_a_kind(url: str, queue_type: str, arguments: dict[str, str]) -> None:
    """Quorum queues are RabbitMQ's."""
    app = broker_app(url=url, key_prefix="cf:", queues=["q"], queue_type=queue_type)
    [queue] = app.conf.task_queues
    assert queue.queue_arguments == arguments
    sent: list[Queue] = []
    app.send_task = lambda *_, queue, **__: sent.append(queue)
    send_wake_ups(app, None, queue="q", wake_ups=[WakeUp("act_1", 1)], publish_count=1)  # type: ignore[arg-type]
    assert [queue.queue_arguments for queue in sent] == [arguments], "the relay declares it alike"
