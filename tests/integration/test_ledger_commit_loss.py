"""The connection is lost while a statement commits: nobody acts on a row that is not theirs, nothing is done twice.

A small proxy stands between psycopg and Postgres and cuts one connection at a chosen moment: "before" the statement reached
the server, or "after" the server has committed it and before the answer came back.
"""

from __future__ import annotations

import select
import socket
import threading
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from psycopg.rows import dict_row

from counterfoil.ledger import claims, verdicts
from counterfoil.ledger.claims import ClaimedAction
from counterfoil.ledger.connection import CONFLICTS_MAX, RECONNECTS_MAX, Ledger
from counterfoil.ledger.errors import LedgerUnavailable

if TYPE_CHECKING:
    from tests.integration.conftest import Rows

Moment = Literal["before", "after"]
MOMENTS: tuple[Moment, ...] = ("before", "after")

READY_FOR_QUERY = b"Z\x00\x00\x00\x05I"
"""The server's last message after a statement outside of a transaction: by then it has committed."""


class Proxy:
    """Forwards to Postgres; `cut` arms it for the next statements that hold a text."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        assert parts.port is not None
        self._server = (parts.hostname, parts.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        port = self._listener.getsockname()[1]
        netloc = parts.netloc.replace(f":{parts.port}", f":{port}").replace(parts.hostname, "127.0.0.1")
        self._url = urlunsplit(parts._replace(netloc=netloc))
        self._armed: list[tuple[bytes, Moment]] = []
        self.cuts = 0
        self.open = True
        threading.Thread(target=self._accept, daemon=True).start()

    def url(self) -> str:
        """The database's URL by way of this proxy, in plain text so that statements can be recognised."""
        return self._url + ("&" if "?" in self._url else "?") + "sslmode=disable&gssencmode=disable"

    def cut(self, text: bytes, moment: Moment, times: int = 1) -> None:
        """Cuts the connections on which the next `times` statements with this text run."""
        self._armed.extend([(text, moment)] * times)

    def close(self) -> None:
        self.open = False
        self._listener.close()

    def _accept(self) -> None:
        while self.open:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if not self.open:
                client.close()
                return
            threading.Thread(target=self._forward, args=(client,), daemon=True).start()

    def _forward(self, client: socket.socket) -> None:
        with client, socket.create_connection(self._server) as server:
            while True:
                for source in select.select([client, server], [], [])[0]:
                    data = source.recv(1 << 20)
                    if not data:
                        return
                    if source is server:
                        client.sendall(data)
                        continue
                    moment = self._moment(data)
                    if moment is None:
                        server.sendall(data)
                        continue
                    if moment == "after":
                        server.sendall(data)
                        _read_until_committed(server)
                    self.cuts += 1
                    return

    def _moment(self, data: bytes) -> Moment | None:
        for armed in self._armed:
            if armed[0] in data:
                self._armed.remove(armed)
                return armed[1]
        return None


def _read_until_committed(server: socket.socket) -> None:
    answer = b""
    while not answer.endswith(READY_FOR_QUERY):
        data = server.recv(1 << 20)
        assert data, "the server closed the connection itself"
        answer += data


@pytest.fixture
def rows(shared_rows: Rows) -> Rows:
    """One database for the module: every test here looks at rows of its own."""
    return shared_rows


@pytest.fixture
def proxy(rows: Rows) -> Iterator[Proxy]:
    made = Proxy(rows.database.url("worker"))
    yield made
    made.close()


@pytest.fixture
def ledger(rows: Rows, proxy: Proxy) -> Ledger:
    """A worker's ledger by way of the proxy."""
    return rows.ledger(url=proxy.url())


CLAIM = b"change_reason = 'claimed'"


@pytest.mark.case("I3")
def test_claim_that_did_not_arrive(rows: Rows, proxy: Proxy, ledger: Ledger) -> None:
    """The claim never reached the server: the worker owns nothing, and the row waits for the next one."""
    action_id = rows.build("ready", attempt_count=0)
    proxy.cut(CLAIM, "before")
    assert rows.claim(ledger, action_id) is None
    assert proxy.cuts == 1
    row = rows.read(action_id)
    assert (row["state"], row["attempt_count"]) == ("ready", 0)
    assert rows.wake_ups(action_id) == [row["generation"]]
    assert rows.claimed(ledger, action_id).attempt_count == 1


