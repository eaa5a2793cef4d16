"""The folder of one run of the tests, in which its services live: for all xdist workers together, or for several runs.

Whoever makes it ends what is in it. What a killed run of earlier has left, the next one ends.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from counterfoil.stack.home import Home, home
from counterfoil.stack.processes import recall, remember
from counterfoil.stack.services import Services

FOLDER_PREFIX = "counterfoil-tests-"
FOLDER_VARIABLE = "CF_TEST_FOLDER"
"""How the xdist workers hear from the controller where the run's services live, and a run that it shares another's."""


def make() -> Path:
    """A new folder, which `remove` must end; the processes that this one starts are told of it."""
    _end_abandoned()
    folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX))
    folder.chmod(0o755)  # as root the servers run as another user, who must get in; what is inside is closed
    remember(folder / "controller.json", os.getpid())
    os.environ[FOLDER_VARIABLE] = str(folder)
    return folder


def remove(folder: Path) -> None:
    """Stops the services, after all who use them are gone."""
    os.environ.pop(FOLDER_VARIABLE, None)
    _remove(folder)


def home_in(folder: Path) -> Home:
    """The home of the services in it."""
    return home(folder, environ={**os.environ, "COUNTERFOIL_HOME": str(folder / "home")})


def _remove(folder: Path) -> None:
    if (folder / "home").exists():
        Services.stop(home_in(folder))
    shutil.rmtree(folder)


def _end_abandoned() -> None:
    """A run that was killed outright could not stop its servers: whoever runs next does, one of those who try."""
    for folder in Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}*"):
        with suppress(FileNotFoundError, BlockingIOError):  # another run has removed it, or is about to
            status = folder.stat()
            settled = time.time() - status.st_mtime > 60  # a younger one may be about to record its controller
            if status.st_uid == os.geteuid() and settled and recall(folder / "controller.json", lambda _: True) is None:
                with (folder / "controller.json").open("a") as claimed:
                    fcntl.flock(claimed, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    _remove(folder)
