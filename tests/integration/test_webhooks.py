"""The process that hears providers, over real HTTP and a real ledger: who is answered what, and which rows move sooner."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import requests
import uvicorn
from structlog.testing import capture_logs

from counterfoil.cli.main import main
from counterfoil.ledger.errors import ConfigError
from counterfoil.settings import Settings
from counterfoil.webhooks import app, server
from counterfoil.webhooks.server import BODY_BYTES_MAX, check_secrets

if TYPE_CHECKING:
    from tests.conftest import Database
    from tests.integration.conftest import Rows

KEY = "1" * 32
EVENT = json.dumps({"object": "event", "data": {"object": {"metadata": {"counterfoil_key": KEY}}}}).encode()
STRANGE = json.dumps({"object": "event", "data": {"object": {"metadata": {"counterfoil_key": "f" * 32}}}}).encode()


class Hooks:
    """A running server and its secrets; `url` is where it listens."""

    def __init__(self, folder: Path, database: str) -> None:
        self.files = {name: folder / name for name in ("stripe", "eu", "jira", "zendesk_old", "zendesk_new")}
        for name, path in self.files.items():
            path.write_text(f"secret of {name}\n")
        self.settings = Settings(
            database={"url": database},
            providers={
                "stripe": {
                    "webhook_secret_file": self.files["stripe"],
                    "accounts": {"eu": {"webhook_secret_file": self.files["eu"]}, "same": {}},
                },
                "jira": {"webhook_secret_file": self.files["jira"]},
                "zendesk": {"webhook_secret_files": (self.files["zendesk_old"], self.files["zendesk_new"])},
                "email": {"webhook_secret_file": self.files["stripe"]},
            },
        )
        config = uvicorn.Config(app(self.settings), log_config=None, http="h11", ws="none", lifespan="on", port=0)
        self._server = uvicorn.Server(config)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.run, args=([self._listening],))
        self._thread.start()

    def post(self, provider: str, body: bytes = EVENT, headers: dict[str, str] | None = None) -> requests.Response:
        """Signed by Stripe's default account unless it says otherwise."""
        headers = signed("secret of stripe", body) if headers is None else headers
        return requests.post(f"{self.url}/{provider}", data=body, headers=headers, timeout=20)

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join(30)
        assert not self._thread.is_alive()


def signed(secret: str, body: bytes = EVENT, at: float | None = None) -> dict[str, str]:
    seconds = str(int(time.time() if at is None else at))
    digest = hmac.new(secret.encode(), seconds.encode() + b"." + body, hashlib.sha256).hexdigest()
    return {"Stripe-Signature": f"t={seconds},v1={digest}"}


@pytest.fixture
def hooks(tmp_path: Path, database: Database) -> Iterator[Hooks]:
    made = Hooks(tmp_path, database.url("worker"))
    yield made
    made.close()


@pytest.fixture
def waiting(rows: Rows) -> Callable[..., str]:
    """An uncertain row that would be looked at in an hour."""

    def build(**columns: Any) -> str:
        action_id = rows.build("uncertain", **{"key": KEY, "key_version": 1} | columns)
        rows.execute(
            action_id,
            "next_lookup_at = counterfoil.now() + interval '1 hour', updated_at = counterfoil.now() - interval '1 minute'",
        )
        return action_id

    return build


@pytest.fixture
def is_due(rows: Rows) -> Callable[[str], bool]:
    """Whether the row is to be looked at now."""
    statement = "SELECT next_lookup_at <= counterfoil.now() AS due FROM counterfoil.action WHERE action_id = %s"
    return lambda action_id: bool(rows.one(statement, action_id)["due"])


def told_apart(answer: requests.Response) -> tuple[int, bytes, set[str]]:
    """What a sender can learn from an answer."""
    return answer.status_code, answer.content, set(answer.headers)


def test_a_signed_event(hooks: Hooks, waiting: Callable[..., str], is_due: Callable[[str], bool]) -> None:
    """204, and the row that it names is due; the second and third time there is nothing to do."""
    action_id = waiting()
    answers = [hooks.post("stripe") for _ in range(3)]
    assert [told_apart(answer) for answer in answers] == [told_apart(answers[0])] * 3
    assert told_apart(answers[0])[:2] == (204, b"")
    assert is_due(action_id)