@pytest.mark.case("I3")
def test_claim_that_committed_unheard(rows: Rows, proxy: Proxy, ledger: Ledger) -> None:
    """The claim committed and its answer was lost: the worker finds its own token on the row, and one attempt counted."""
    action_id = rows.build("ready", attempt_count=0)
    proxy.cut(CLAIM, "after")
    fence = uuid.uuid4()
    action = rows.claimed(ledger, action_id, fence=fence)
    assert (proxy.cuts, action.fence, action.attempt_count) == (1, fence, 1)
    heard = rows.claimed(rows.ledger(), rows.build("ready", attempt_count=0))
    assert {type(getattr(action, n)) for n in ClaimedAction.__dataclass_fields__} == {
        type(getattr(heard, n)) for n in ClaimedAction.__dataclass_fields__
    }
    assert action.key_age_s >= 0
    row = rows.read(action_id)
    assert (row["state"], row["fence"], row["attempt_count"]) == ("executing", fence, 1)
    assert len(rows.all("SELECT FROM counterfoil.attempt WHERE action_id = %s", action_id)) == 1


@pytest.mark.case("I3")
def test_claim_that_another_worker_won(rows: Rows, proxy: Proxy, ledger: Ledger) -> None:
    """The answer was lost and the row is another's: it is not mine, whoever holds it."""
    action_id = rows.build("ready", attempt_count=0)
    row = rows.read(action_id)
    other = rows.claimed(rows.ledger(), action_id)
    proxy.cut(CLAIM, "after")
    mine = rows.claim(ledger, action_id, wake_up=claims.WakeUp(action_id, row["generation"]))
    assert (mine, proxy.cuts) == (None, 1)
    assert rows.read(action_id)["fence"] == other.fence


@pytest.mark.case("I3")
def test_claim_whose_row_cannot_be_read_again(rows: Rows, proxy: Proxy, ledger: Ledger) -> None:
    """The database stays away after the claim committed: the worker is told, so that it sends nothing."""
    action_id = rows.build("ready", attempt_count=0)
    proxy.cut(CLAIM, "after")
    proxy.cut(b"a.state = 'executing' AND a.fence", "before", times=RECONNECTS_MAX)
    with pytest.raises(LedgerUnavailable):
        rows.claim(ledger, action_id)
    assert proxy.cuts == 1 + RECONNECTS_MAX
    assert rows.read(action_id)["state"] == "executing", "the lease's end makes it uncertain"


SETTLES: dict[str, tuple[bytes, str]] = {
    "succeeded": (b"change_reason = 'succeeded'", "succeeded"),
    "retryable": (b"change_reason = 'refused for now'", "retryable_failure"),
    "uncertain": (b"change_reason = 'outcome unknown'", "uncertain"),
    "not_sent": (b"change_reason = 'not sent'", "ready"),
    "let_go": (b"'let_go', code", "ready"),
}


def settle(name: str, ledger: Ledger, action: ClaimedAction) -> bool:
    match name:
        case "succeeded":
            return claims.settle_succeeded(ledger, action, receipt="pi_1", result="{}", evidence=None, worker="w")
        case "retryable":
            return claims.settle_retryable(
                ledger, action, code="429", field=None, evidence=None, delay_s=60.0, worker="w"
            )
        case "uncertain":
            return claims.settle_uncertain(
                ledger, action, outcome="uncertain", code="504", evidence=None, no_resend=False, delay_s=0.0,
                look_after_s=0.0, worker="w",
            )  # fmt: skip
        case "not_sent":
            return claims.settle_not_sent(ledger, action, code="connect", evidence=None, delay_s=60.0, worker="w")
    return claims.let_go(ledger, action, code="shutdown", delay_s=60.0, worker="w")


