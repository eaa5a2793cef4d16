"""The local stack's servers: found again, restarted, private, and never confused with somebody else's."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import psycopg
import pytest
import redis

from counterfoil.stack import home as home_module
from counterfoil.stack.databases import prepare_database
from counterfoil.stack.errors import StackError
from counterfoil.stack.home import Home, home
from counterfoil.stack.postgres import Postgres
from counterfoil.stack.processes import is_alive, recall, remember
from counterfoil.stack.services import Services, Urls
from counterfoil.stack.valkey import Valkey

AS_ROOT = os.geteuid() == 0


def until(condition: Callable[[], object], within_s: float = 10.0) -> None:
    """Wait until the condition holds."""
    pause = threading.Event()
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        pause.wait(0.01)


def run_python(code: str, made: Home) -> subprocess.Popen[str]:
    """Run code in another process, with `h` as this home in it."""
    environ = {"COUNTERFOIL_HOME": str(made.path), "COUNTERFOIL_POSTGRES": str(made.postgres_major)}
    head = textwrap.dedent(f"""
        import signal, sys
        from pathlib import Path
        from counterfoil.stack.home import home
        from counterfoil.stack.services import Services
        h = home(Path("/"), environ={environ!r})
    """)
    return subprocess.Popen([sys.executable, "-c", head + textwrap.dedent(code)], stdout=subprocess.PIPE, text=True)


def servers(made: Home) -> tuple[psutil.Process, psutil.Process]:
    """The two live servers of a home."""
    postgres, valkey = Postgres(made).process(), Valkey(made).process()
    assert postgres is not None
    assert valkey is not None
    return postgres, valkey


def execute(url: str, statement: str) -> list[tuple[object, ...]]:
    """Run a statement in a transaction of its own."""
    with psycopg.connect(url) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


@pytest.fixture
def folder() -> Iterator[Path]:
    """An empty folder that the servers' user can enter, unlike pytest's own."""
    made = Path(tempfile.mkdtemp(prefix="counterfoil-stack-"))
    made.chmod(0o755)
    yield made
    for path in (made / "home", made / "project" / ".counterfoil"):
        if path.exists():
            Services.stop(home(Path("/"), environ={"COUNTERFOIL_HOME": str(path.resolve())}))
    shutil.rmtree(made)


@pytest.fixture
def new_home(folder: Path) -> Home:
    """A home in which nothing was started yet."""
    return home(folder, environ={"COUNTERFOIL_HOME": str(folder / "home")})


@pytest.fixture(scope="module")
def own_home() -> Iterator[Home]:
    """A home whose servers these tests may kill."""
    folder = Path(tempfile.mkdtemp(prefix="counterfoil-stack-"))
    folder.chmod(0o755)
    made = home(folder, environ={"COUNTERFOIL_HOME": str(folder / "home")})
    yield made
    Services.stop(made)
    shutil.rmtree(folder)


@pytest.fixture
def urls(own_home: Home) -> Urls:
    """That home's URLs, with both servers running."""
    return Services.start(own_home)


def test_start_again_changes_nothing(own_home: Home, urls: Urls) -> None:
    """A second start gives the same URLs and the same processes."""
    before = servers(own_home)
    assert Services.start(own_home) == urls
    assert servers(own_home) == before
    assert Services.running(own_home)


def test_two_processes_share_one_start(new_home: Home, own_home: Home, urls: Urls) -> None:
    """Processes that start an empty home at the same moment get the same servers; stopping it ends no other home's."""
    code = "u = Services.start(h); print(u.postgres, u.valkey)"
    both = [run_python(code, new_home) for _ in range(2)]
    answers = {process.communicate(timeout=60)[0] for process in both}
    ours = Services.start(new_home)
    assert answers == {f"{ours.postgres} {ours.valkey}\n"}

    ended = servers(new_home)
    Services.stop(new_home)
    assert not any(is_alive(process) for process in ended)
    assert not Services.running(new_home)
    assert Services.running(own_home)
    Services.stop(new_home)  # nothing left to stop


