"""What is built is what is imported: the wheel and the sdist hold every module, query and migration, and nothing else."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("ledger", "providers", "outbox", "workers", "reconciler", "sandbox")
"""The folders at the top of the repository, imported as `counterfoil.<folder>`."""

SUFFIXES = {".py", ".sql", ".lua", ".mako", ".typed", ".graphql"}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that was built from that sdist."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    [found] = built.glob("*.whl")
    return found


def expected() -> set[str]:
    """The tracked files of the package, under the names that they are imported by."""
    tracked = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    paths = [Path(name) for name in tracked.stdout.decode().split("\0") if name]
    sources = [path for path in paths if path.suffix in SUFFIXES and (ROOT / path).is_file()]
    ours = [Path("counterfoil", path) for path in sources if path.parts[0] in FOLDERS]
    ours += [path.relative_to("src") for path in sources if path.parts[:2] == ("src", "counterfoil")]
    return {path.as_posix() for path in ours}


def test_the_wheel_holds_every_module_and_nothing_else(wheel: Path) -> None:
    """Each module, query file and migration of the six folders and of src, and beside them only the metadata."""
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        metadata = {name.rpartition("/")[2] for name in archive.namelist() if ".dist-info/" in name}
    assert names == expected()
    assert {"METADATA", "entry_points.txt", "LICENSE"} <= metadata
    assert len([name for name in names if name.endswith(".sql")]) > 5
    assert "counterfoil/ledger/migrations/script.py.mako" in names


def test_the_sdist_builds_the_same_wheel_and_holds_no_more_than_the_repository(built: Path) -> None:
    """The wheel above came out of the sdist; that has no link, no local state and no secret."""
    [sdist] = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        members = archive.getmembers()
    names = {member.name.partition("/")[2] for member in members}
    assert {"pyproject.toml", "README.md", "LICENSE", "ledger/states.py", "tests/conftest.py"} <= names
    assert not [member.name for member in members if member.issym() or member.islnk()]
    assert not [name for name in names if name.startswith((".venv", ".counterfoil", ".env", "deploy/secrets/"))]


def test_the_wheel_imports_alone_and_shadows_nobody(wheel: Path, tmp_path: Path) -> None:
    """Installed without the repository, every module imports; no bare `ledger` or `workers` appears among modules."""
    target = tmp_path / "installed"
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-compile",
        "--target",
        str(target),
        str(wheel),
    ]
    subprocess.run(install, check=True, capture_output=True)
    modules = sorted(
        name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for name in expected()
        if name.endswith(".py") and not any(part in name for part in _NEED_A_PROCESS)
    )
    code = (
        f"import importlib, sys\nsys.path.insert(0, {str(target)!r})\n"
        f"for name in {modules!r}:\n"
        f"    module = importlib.import_module(name)\n"
        f"    assert module.__file__.startswith({str(target)!r}), module.__file__\n"
        f"print(sorted({set(FOLDERS)!r} & set(sys.modules)))\n"
        "import counterfoil.ledger.migrate as migrate\n"
        "from alembic.script import ScriptDirectory\n"
        "with migrate._config() as config:\n    print(ScriptDirectory.from_config(config).get_current_head())\n"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    bare, head = done.stdout.splitlines()
    assert bare == "[]"
    assert head.startswith("0"), "the migrations are found inside the wheel"


_NEED_A_PROCESS = (
    "/__main__.py",
    "migrations/env.py",  # run by Alembic
    "workers/celery_app.py",  # reads the configuration, or ends the process
    "stack/exec_child.py",  # a script
)
