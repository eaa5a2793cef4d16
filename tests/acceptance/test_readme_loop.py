"""README's agent loop, as it is pasted, killed at every line of its own and begun again: one shipment for each order."""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

from counterfoil import Counterfoil
from counterfoil.providers.registry import Registry
from counterfoil.testing import World

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
FILES = {
    block.splitlines()[0].removeprefix("# "): block
    for block in re.findall(r"^```python\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
}
LIVES_MAX = 20


class Killed(BaseException):
    """The process is gone; nothing catches it."""


@pytest.fixture
def loop(
    world: World,
    client: Callable[..., Counterfoil],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[CodeType]:
    """agent.py in a folder of its own, with its modules and the world's fleet."""
    for name in ("shop.py", "model.py"):
        (tmp_path / name).write_text(FILES[name])
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("COUNTERFOIL_SANDBOX_URL", world.sandbox.base_url)
    world.registry = Registry.load(["shop"])
    agent = client()
    monkeypatch.setattr(Counterfoil, "from_settings", lambda *_: agent)
    yield compile(FILES["agent.py"], "agent.py", "exec")
    for module in ("shop", "model"):
        sys.modules.pop(module, None)


def live(loop: CodeType, order: str, monkeypatch: pytest.MonkeyPatch, *, kill_at: int | None = None) -> int:
    """One life of the process, killed before its n-th line; the number of lines that it came to."""
    lines = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal lines
        if frame.f_code.co_filename != "agent.py":
            return None
        if event == "line":
            lines += 1
            if lines == kill_at:
                raise Killed
        return trace

    monkeypatch.setattr(sys, "argv", ["agent.py", order])
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        exec(loop, {"__name__": "__main__"})
    finally:
        sys.settrace(before)
    return lines


def test_the_loop_survives_a_kill_at_any_line(
    loop: CodeType,
    world: World,
    working: Callable[[], AbstractContextManager[None]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Every line once, and a few lives that die again and again; each ends with its one shipment, told as succeeded."""
    rng = random.Random(12)
    with working():
        lines = live(loop, "whole", monkeypatch)
        assert lines > 20
        for line in range(1, lines + 1):
            with suppress(Killed):
                live(loop, f"order-{line}", monkeypatch, kill_at=line)
            live(loop, f"order-{line}", monkeypatch)
        for order in ("unlucky-1", "unlucky-2", "unlucky-3"):
            for _ in range(LIVES_MAX):
                with suppress(Killed):
                    live(loop, order, monkeypatch, kill_at=rng.randrange(1, lines + 1))
            live(loop, order, monkeypatch)
    orders = [effect.data["order"] for effect in world.sandbox.effects("shipment")]
    assert sorted(orders) == sorted(["whole", *(f"order-{n}" for n in range(1, lines + 1)),
                                     "unlucky-1", "unlucky-2", "unlucky-3"])  # fmt: skip
    assert capsys.readouterr().out.count("succeeded") >= len(orders)


def test_the_loop_survives_the_loss_of_its_transcript(
    loop: CodeType,
    world: World,
    working: Callable[[], AbstractContextManager[None]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The model asks anew, in whatever words: the recorded result, and it is said that nothing new was done."""
    with working():
        live(loop, "1", monkeypatch)
        Path("ticket-1.json").unlink()
        live(loop, "1", monkeypatch)
    first, again = (line for line in capsys.readouterr().out.splitlines() if line.startswith("succeeded"))
    assert " new " in first
    assert " replayed " in again
    assert first.split("}")[0] == again.split("}")[0]
    assert len(world.sandbox.effects("shipment")) == 1
