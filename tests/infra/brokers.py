"""Redis in each way that a fleet may be given one, Sentinel before a pair of them, and RabbitMQ; on loopback alone."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import redis
from kombu.connection import Connection
from tests.infra.servers import READY_S, Place, Server, own_port, program, until

from counterfoil.stack.server import HOST

MASTER = "mymaster"
"""The name under which Sentinel knows the pair."""


@dataclass(frozen=True, slots=True)
class Certificates:
    """A CA of the test's own, with a server certificate for 127.0.0.1 and localhost."""

    ca: Path
    certificate: Path
    key: Path

    @classmethod
    def made(cls, place: Place, name: str) -> Certificates:
        """By openssl; the test skips where that is not installed."""
        openssl, folder = program("openssl"), place.path / name
        folder.mkdir()
        folder.chmod(0o755)
        made = cls(ca=folder / "ca.pem", certificate=folder / "server.pem", key=folder / "server.key")
        own, wish, names = folder / "ca.key", folder / "server.csr", folder / "names"
        names.write_text(f"subjectAltName=IP:{HOST},DNS:localhost\nextendedKeyUsage=serverAuth\n")
        signed = ("-CA", made.ca, "-CAkey", own, "-CAcreateserial")
        fresh = ("-newkey", "rsa:2048", "-nodes")
        for words in (
            ("req", "-x509", *fresh, "-days", "2", "-subj", f"/CN={name}", "-keyout", own, "-out", made.ca),
            ("req", *fresh, "-subj", f"/CN={HOST}", "-keyout", made.key, "-out", wish),
            ("x509", "-req", *signed, "-in", wish, "-days", "2", "-extfile", names, "-out", made.certificate),
        ):
            subprocess.run([openssl, *map(str, words)], check=True, capture_output=True, timeout=READY_S)
        place.give(made.key)
        return made


class Redis(Server):
    """A Redis with a password that keeps nothing. With certificates it takes TLS alone; a replica follows from the start."""

    def __init__(
        self,
        place: Place,
        name: str = "redis",
        *,
        tls: Certificates | None = None,
        replica_of: Redis | None = None,
    ) -> None:
        super().__init__(place, name)
        self._program = program("redis-server")
        self.password = place.home.secret("redis")
        self.socket = self.folder / "redis.sock"
        self._tls = tls
        self._replica_of = replica_of
        self._conf = self.folder / "redis.conf"

    @property
    def url(self) -> str:
        """The default user's, over TCP; of one with TLS it names no certificate yet."""
        scheme = "redis" if self._tls is None else "rediss"
        return f"{scheme}://:{self.password}@{HOST}:{self.port}/0"

    @property
    def socket_url(self) -> str:
        """Over the Unix socket, as redis-py spells it."""
        return f"unix://:{self.password}@{self.socket}?db=0"

    @property
    def celery_socket_url(self) -> str:
        """The same as Celery spells it."""
        return f"redis+socket://:{self.password}@{self.socket}?virtual_host=0"

    def grant(self, user: str, prefix: str) -> str:
        """Makes a user who may touch keys and channels of this prefix alone, as docs/production.md says; gives the URL."""
        channels = (f"&{prefix}*", f"&{prefix}/0.celeryev/worker.*", f"&{prefix}/0.celery.pidbox")
        rules = (
            "on",
            f">{self.password}",
            "resetkeys",
            f"~{prefix}*",
            "resetchannels",
            *channels,
            "+@all",
            "-@dangerous",
        )
        with self.client() as client:
            client.execute_command("ACL", "SETUSER", user, *rules)
        return f"redis://{user}:{self.password}@{HOST}:{self.port}/0"

    def client(self) -> redis.Redis:
        """The administrator's, over the socket whatever else there is."""
        return redis.Redis(
            unix_socket_path=str(self.socket), password=self.password, socket_timeout=2, decode_responses=True
        )

    def command(self, *words: object) -> Any:
        """What the administrator's command answers."""
        with self.client() as client:
            return client.execute_command(*map(str, words))

    def prepare(self) -> None:
        lines = [
            f"bind {HOST}",
            f"port {0 if self._tls else self.port}",
            f"unixsocket {self.socket}",
            f"dir {self.folder}",
            f"requirepass {self.password}",
            f"masterauth {self.password}",
            'save ""',
            "repl-diskless-sync-delay 0",
        ]
        if self._tls is not None:
            lines += [f"tls-port {self.port}", "tls-auth-clients no", f"tls-ca-cert-file {self._tls.ca}"]
            lines += [f"tls-cert-file {self._tls.certificate}", f"tls-key-file {self._tls.key}"]
        if self._replica_of is not None:
            lines.append(f"replicaof {HOST} {self._replica_of.port}")
        self.place.write(self._conf, "\n".join([*lines, ""]))

    def argv(self) -> list[str]:
        return [self._program, str(self._conf)]

    def answers(self) -> bool:
        try:
            with self.client() as client:
                if self._replica_of is None:
                    return bool(client.ping())
                return client.info("replication").get("master_link_status") in ("up",)
        except (redis.RedisError, OSError):
            return False