def test_servers_outlive_a_killed_starter(own_home: Home) -> None:
    """After kill -9 of the process that started them, the next start finds the same servers, its lock free."""
    Services.stop(own_home)
    starter = run_python("Services.start(h)\nprint('up', flush=True)\nsignal.pause()", own_home)
    assert starter.stdout is not None
    assert starter.stdout.readline() == "up\n"
    before = servers(own_home)
    starter.kill()
    starter.communicate()
    Services.start(own_home)
    assert servers(own_home) == before


@pytest.mark.parametrize(
    "moment", ["home/postgres-18/new.*", "home/run/postgres-18.port"], ids=["during initdb", "before the first answer"]
)
def test_start_that_was_killed_halfway(new_home: Home, folder: Path, moment: str) -> None:
    """kill -9 in the middle of the very first start leaves nothing that a second start stumbles over."""
    starter = run_python("Services.start(h)", new_home)
    until(lambda: any(folder.glob(moment)))
    starter.kill()
    starter.communicate()
    urls = Services.start(new_home)
    assert execute(urls.postgres, "SELECT 1") == [(1,)]
    assert [path.name for path in new_home.postgres.iterdir()] == ["data"]
    Services.stop(new_home)


def test_killed_servers_recover_their_data(own_home: Home, urls: Urls) -> None:
    """After kill -9 of both servers, start brings them back with all that was committed."""
    execute(urls.postgres, "CREATE TABLE IF NOT EXISTS kept AS SELECT 42 AS answer")
    with redis.Redis.from_url(urls.valkey) as client:
        client.set("kept", "42")
    killed = servers(own_home)
    for process in killed:
        process.kill()
    assert Services.start(own_home) == urls
    assert not set(servers(own_home)) & set(killed)
    assert execute(urls.postgres, "SELECT answer FROM kept") == [(42,)]
    with redis.Redis.from_url(urls.valkey) as client:
        assert client.get("kept") == b"42"


def test_busy_backend_of_a_dead_postgres_does_not_block(own_home: Home, urls: Urls) -> None:
    """A backend that goes on computing after its server was killed is ended, and the data is served again."""
    connection = psycopg.connect(urls.postgres, autocommit=True)
    backend = psutil.Process(connection.info.backend_pid)
    ended: list[psycopg.Error] = []

    def compute() -> None:
        try:
            connection.execute("DO $$ BEGIN LOOP PERFORM 1; END LOOP; END $$")
        except psycopg.Error as error:
            ended.append(error)

    endless = threading.Thread(target=compute)
    endless.start()
    try:
        computing = f"SELECT 1 FROM pg_stat_activity WHERE pid = {backend.pid} AND query LIKE 'DO %'"
        until(lambda: execute(urls.postgres, computing))
        servers(own_home)[0].kill()
        Services.start(own_home)
        assert not is_alive(backend)
    finally:
        if is_alive(backend):
            backend.kill()
        endless.join()
        connection.close()
    assert [type(error) for error in ended] == [psycopg.OperationalError]
    assert execute(urls.postgres, "SELECT 1") == [(1,)]


def test_stale_lock_file_with_a_reused_id(own_home: Home, urls: Urls) -> None:
    """A lock file of a dead Postgres whose id now belongs to another live process of its user does not block."""
    postgres = servers(own_home)[0]
    lock_file = own_home.postgres / "data" / "postmaster.pid"
    lines = lock_file.read_text().splitlines(keepends=True)
    postgres.send_signal(signal.SIGKILL)
    until(lambda: not is_alive(postgres))
    other = subprocess.Popen(["sleep", "60"], user=own_home.user.uid if own_home.user else None)
    try:
        lock_file.write_text("".join([f"{other.pid}\n", *lines[1:]]))
        Services.start(own_home)
        assert servers(own_home)[0].pid != other.pid
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_record_of_another_process_is_not_believed(own_home: Home, urls: Urls) -> None:
    """A record that names a live process which is not the server, or no record, hides no server and is never obeyed."""
    before = servers(own_home)
    record = own_home.run / "postgres-18.json"
    remember(record, os.getpid())
    assert servers(own_home) == before
    record.unlink()
    assert servers(own_home) == before
    assert Services.start(own_home) == urls


