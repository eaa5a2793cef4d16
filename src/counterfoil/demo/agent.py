"""Decides how the demo's agent works, as a process of its own: model, harness, and a transcript in a file between them.

    python -m counterfoil.demo.agent naive|counterfoil TRANSCRIPT

Tells what it does in JSON lines on standard output, and goes on when a line comes back on standard input: whoever watches
can kill it between any two of its moves. A call's answer is told first and written down after that.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Protocol

from counterfoil.demo import script
from counterfoil.demo.script import Answer, Arguments, Entry


class Harness(Protocol):
    """What stands between the model and the world."""

    def call(self, tool: str, arguments: Arguments) -> Answer:
        """Carry the model's call out, and say what it is told."""
        ...

    def unwind(self, reason: str) -> None:
        """Take back what the run has done."""
        ...


def tell(what: str, **more: object) -> None:
    """Say it to whoever watches, and wait for the sign to go on; the end when nobody is there any more."""
    print(json.dumps({"what": what, **more}), flush=True)
    if not sys.stdin.readline():
        raise SystemExit(1)


class Transcript:
    """The model's memory: one line when it decides, one more when the answer is there."""

    def __init__(self, path: Path) -> None:
        self.entries = list(_read(path)) if path.exists() else []
        self._path = path

    def decided(self, tool: str, arguments: Arguments) -> None:
        self._write(Entry(tool, arguments))

    def answered(self, tool: str, arguments: Arguments, answer: Answer) -> None:
        self.entries.pop()
        self._write(Entry(tool, arguments, *answer))

    def _write(self, entry: Entry) -> None:
        self.entries.append(entry)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(entry)) + "\n")


def work(harness: Harness, transcript: Transcript) -> None:
    """From where the transcript ends to the end of the task; a task that the model gives up is taken back."""
    model = script.play(tuple(transcript.entries))
    answer: Answer | None = None
    while True:  # the script's end
        try:
            tool, arguments = next(model) if answer is None else model.send(answer)
        except StopIteration as end:
            given_up: str | None = end.value
            break
        transcript.decided(tool, arguments)
        tell("call", tool=tool, arguments=arguments)
        answer = harness.call(tool, arguments)
        tell("answer", tool=tool, status=answer[0], result=answer[1])
        transcript.answered(tool, arguments, answer)
    if given_up is not None:
        tell("give_up", tool=given_up)
        harness.unwind(f"{given_up} was refused")


def _read(path: Path) -> Iterator[Entry]:
    """An entry's line without an answer counts only where no line with one follows."""
    entries = [Entry(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
    for entry, following in zip(entries, [*entries[1:], None], strict=True):
        is_answered_next = following is not None and following.status is not None
        if entry.status is not None or not is_answered_next:
            yield entry


def _harness(name: str, transcript: Transcript) -> Harness:
    if name == "naive":
        from counterfoil.demo.naive import NaiveHarness

        return NaiveHarness(transcript.entries)
    from counterfoil.demo.ours import CounterfoilHarness

    return CounterfoilHarness(transcript.entries)


if __name__ == "__main__":
    _transcript = Transcript(Path(sys.argv[2]))
    work(_harness(sys.argv[1], _transcript), _transcript)