@pytest.mark.case("I3")
@pytest.mark.parametrize("moment", MOMENTS)
def test_settle_is_repeatable(rows: Rows, proxy: Proxy, ledger: Ledger, moment: Moment) -> None:
    """A settle whose answer was lost is run again by itself: one move, one attempt closed, nothing given back twice."""
    for name, (text, state) in SETTLES.items():
        action_id = rows.build("ready", attempt_count=0)
        action = rows.claimed(rows.ledger(), action_id)
        proxy.cut(text, moment)
        before = proxy.cuts
        settled = settle(name, ledger, action)
        assert proxy.cuts == before + 1, name
        assert settled == (moment == "before"), name  # False: it was settled already, by this very worker
        row = rows.read(action_id)
        assert row["state"] == state, name
        assert row["attempt_count"] == (0 if state == "ready" else 1), name
        assert rows.history(action_id) == [("ready", "executing"), ("executing", state)], name
        attempt = rows.one("SELECT outcome FROM counterfoil.attempt WHERE attempt_id = %s", action.fence)
        assert attempt["outcome"] == {"retryable": "rejected"}.get(name, name)
        assert rows.wake_ups(action_id) == [row["generation"]] * (state in ("ready", "retryable_failure")), name


@pytest.mark.case("I3")
def test_success_that_committed_unheard_is_not_late(rows: Rows, proxy: Proxy, ledger: Ledger) -> None:
    """A worker that is told "lost" by the repeated settle and goes on as for a late success harms nothing."""
    action_id = rows.build("ready", attempt_count=0)
    action = rows.claimed(rows.ledger(), action_id)
    proxy.cut(SETTLES["succeeded"][0], "after")
    assert not settle("succeeded", ledger, action)
    late = claims.apply_late_success(ledger, action, receipt="pi_1", result="{}", evidence=None, worker="w")
    row = rows.read(action_id)
    assert (late, row["state"], row["receipt"]) == ("kept", "succeeded", "pi_1")


@pytest.mark.case("I3")
@pytest.mark.parametrize("moment", MOMENTS)
def test_lookup_claim_that_was_lost(rows: Rows, proxy: Proxy, ledger: Ledger, moment: Moment) -> None:
    """A look-up's claim is repeated; rows that the unheard one took come back when its lease ends, none is lost."""
    tool = f"lost_{moment}"
    action_id = rows.build("uncertain", tool=tool)
    proxy.cut(b"change_reason = 'look-up'", moment)
    found = verdicts.claim_uncertain(
        ledger,
        fence=uuid.uuid4(),
        tool=tool,
        version=1,
        account="default",
        batch=10,
        lease_s=60.0,
        uncertain_after_s=0.0,
        by="beat",
    )
    assert [a.action_id for a in found] == ([action_id] if moment == "before" else [])
    assert rows.read(action_id)["state"] == "reconciling"


@pytest.mark.case("I3")
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("autocommit", [True, False])
def test_proposing_again_returns_the_same_row(rows: Rows, moment: Moment, autocommit: bool) -> None:
    """The caller lost its COMMIT: proposing again, after either ending, gives the same action and one wake-up."""
    run = f"loss-{moment}-{autocommit}"
    proxy = Proxy(rows.database.url("agent"))
    text = b"counterfoil.propose(" if autocommit else b"COMMIT"
    with psycopg.connect(proxy.url(), autocommit=autocommit, row_factory=dict_row) as agent:
        proxy.cut(text, moment)
        with pytest.raises(psycopg.OperationalError):
            _propose_and_commit(rows, agent, run)
    assert proxy.cuts == 1
    proxy.close()
    recorded = rows.all("SELECT action_id FROM counterfoil.action WHERE run = %s", run)
    assert len(recorded) == (moment == "after")
    again = rows.propose(run=run, step="pay")
    assert again["created"] == (moment == "before")
    assert rows.all("SELECT action_id FROM counterfoil.action WHERE run = %s", run) == [
        {"action_id": again["action_id"]}
    ]
    assert rows.wake_ups(again["action_id"]) == [1]
    assert rows.history(again["action_id"]) == [(None, "ready")]


def _propose_and_commit(rows: Rows, agent: psycopg.Connection[dict[str, Any]], run: str) -> None:
    rows.propose(agent, run=run, step="pay")
    agent.commit()