def test_the_same_answer_whatever_is_ours(hooks: Hooks, rows: Rows, waiting: Callable[..., str]) -> None:
    """Known and unknown keys, settled rows, no key, no JSON: whoever has signed it learns nothing of our rows."""
    waiting()
    rows.build("succeeded", key="2" * 32, key_version=1)
    bodies = [EVENT, STRANGE, EVENT.replace(KEY.encode(), b"2" * 32), b"{}", b"[]", b"", b"\xff", b"[" * 100_000]
    answers = [hooks.post("stripe", body) for body in bodies]
    assert [told_apart(answer) for answer in answers] == [told_apart(answers[0])] * len(bodies)


def test_forgeries_move_nothing(hooks: Hooks, waiting: Callable[..., str], is_due: Callable[[str], bool]) -> None:
    """Another secret, no signature, an old one, another provider's: one answer, and no row moves."""
    action_id = waiting()
    forged = [
        signed("guess"),
        {},
        signed("secret of stripe", at=time.time() - 301),
        signed("secret of stripe", STRANGE),
    ]
    forged += [signed("secret of stripe", at=time.time() + 330), {"Stripe-Signature": "x" * 10_000}]
    answers = [hooks.post("stripe", headers=headers) for headers in forged]
    answers.append(hooks.post("jira"))
    assert [told_apart(answer) for answer in answers] == [told_apart(answers[0])] * len(answers)
    assert told_apart(answers[0])[:2] == (400, b"")
    assert not is_due(action_id)


def test_accounts(hooks: Hooks, waiting: Callable[..., str], is_due: Callable[[str], bool]) -> None:
    """One account's secret moves its own rows, and those of accounts that were given no other secret."""
    mine, theirs, same = (
        waiting(account=account, key=str(number) * 32)
        for number, account in enumerate(("default", "eu", "same"), start=1)
    )

    def tell(secret: str) -> None:
        for number in (1, 2, 3):
            body = EVENT.replace(KEY.encode(), str(number).encode() * 32)
            assert hooks.post("stripe", body, signed(secret, body)).status_code == 204

    tell("secret of eu")
    assert [is_due(row) for row in (mine, theirs, same)] == [False, True, False]
    tell("secret of stripe")
    assert [is_due(row) for row in (mine, theirs, same)] == [True, True, True]


def test_jira_and_zendesk(hooks: Hooks, waiting: Callable[..., str], is_due: Callable[[str], bool]) -> None:
    """A ticket by its label or external id, a comment or note by its ticket, under either of two secrets."""
    ticket = waiting(provider="jira", key="2" * 32, target="1182")
    comment = waiting(provider="jira", key="3" * 32, target="SUP-12")
    note = waiting(provider="zendesk", key="4" * 32, target="35436")
    event = {"webhookEvent": "comment_created", "issue": {"key": "SUP-12", "fields": {"labels": [f"cf-{'2' * 32}"]}}}
    body = json.dumps(event).encode()
    digest = hmac.new(b"secret of jira", body, hashlib.sha256).hexdigest()
    assert hooks.post("jira", body, {"X-Hub-Signature": f"sha256={digest}"}).status_code == 204
    assert [is_due(row) for row in (ticket, comment, note)] == [True, True, False]

    body = json.dumps({"detail": {"id": "35436", "external_id": None}}).encode()
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    for secret in (b"secret of zendesk_old", b"secret of zendesk_new"):
        digest_64 = base64.b64encode(hmac.new(secret, when.encode() + body, hashlib.sha256).digest()).decode()
        headers = {"X-Zendesk-Webhook-Signature": digest_64, "X-Zendesk-Webhook-Signature-Timestamp": when}
        assert hooks.post("zendesk", body, headers).status_code == 204
    assert is_due(note)


