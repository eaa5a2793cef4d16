"""How many processes a worker has: what the configuration says, unless whoever starts it says otherwise."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

STARTS = """
from celery.bin.celery import celery
from counterfoil.workers.celery_app import app

class Worker(app.WorkController):
    def start(self):
        print(self.concurrency)

app.Worker = Worker
for given in ([], ["-c", "2"], ["-c", "5"]):
    celery.main(["-A", "counterfoil.workers", "worker", "--pool", "solo", *given], standalone_mode=False)
"""


def test_a_worker_has_as_many_processes_as_configured(tmp_path: Path) -> None:
    """`workers.concurrency` holds for a worker that is started without `-c`, and `-c` wins."""
    secret = tmp_path / "key"
    secret.write_bytes(b"0123456789abcdef0123456789abcdef")
    secret.chmod(0o600)
    environ = {
        **{name: value for name, value in os.environ.items() if not name.startswith("COUNTERFOIL_")},
        "COUNTERFOIL_BROKER__URL": "redis://127.0.0.1:1/0",
        "COUNTERFOIL_DATABASE__URL": "postgresql://127.0.0.1:1/none",
        "COUNTERFOIL_DATABASE__KEY_SECRET_FILE": str(secret),
        "COUNTERFOIL_WORKERS__CONCURRENCY": "3",
        "C_FORCE_ROOT": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", STARTS], cwd=tmp_path, env=environ, check=False, capture_output=True, text=True
    )
    assert done.stdout.split() == ["3", "2", "5"], done.stderr