CONFLICT = """
CREATE SEQUENCE conflicts;
CREATE TABLE conflicts_wanted AS SELECT ''::text AS action_id, 0 AS times, ''::text AS sqlstate;
CREATE FUNCTION raise_conflict() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
  wanted record;
BEGIN
  SELECT * INTO wanted FROM public.conflicts_wanted AS w WHERE w.action_id = NEW.action_id;
  IF FOUND AND nextval('public.conflicts') <= wanted.times THEN
    RAISE EXCEPTION 'a conflict' USING ERRCODE = wanted.sqlstate;
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER zz_conflict BEFORE UPDATE ON counterfoil.action FOR EACH ROW EXECUTE FUNCTION raise_conflict();
"""


class Conflicts:
    """Makes the first N changes of one row fail; a sequence counts them, since a rollback does not undo it."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        if not rows.all("SELECT FROM pg_class WHERE relname = 'conflicts'"):
            rows.owner.execute(CONFLICT.encode())

    def want(self, action_id: str, times: int, sqlstate: str) -> None:
        self._rows.owner.execute("ALTER SEQUENCE conflicts RESTART")
        self._rows.owner.execute(
            "UPDATE conflicts_wanted SET action_id = %s, times = %s, sqlstate = %s", (action_id, times, sqlstate)
        )

    def met(self) -> int:
        row = self._rows.one("SELECT last_value, is_called FROM conflicts")
        return int(row["last_value"]) if row["is_called"] else 0


@pytest.fixture
def conflicts(rows: Rows) -> Conflicts:
    return Conflicts(rows)


@pytest.mark.case("I5")
@pytest.mark.parametrize("sqlstate", ["40001", "40P01"])
def test_conflict_is_retried(rows: Rows, conflicts: Conflicts, sqlstate: str) -> None:
    """A serialisation failure or a deadlock did nothing: claim and settle run again, and the attempt is counted once."""
    ledger = rows.ledger()
    action_id = rows.build("ready", attempt_count=0)
    conflicts.want(action_id, CONFLICTS_MAX - 1, sqlstate)
    action = rows.claimed(ledger, action_id)
    assert conflicts.met() == CONFLICTS_MAX
    assert (action.attempt_count, rows.read(action_id)["attempt_count"]) == (1, 1)
    conflicts.want(action_id, CONFLICTS_MAX - 1, sqlstate)
    assert settle("succeeded", ledger, action)
    assert conflicts.met() == CONFLICTS_MAX
    assert rows.history(action_id) == [("ready", "executing"), ("executing", "succeeded")]


@pytest.mark.case("I5")
@pytest.mark.parametrize("sqlstate", ["40001", "40P01"])
def test_conflict_that_does_not_end(rows: Rows, conflicts: Conflicts, sqlstate: str) -> None:
    """The retries are bounded: a claim then owns nothing, a settle says so and leaves the row to its lease."""
    ledger = rows.ledger()
    action_id = rows.build("ready", attempt_count=0)
    conflicts.want(action_id, 1000, sqlstate)
    assert rows.claim(ledger, action_id) is None
    assert conflicts.met() == CONFLICTS_MAX
    conflicts.want("", 0, sqlstate)
    action = rows.claimed(ledger, action_id)
    conflicts.want(action_id, 1000, sqlstate)
    with pytest.raises(LedgerUnavailable, match="conflicts in a row and changed nothing"):
        settle("succeeded", ledger, action)
    assert conflicts.met() == CONFLICTS_MAX
    assert rows.read(action_id)["state"] == "executing"
    conflicts.want("", 0, sqlstate)
    assert settle("succeeded", ledger, action), "the worker may try again: its answer is not lost"


def test_no_database(rows: Rows) -> None:
    """A database that cannot be reached is told as such, without a password in the text."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    parts = urlsplit(rows.database.url("worker"))
    ledger = Ledger(urlunsplit(parts._replace(netloc=f"worker:pass-word@127.0.0.1:{port}")))
    with pytest.raises(LedgerUnavailable) as away:
        claims.beat_heart(ledger, worker="w", queues=[], claimed=False)
    assert "pass-word" not in str(away.value)
    assert (away.value.code, away.value.exit_code) == ("ledger_unavailable", 5)
