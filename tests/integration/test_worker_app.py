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


READS = """
from counterfoil.workers.celery_app import app, settings
print(app.connection_for_write().as_uri(), app.connection_for_read().as_uri(), app.conf.result_backend, settings.tools)
"""

ANOTHERS = {
    "CELERY_BROKER_URL": "redis://127.0.0.1:2/5",
    "CELERY_BROKER_READ_URL": "redis://127.0.0.1:3/5",
    "CELERY_BROKER_WRITE_URL": "redis://127.0.0.1:4/5",
    "CELERY_RESULT_BACKEND": "django-db",
    "CELERY_LOADER": "celery.loaders.default:Loader",
}


def test_another_program_s_celery_is_not_ours(tmp_path: Path) -> None:
    """Its broker would take our messages, its result backend end our processes: both are ignored, and told."""
    done = _run(tmp_path, READS, **ANOTHERS)
    write, read, backend, *_ = done.stdout.split()
    assert all(uri.endswith("127.0.0.1:1/0") for uri in (write, read)), done.stderr
    assert backend == "None"
    assert all(name in done.stderr for name in ("not_our_settings", *ANOTHERS))


def test_tools_beside_the_configuration_are_found_by_celery_too(tmp_path: Path) -> None:
    """The command line of Celery looks in the working folder for its app only."""
    (tmp_path / "shop_tools.py").write_text(
        "from counterfoil import tool\n\n\n@tool(cls='pure')\ndef price(order: str) -> int:\n    return 1\n"
    )
    done = _run(tmp_path, f"import sys\nsys.path.remove('')\n{READS}", COUNTERFOIL_TOOLS='["shop_tools"]')
    assert "('shop_tools',)" in done.stdout, done.stderr


def _run(folder: Path, code: str, **environ: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("COUNTERFOIL_")}
    given = {
        "COUNTERFOIL_BROKER__URL": "redis://127.0.0.1:1/0",
        "COUNTERFOIL_DATABASE__URL": "postgresql://127.0.0.1:1/none",
        **environ,
    }
    return subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env={**clean, **given}, check=False, capture_output=True, text=True
    )
