"""The command line in this process, as a test types it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from counterfoil.cli.main import main


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Cli = Callable[..., Answer]


def terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Runs one command in this process, in an empty folder, as `url`'s login."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("COUNTERFOIL_CONFIG", "COUNTERFOIL_HOME", "COUNTERFOIL_DATABASE__URL"):
        monkeypatch.delenv(name, raising=False)

    def run(*argv: str, url: str | None = None, **env: str) -> Answer:
        with monkeypatch.context() as patched:
            for name, value in ({"COUNTERFOIL_DATABASE__URL": url} if url else {} | env).items():
                patched.setenv(name, value)
            for name, value in env.items():
                patched.setenv(name, value)
            with pytest.raises(SystemExit) as ended:
                main(list(argv))
        captured = capsys.readouterr()
        return Answer(int(ended.value.code or 0), captured.out, captured.err)

    return run