def test_a_secret_is_replaced_in_its_file(hooks: Hooks) -> None:
    """The next event is held against the new one, without a restart; while there is no file, the event is sent again."""
    assert hooks.post("stripe").status_code == 204
    hooks.files["stripe"].write_text("new")
    assert hooks.post("stripe").status_code == 400
    assert hooks.post("stripe", headers=signed("new")).status_code == 204
    hooks.files["stripe"].unlink()
    assert hooks.post("stripe", headers=signed("new")).status_code == 503
    assert hooks.post("stripe", headers=signed("secret of eu")).status_code == 204, "whose secret can be read"


def test_what_is_not_served(hooks: Hooks) -> None:
    """Providers without a secret or without events, other paths and methods; health says that the process runs."""
    for path in ("linear", "email", "", "stripe/x", "healthz", "..%2fstripe", "STRIPE"):
        assert requests.post(f"{hooks.url}/{path}", timeout=20).status_code == 404, path
    for path in ("stripe/", "stripe%2f", "healthz/"):  # no redirect, which would go to whatever host the sender names
        answer = requests.post(f"{hooks.url}/{path}", headers={"Host": "x.example"}, allow_redirects=False, timeout=20)
        assert answer.status_code == 404, path
    for method in ("GET", "PUT", "DELETE", "OPTIONS"):
        assert requests.request(method, f"{hooks.url}/stripe", timeout=20).status_code == 405
    assert requests.get(f"{hooks.url}/healthz", timeout=20).text == "ok\n"


def test_too_large(hooks: Hooks) -> None:
    """The largest body is taken; one byte more is not, announced or not."""
    largest = EVENT + b" " * (BODY_BYTES_MAX - len(EVENT))
    assert hooks.post("stripe", largest, signed("secret of stripe", largest)).status_code == 204
    larger = largest + b" "
    assert hooks.post("stripe", larger, signed("secret of stripe", larger)).status_code == 413
    pieces = (larger[at : at + 100_000] for at in range(0, len(larger), 100_000))
    answer = requests.post(f"{hooks.url}/stripe", data=pieces, headers=signed("secret of stripe", larger), timeout=20)
    assert answer.status_code == 413
    with socket.create_connection(("127.0.0.1", hooks.port), timeout=20) as connection:
        connection.sendall(b"POST /stripe HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 413"), "not a byte of the body was waited for"