class Sentinel(Server):
    """One Sentinel with quorum 1, which makes the replica the master two seconds after the master is gone."""

    def __init__(self, place: Place, master: Redis) -> None:
        super().__init__(place, "sentinel")
        self._program = program("redis-sentinel")
        self._master = master
        self._conf = self.folder / "sentinel.conf"

    @property
    def url(self) -> str:
        """As Celery is told: the password is the servers', and Sentinel has none."""
        return f"{self._one}/0?master_name={MASTER}"

    @property
    def _one(self) -> str:
        return f"sentinel://:{quote(self._master.password)}@{HOST}:{self.port}"

    @property
    def listed_url(self) -> str:
        """The same after another Sentinel, which is away."""
        away = f"sentinel://:{quote(self._master.password)}@{HOST}:{own_port()}"
        return f"{away};{self.url}"

    def prepare(self) -> None:
        lines = [
            f"bind {HOST}",
            f"port {self.port}",
            f"dir {self.folder}",
            "protected-mode no",  # it has no password
            f"sentinel monitor {MASTER} {HOST} {self._master.port} 1",
            f"sentinel auth-pass {MASTER} {self._master.password}",
            f"sentinel down-after-milliseconds {MASTER} 2000",
            f"sentinel failover-timeout {MASTER} 10000",
        ]
        self.place.write(self._conf, "\n".join([*lines, ""]))

    def argv(self) -> list[str]:
        return [self._program, str(self._conf)]

    def answers(self) -> bool:
        """It knows the master and has found the replica."""
        try:
            with redis.Redis(host=HOST, port=self.port, socket_timeout=2) as client:
                master = client.sentinel_master(MASTER)
                return int(master["num-slaves"]) > 0 and bool(client.sentinel_slaves(MASTER))
        except (redis.RedisError, OSError):
            return False

    def master_port(self) -> int:
        """Where it sends clients now."""
        with redis.Redis(host=HOST, port=self.port, socket_timeout=2, decode_responses=True) as client:
            return int(client.sentinel_get_master_addr_by_name(MASTER)[1])

    def wait_for(self, master: Redis) -> None:
        """Until it sends clients to this one, which takes writes."""
        until(lambda: self.master_port() == master.port, what="the failover")
        until(lambda: master.command("ROLE")[0] == "master", what="the promotion")


class RabbitMq(Server):
    """RabbitMQ with a node name, data and an epmd of its own; its user is `guest`, who may come from loopback."""

    def __init__(self, place: Place) -> None:
        super().__init__(place, "rabbitmq")
        program("rabbitmq-server")  # what it starts is for root alone; the script beside it is for any user
        self._script = "/usr/lib/rabbitmq/bin/rabbitmq-server"
        self._epmd_port, self._dist_port = own_port(), own_port()
        self._epmd: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@{HOST}:{self.port}//"

    def environ(self) -> Mapping[str, str]:
        return {
            "RABBITMQ_NODENAME": f"cf{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": HOST,
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self._dist_port),
            "RABBITMQ_MNESIA_BASE": str(self.folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(self.folder),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_PID_FILE": str(self.folder / "pid"),
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "plugins"),
            "RABBITMQ_CONF_ENV_FILE": str(self.folder / "none"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": HOST,
        }

    def prepare(self) -> None:
        self.place.write(self.folder / "plugins", "[].\n")
        self.place.write(self.folder / "rabbitmq.conf", "vm_memory_high_watermark.absolute = 512MB\n")
        self._epmd = self.spawn([program("epmd"), "-port", str(self._epmd_port), "-address", HOST])

    def argv(self) -> Sequence[str]:
        return [self._script]

    def kill(self) -> None:
        super().kill()
        if self._epmd is not None:
            self._epmd.kill()
            self._epmd.wait(timeout=READY_S)

    def control(self, *words: str) -> None:
        """`rabbitmqctl`, to its end."""
        self.finish(["/usr/lib/rabbitmq/bin/rabbitmqctl", *words])

    def crash(self) -> None:
        """SIGKILL; `start` brings it back with what it had written down."""
        super().kill()

    def answers(self) -> bool:
        try:
            with Connection(self.url, connect_timeout=2) as connection:
                connection.connect()
        except (OSError, *Connection("amqp://").connection_errors):
            return False
        return True