def test_process_with_the_same_id_but_another_start_is_another(tmp_path: Path) -> None:
    """A process id is only believed together with the start time that was recorded."""
    record = tmp_path / "record.json"
    remember(record, os.getpid())
    assert recall(record, lambda _: True) == psutil.Process()
    assert recall(record, lambda _: False) is None
    content = json.loads(record.read_text())
    record.write_text(json.dumps({**content, "started_s": content["started_s"] - 3600}))
    assert recall(record, lambda _: True) is None
    record.write_text("{")
    assert recall(record, lambda _: True) is None


def test_zombie_is_not_alive() -> None:
    """A killed process that nobody has waited for counts as dead."""
    child = subprocess.Popen(["sleep", "60"])
    process = psutil.Process(child.pid)
    assert is_alive(process)
    os.kill(child.pid, signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert process.status() == psutil.STATUS_ZOMBIE
    assert not is_alive(process)
    child.wait()


def test_taken_port_is_given_up(own_home: Home, urls: Urls) -> None:
    """When somebody else listens on the remembered port, the server takes a new one and the URLs say so."""
    Services.stop(own_home)
    with socket.create_server(("127.0.0.1", urls.port)):
        moved = Services.start(own_home)
        assert moved.port != urls.port
        assert execute(moved.postgres, "SELECT 1") == [(1,)]
    assert Services.start(own_home) == moved


def test_wrong_password_is_refused(urls: Urls) -> None:
    """Nobody gets in without the password: not the superuser, not a client of Valkey."""
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(urls.postgres_as("postgres", "wrong", "postgres"))
    password = urls.valkey.removeprefix("redis://:").split("@")[0]
    with (
        redis.Redis.from_url(urls.valkey.replace(password, "wrong")) as client,
        pytest.raises(redis.AuthenticationError),
    ):
        client.ping()
    bare = f"redis://{urls.valkey.split('@')[1]}"
    with redis.Redis.from_url(bare) as client, pytest.raises(redis.AuthenticationError):
        client.ping()
    assert urls.password not in repr(urls)
    assert urls.valkey not in repr(urls)


def test_secrets_are_private(own_home: Home, urls: Urls) -> None:
    """Password files are 0600, records, logs and data are closed to others, and no command line holds a password."""
    for secret in (own_home.path / "secrets").iterdir():
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    for closed in (own_home.run, own_home.log, own_home.path / "secrets", own_home.postgres, own_home.valkey):
        for path in (closed, *closed.rglob("*")):
            assert stat.S_IMODE(path.lstat().st_mode) & 0o077 == 0, path
    secrets = {path.read_text() for path in (own_home.path / "secrets").iterdir()}
    for process in servers(own_home):
        assert not any(secret in part for part in process.cmdline() for secret in secrets)


def test_servers_listen_on_loopback_alone(own_home: Home, urls: Urls) -> None:
    """Both servers listen on 127.0.0.1 and on no other address or socket."""
    for process in servers(own_home):
        listening = [c for c in process.net_connections("all") if c.status == psutil.CONN_LISTEN]
        assert {connection.laddr.ip for connection in listening} == {"127.0.0.1"}
        assert not process.net_connections("unix")


def test_servers_are_durable(urls: Urls) -> None:
    """Postgres syncs every commit, checks its pages and hashes passwords; Valkey logs every write and evicts nothing."""
    shown = execute(
        urls.postgres,
        "SELECT current_setting('fsync'), current_setting('synchronous_commit'), current_setting('data_checksums'),"
        " current_setting('password_encryption'), current_setting('max_connections'), current_setting('timezone')",
    )
    assert shown == [("on", "on", "on", "scram-sha-256", "200", "UTC")]
    with redis.Redis.from_url(urls.valkey) as client:
        wanted = {"appendonly": "yes", "appendfsync": "everysec", "maxmemory-policy": "noeviction"}
        assert client.config_get(*wanted) == wanted


def test_failing_statement_leaves_no_argument_in_the_log(own_home: Home, urls: Urls) -> None:
    """What a refused statement carried, and what the refusal repeats of it, stays out of Postgres' log."""
    with pytest.raises(psycopg.errors.CheckViolation):
        execute(
            urls.postgres, "CREATE TABLE refusing (card text CHECK (card = '')); INSERT INTO refusing VALUES ('4242x')"
        )
    log = (own_home.log / "postgres-18.log").read_text()
    assert "refusing" in log
    assert "4242x" not in log


def test_prepare_database_twice(own_home: Home, urls: Urls) -> None:
    """Preparing again keeps every password and login, and each URL logs in under its own role."""
    first = prepare_database(own_home, urls, tenants=("acme",))
    assert prepare_database(own_home, urls, tenants=("acme", "globex")) == first
    assert {role: execute(url, "SELECT session_user")[0][0] for role, url in first.items()} == {
        "owner": "postgres",
        "agent": "cf_agent",
        "worker": "cf_worker",
        "operator": "cf_operator",
        "reader": "cf_reader",
    }
    granted = execute(
        first["owner"], "SELECT tenant_id FROM counterfoil.principal WHERE role_name = 'cf_agent' ORDER BY 1"
    )
    assert granted == [("acme",), ("globex",)]


def test_lost_superuser_password_says_what_to_do(new_home: Home) -> None:
    """Data whose password is lost is not touched, and the message names the way out."""
    (new_home.postgres / "data").mkdir()
    with pytest.raises(StackError, match=r"Move .* away"):
        Services.start(new_home)


def test_postgres_16_on_request(folder: Path) -> None:
    """COUNTERFOIL_POSTGRES=16 runs Postgres 16, which a stop without it ends as well; another number is refused."""
    environ = {"COUNTERFOIL_HOME": str(folder / "home"), "COUNTERFOIL_POSTGRES": "16"}
    made = home(folder, environ=environ)
    urls = Services.start(made)
    assert execute(urls.postgres, "SELECT current_setting('server_version_num')::int / 10000") == [(16,)]
    Services.stop(home(folder, environ={"COUNTERFOIL_HOME": str(folder / "home")}))
    assert not Services.running(made)
    with pytest.raises(StackError, match="18 or 16"):
        home(folder, environ={**environ, "COUNTERFOIL_POSTGRES": "17"})


@pytest.mark.skipif(AS_ROOT, reason="root's state is elsewhere")
def test_home_is_in_the_project(folder: Path) -> None:
    """Without root the state is in the project's .counterfoil, closed to others and out of version control."""
    made = home(folder, environ={})
    assert made.path == folder / ".counterfoil"
    assert stat.S_IMODE(made.path.stat().st_mode) == 0o700
    assert (made.path / ".gitignore").read_text() == "*\n"


@pytest.mark.skipif(not AS_ROOT, reason="only root's servers run as another user")
class TestAsRoot:
    def test_home_is_linked(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Root's state is in a system folder that the project links to; a copied project does not share it."""
        monkeypatch.setattr(home_module, "SYSTEM_STATE", folder / "state")
        first, second = folder / "a", folder / "b"
        first.mkdir(mode=0o700)
        made = home(first, environ={})
        assert (first / ".counterfoil").resolve() == made.path
        assert made.path.parent == folder / "state"
        assert made.user is not None
        assert made.valkey.stat().st_uid == made.user.uid != 0
        assert stat.S_IMODE(first.stat().st_mode) == 0o700
        assert home(first, environ={}) == made

        shutil.copytree(first, second, symlinks=True)
        assert home(second, environ={}).path != made.path

    def test_folder_in_the_way_is_refused(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A .counterfoil that another user's stack has made is left alone, and the message says what to do."""
        monkeypatch.setattr(home_module, "SYSTEM_STATE", folder / "state")
        (folder / ".counterfoil").mkdir()
        with pytest.raises(StackError, match="in the way"):
            home(folder, environ={})

    def test_closed_parent_is_refused_not_opened(self, folder: Path) -> None:
        """A place that the servers' user cannot enter is refused by name; no folder's mode is changed."""
        closed = folder / "closed"
        closed.mkdir(mode=0o700)
        with pytest.raises(StackError, match=f"cannot enter {closed}"):
            home(folder, environ={"COUNTERFOIL_HOME": str(closed / "home")})
        assert stat.S_IMODE(closed.stat().st_mode) == 0o700