def test_too_slow(hooks: Hooks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever does not send what was announced is answered and cut off; whoever goes away harms nobody."""
    head = b"POST /stripe HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"
    with (
        monkeypatch.context() as hurried,
        socket.create_connection(("127.0.0.1", hooks.port), timeout=20) as connection,
    ):
        hurried.setattr(server, "READ_S", 0.2)
        connection.sendall(head)
        assert connection.recv(100).startswith(b"HTTP/1.1 408")
    with socket.create_connection(("127.0.0.1", hooks.port), timeout=20) as connection:
        connection.sendall(head)
    assert hooks.post("stripe").status_code == 204


def test_the_ledger_is_away(hooks: Hooks, database: Database, waiting: Callable[..., str], services: Any) -> None:
    """503, so that the provider sends it again; health goes on; a connection that was lost is made anew."""
    waiting()
    assert hooks.post("stripe").status_code == 204
    cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'counterfoil webhooks'"
    with psycopg.connect(services.postgres, autocommit=True) as admin:
        admin.execute(cut)
        assert hooks.post("stripe").status_code == 204
        admin.execute(f'ALTER DATABASE "{database.name}" ALLOW_CONNECTIONS false'.encode())
        admin.execute(cut)
        assert hooks.post("stripe").status_code == 503
        assert requests.get(f"{hooks.url}/healthz", timeout=20).status_code == 200
        assert hooks.post("stripe", headers=signed("guess")).status_code == 400, "known without the ledger"
        admin.execute(f'ALTER DATABASE "{database.name}" ALLOW_CONNECTIONS true'.encode())
    assert hooks.post("stripe").status_code == 204


def test_a_ledger_that_hangs(hooks: Hooks, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """The provider is answered in time whatever the ledger does."""
    with monkeypatch.context() as hurried, psycopg.connect(database.url("owner")) as connection:
        hurried.setattr(server, "ANSWER_S", 0.3)
        connection.execute("LOCK TABLE counterfoil.action IN ACCESS EXCLUSIVE MODE")
        assert hooks.post("stripe").status_code == 503
    assert hooks.post("stripe").status_code == 204


def test_nothing_of_an_event_is_logged(hooks: Hooks, waiting: Callable[..., str]) -> None:
    """Neither keys nor bodies nor secrets nor signatures: provider, account, code and a number."""
    waiting()
    with capture_logs() as logs:
        hooks.post("stripe")
        hooks.post("stripe", headers=signed("guess"))
        hooks.post("stripe", b"{}", signed("secret of stripe", b"{}"))
    assert [{name: value for name, value in line.items() if name != "log_level"} for line in logs] == [
        {"event": "webhook", "provider": "stripe", "accounts": ("default", "same"), "names_ours": True,
         "looked_up_sooner": 1},
        {"event": "webhook refused", "provider": "stripe", "code": "not_ours"},
        {"event": "webhook", "provider": "stripe", "accounts": ("default", "same"), "names_ours": False},
    ]  # fmt: skip


def test_the_command(
    tmp_path: Path, database: Database, waiting: Callable[..., str], is_due: Callable[[str], bool]
) -> None:
    """`counterfoil webhooks` says where it listens, hears events, and ends with 0 on SIGTERM, its connection closed."""
    action_id = waiting()
    (tmp_path / "secret").write_text("s")
    (tmp_path / "counterfoil.toml").write_text('[providers.stripe]\nwebhook_secret_file = "secret"\n')
    environment = {**os.environ, "COUNTERFOIL_DATABASE__URL": database.url("worker")}
    argv = [sys.executable, "-m", "counterfoil.cli", "webhooks", "--port", "0"]
    with subprocess.Popen(
        argv, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        try:
            assert said.startswith("webhooks ready on http://127.0.0.1:")
            url = said.split()[-1]
            assert requests.get(f"{url}/healthz", timeout=20).status_code == 200
            assert requests.post(f"{url}/stripe", data=EVENT, headers=signed("s"), timeout=20).status_code == 204
            assert is_due(action_id)
        finally:
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (0, ""), err
    [line] = [json.loads(line) for line in err.splitlines()]
    assert (line["event"], line["looked_up_sooner"]) == ("webhook", 1)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_before_it_serves(hooks: Hooks, signum: signal.Signals) -> None:
    """It ends as soon as it was asked to, also between saying that it is ready and serving: a signal is never lost."""
    handlers = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)}
    late = threading.Timer(10, os.kill, (os.getpid(), signum))  # without which a lost signal would hang this test
    late.start()
    try:
        began = time.monotonic()
        server.serve(
            hooks.settings,
            database=hooks.settings.database_address().url,
            host="127.0.0.1",
            port=0,
            ready=lambda *_: signal.raise_signal(signum),
        )
        assert time.monotonic() - began < 9
    finally:
        late.cancel()
        late.join()
        for each, handler in handlers.items():
            signal.signal(each, handler)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no provider has a webhook secret"),
        ('[providers.email]\nwebhook_secret_file = "secret"\n', "no provider has a webhook secret"),
        ('[providers.stripe]\nwebhook_secret_file = "gone"\n', "cannot be read"),
        ('[providers.jira.accounts.eu]\nwebhook_secret_files = ["secret", "gone"]\n', "cannot be read"),
        ('[providers.jira]\nwebhook_secret_file = "a"\nwebhook_secret_files = ["b"]\n', "not both"),
    ],
)
def test_it_does_not_start_without_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str, says: str
) -> None:
    """What can hear nobody, or not all that it was told to, says so at once, with exit code 2."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COUNTERFOIL_DATABASE__URL", "postgresql://nobody@127.0.0.1:1/none")
    Path("secret").write_text("s")
    Path("counterfoil.toml").write_text(text)
    with pytest.raises(SystemExit) as ended:
        main(["webhooks", "--port", "0"])
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


def test_a_port_that_is_taken(hooks: Hooks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Told as a mistake of the configuration."""
    check_secrets(hooks.settings)
    with pytest.raises(ConfigError, match="cannot listen"):
        server.serve(hooks.settings, database="", host="127.0.0.1", port=hooks.port, ready=lambda host, port: None)
