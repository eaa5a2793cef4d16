"""What an agent's calls do while their ledger is silent, and a network namespace that can be made so."""

from __future__ import annotations

import asyncio
import ctypes
import os
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial

import pytest
from tests.infra.fleet import Fleet
from tests.infra.servers import READY_S, program

from counterfoil import Counterfoil, LedgerUnavailable, Result, Run

MARGIN_S = 10.0
"""An answer may take so much longer than its caller was willing to wait."""
SILENT_S = 30.0
"""Long enough for every bound on a silent connection to be met."""
CLONE_NEWNET = 0x40000000

Call = Callable[[], object]


@dataclass(slots=True)
class Asked:
    """One call in a thread of its own, so that one that hangs is seen."""

    call: Call
    wait_s: float
    answer: object = None
    error: BaseException | None = None
    took_s: float | None = None
    thread: threading.Thread = field(init=False)

    def begin(self) -> None:
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        began = time.monotonic()
        try:
            self.answer = self.call()
        except BaseException as error:  # noqa: BLE001 – whatever it is, the test tells it
            self.error = error
        self.took_s = time.monotonic() - began

    def told(self) -> str:
        return "has not returned" if self.took_s is None else f"{self.took_s:.1f} s: {self.error!r} {self.answer!r}"


class Agents:
    """The calls of agents who are at work before the silence: on connections of before, and with none yet."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._cold = fleet.agent()
        self._runs = {name: _opened(fleet.cf, name) for name in ("call-0", "call-2", "acall-2")}
        known = _opened(fleet.cf, "known").call("create_shipment", _order("known"), step="ship", wait_s=60)
        assert known.action_id is not None, known
        self._known = known.action_id
        fleet.recorded(1)

    def close(self) -> None:
        self._cold.close()

    def calls(self) -> Mapping[str, tuple[float, Call]]:
        """Each with the seconds that it is willing to wait."""
        cf, runs = self._fleet.cf, self._runs
        return {
            "run": (0, partial(_opened, cf, "opened")),
            "run, cold": (0, partial(_opened, self._cold, "opened-cold")),
            "call-0": (0, partial(_called, runs["call-0"], 0)),
            "call-2": (2, partial(_called, runs["call-2"], 2)),
            "acall-2": (2, partial(_acalled, runs["acall-2"], 2)),
            "result": (1, partial(cf.result, self._known, wait_s=1)),
            "result, cold": (1, partial(self._cold.result, self._known, wait_s=1)),
        }

    def ask(self, *, may_fail: bool) -> dict[str, Asked]:
        """Makes all calls at once: each returns within its bound, or (`may_fail`) raises `LedgerUnavailable` within it."""
        asked = {name: Asked(call, wait_s) for name, (wait_s, call) in self.calls().items()}
        began = time.monotonic()
        for one in asked.values():
            one.begin()
        for one in asked.values():
            one.thread.join(max(0.0, began + one.wait_s + MARGIN_S - time.monotonic()))
        told = "\n".join(f"{name}: {one.told()}" for name, one in asked.items())
        late = [n for n, one in asked.items() if one.took_s is None or one.took_s > one.wait_s + MARGIN_S]
        assert not late, f"beyond wait_s + {MARGIN_S:.0f} s: {late}\n{told}"
        allowed = (LedgerUnavailable,) if may_fail else ()
        wrong = [n for n, one in asked.items() if one.error is not None and not isinstance(one.error, allowed)]
        assert not wrong, f"not told as LedgerUnavailable: {wrong}\n{told}"
        return asked

    def repeat(self) -> None:
        """After the silence each call is made again, and means the row that the first one may have made."""
        for _, call in self.calls().values():
            self._fleet.again(call)
        query = "SELECT run, count(*) FROM counterfoil.action WHERE run = ANY(%s) GROUP BY 1"
        assert dict(self._fleet.rows(query, list(self._runs))) == dict.fromkeys(self._runs, 1)
        self._fleet.recorded(len(self._runs))


def _opened(cf: Counterfoil, run: str) -> Run:
    return cf.run(run, tenant="acme", actor="infra")


def _order(name: str) -> dict[str, str]:
    return {"order_id": name, "sku": "std"}


def _called(run: Run, wait_s: float) -> Result:
    return run.call("create_shipment", _order(run.run), step="ship", wait_s=wait_s)


def _acalled(run: Run, wait_s: float) -> Result:
    async def call() -> Result:
        return await run.acall("create_shipment", _order(run.run), step="ship", wait_s=wait_s)

    return asyncio.run(call())


def fall_silent(fleet: Fleet, silence: Callable[[], None], sound: Callable[[], None], *, may_fail: bool = True) -> None:
    """In the middle of the work all is silent for half a minute; agents are told in time, and then all goes on."""
    with fleet.upset(), closing(Agents(fleet)) as agents:
        silence()
        over = time.monotonic() + SILENT_S
        try:
            agents.ask(may_fail=may_fail)
            fleet.outlast(over - time.monotonic())
        finally:
            sound()
        agents.repeat()


def in_namespace(body: Callable[[Callable[[str], None]], None]) -> None:
    """Runs the body, and whatever it starts, in a network of its own; it is given what sets loopback `up` or `down`."""
    ip, libc = program("ip"), ctypes.CDLL(None, use_errno=True)
    refused: list[str] = []
    failed: list[BaseException] = []

    def set_loopback(state: str) -> None:
        subprocess.run([ip, "link", "set", "lo", state], check=True, timeout=READY_S)

    def run() -> None:
        if libc.unshare(CLONE_NEWNET) != 0:  # this thread's alone, and of what it starts
            refused.append(os.strerror(ctypes.get_errno()))
            return
        try:
            set_loopback("up")
            body(set_loopback)
        except BaseException as error:  # noqa: BLE001 – raised again, in the test's own thread
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join()
    if refused:
        pytest.skip(f"no network namespace can be made here: {refused[0]}")
    if failed:
        raise failed[0]
