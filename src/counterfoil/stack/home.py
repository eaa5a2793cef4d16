"""Where a project's local state lives, which user its servers run as, and who may read what."""

from __future__ import annotations

import fcntl
import hashlib
import os
import pwd
import secrets
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from counterfoil.stack.errors import StackError

PostgresMajor = Literal[16, 18]

SYSTEM_STATE = Path("/var/db" if sys.platform == "darwin" else "/var/lib") / "counterfoil-local"
"""Used by root alone: binaries in `bin`, and one folder for each project."""

SERVICE_USER = "counterfoil-local"
"""The system user that root's servers run as; made on first use. Where none can be made: `postgres`, then `nobody`."""

LOCK_WAIT_S = 120.0
"""Longer than any one start takes, crash recovery included."""


@dataclass(frozen=True, slots=True)
class ServiceUser:
    """An unprivileged user that servers are started as."""

    name: str
    uid: int
    gid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """The folders of one project's local stack. All exist; those with secrets and logs are open to their owner alone.

    As root, `user` is who the servers run as: it owns the two data folders and nothing else. Otherwise it is None and
    everything belongs to the caller.
    """

    path: Path
    postgres_major: PostgresMajor = 18
    user: ServiceUser | None = None

    @property
    def run(self) -> Path:
        """Process records, remembered ports, locks."""
        return self.path / "run"

    @property
    def log(self) -> Path:
        """One log file for each server and each child."""
        return self.path / "log"

    @property
    def bin(self) -> Path | None:
        """Where copies of the binaries go; None = run them where the wheels have put them."""
        return SYSTEM_STATE / "bin" if self.user else None

    @property
    def postgres(self) -> Path:
        """Postgres' folder, one for each major version."""
        return self.path / f"postgres-{self.postgres_major}"

    @property
    def valkey(self) -> Path:
        """Valkey's folder."""
        return self.path / "valkey"

    def secret(self, name: str) -> str:
        """The password kept under this name, made on first use; URL-safe; its file has mode 0600."""
        file = self.path / "secrets" / name
        if not file.exists():
            write_private(file, secrets.token_urlsafe(24), replace=False)
        return file.read_text()

    def has_secret(self, name: str) -> bool:
        """Whether a password of this name was made before."""
        return (self.path / "secrets" / name).exists()

    @contextmanager
    def lock(self, name: str = "stack", *, wait_s: float = LOCK_WAIT_S) -> Iterator[None]:
        """Hold a lock that all processes of this home share and that a killed process cannot leave behind.

        Not reentrant. Raises StackError when it is still taken after `wait_s`.
        """
        descriptor = os.open(self.run / f"{name}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if not _flock(descriptor, wait_s):
                raise StackError(f"Another process holds the lock {name!r} of {self.path}.", fix="Stop it first.")
            yield
        finally:
            os.close(descriptor)


def home(project: Path, *, environ: Mapping[str, str] = os.environ) -> Home:
    """The project's home, with all its folders made. Idempotent.

    Not root: `<project>/.counterfoil`. Root: a folder under the system's state directory, with `<project>/.counterfoil`
    as a link to it, because Postgres refuses to run as root and another user cannot enter a private clone.
    `COUNTERFOIL_HOME` moves it elsewhere; `COUNTERFOIL_POSTGRES` picks Postgres 18 (default) or 16, each with data of
    its own. Folders that are not ours are never changed. Raises StackError where the place cannot be used.
    """
    project = project.resolve()
    major = _postgres_major(environ.get("COUNTERFOIL_POSTGRES", "18"))
    user = _service_user() if os.geteuid() == 0 else None
    override = environ.get("COUNTERFOIL_HOME")
    if override:
        path = Path(override).absolute()
    elif user:
        path = _linked_place(project)
    else:
        path = project / ".counterfoil"
    made = Home(path=path, postgres_major=major, user=user)
    _make_folders(made)
    if not override:
        _note_project(made, project)
    return made


def write_private(file: Path, text: str, *, replace: bool = True) -> None:
    """Write the file in one step, so that no reader and no crash ever sees half of it; mode 0600.

    With `replace=False` a file that is there wins, even one that appears at the same moment.
    """
    fresh = file.with_name(f".{file.name}.{os.getpid()}.{threading.get_ident()}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    if replace:
        fresh.replace(file)
        return
    with suppress(FileExistsError):
        os.link(fresh, file)
    fresh.unlink()


def _flock(descriptor: int, wait_s: float) -> bool:
    deadline = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.02)


def _postgres_major(text: str) -> PostgresMajor:
    match text:
        case "18":
            return 18
        case "16":
            return 16
    raise StackError(f"COUNTERFOIL_POSTGRES is {text!r}.", fix="Set it to 18 or 16.")


def _make_folders(home: Home) -> None:
    _make_folder(home.path, 0o755 if home.user else 0o700)
    if home.path.stat().st_uid != os.geteuid():
        raise StackError(
            f"{home.path} belongs to another user.", fix="Run as that user, or set COUNTERFOIL_HOME to a new place."
        )
    for folder in (home.run, home.log, home.path / "secrets"):
        _make_folder(folder, 0o700)
    if home.user is None:
        _make_folder(home.postgres, 0o700)
        _make_folder(home.valkey, 0o700)
        return
    _make_folder(SYSTEM_STATE, 0o755)
    _make_folder(SYSTEM_STATE / "bin", 0o755)
    for folder in (home.postgres, home.valkey):
        if not folder.exists():
            _make_folder(folder, 0o700)
            os.chown(folder, home.user.uid, home.user.gid)
    _refuse_closed_parent(home.path, home.user)


def _make_folder(path: Path, mode: int) -> None:
    """Make it, with this mode whatever the umask is; a folder that exists stays as it is."""
    try:
        path.mkdir(parents=True)
    except FileExistsError:
        return
    path.chmod(mode)


def _refuse_closed_parent(path: Path, user: ServiceUser) -> None:
    for folder in (path, *path.parents):
        status = folder.stat()
        enters = 0o100 if status.st_uid == user.uid else 0o010 if status.st_gid == user.gid else 0o001
        if not status.st_mode & enters:
            raise StackError(
                f"The servers run as {user.name!r}, which cannot enter {folder}.",
                fix="Set COUNTERFOIL_HOME to a folder whose parents are open (o+x), or do not run as root.",
            )


def _note_project(home: Home, project: Path) -> None:
    """Leave a word for whoever finds the folder, and keep it out of version control."""
    for name, text in (("project", f"{project}\n"), (".gitignore", "*\n")):
        if not (home.path / name).exists():
            (home.path / name).write_text(text)


def _linked_place(project: Path) -> Path:
    _make_folder(SYSTEM_STATE, 0o755)
    place = SYSTEM_STATE / hashlib.sha256(str(project).encode()).hexdigest()[:16]
    link = project / ".counterfoil"
    if link.is_symlink() and link.readlink() != place and link.readlink().parent == SYSTEM_STATE:
        link.unlink()  # the project was copied or moved: its home goes by its path
    if not link.is_symlink() and not link.exists():
        link.symlink_to(place)
    if not (link.is_symlink() and link.readlink() == place):
        raise StackError(
            f"{link} is in the way: as root it must be a link to {place}.",
            fix="Remove it, run as the user who made it, or set COUNTERFOIL_HOME.",
        )
    return place


def _service_user() -> ServiceUser:
    if not _find_user(SERVICE_USER):
        _add_user(SERVICE_USER)
    for name in (SERVICE_USER, "postgres", "nobody"):
        found = _find_user(name)
        if found:
            return found
    raise StackError(
        "Postgres refuses to run as root, and there is no unprivileged user to run it as.",
        fix=f"Add a system user named {SERVICE_USER}, or do not run as root.",
    )


def _find_user(name: str) -> ServiceUser | None:
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        return None
    return None if entry.pw_uid == 0 else ServiceUser(name, entry.pw_uid, entry.pw_gid)


def _add_user(name: str) -> None:
    """Add a system user without home, shell or password; quietly nothing where neither tool is there or allowed."""
    shell = shutil.which("nologin", path="/usr/sbin:/sbin:/usr/bin:/bin") or "/bin/false"
    commands = (
        [
            "useradd",
            "--system",
            "--user-group",
            "--no-create-home",
            "--home-dir",
            "/nonexistent",
            "--shell",
            shell,
            name,
        ],
        ["adduser", "-S", "-D", "-H", "-h", "/nonexistent", "-s", shell, name],  # busybox
    )
    for command in commands:
        program = shutil.which(command[0], path="/usr/sbin:/sbin:/usr/bin:/bin")
        if program and subprocess.run([program, *command[1:]], capture_output=True, check=False).returncode == 0:
            return
