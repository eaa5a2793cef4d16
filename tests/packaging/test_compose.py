"""compose.yaml, its scripts and the sample configuration against the code that they start."""

from __future__ import annotations

import re
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from counterfoil.cli.main import app
from counterfoil.ledger.roles import GROUPS
from counterfoil.settings import Settings
from counterfoil.stack.databases import LOGINS

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = ("migrate", "relay", "worker", "beat")
SAMPLE = ROOT / "examples" / "counterfoil.toml"


def environment(service: str, **values: str) -> dict[str, str]:
    """The service's variables with `${NAME:…}` filled in: from `values`, else its default, else a word."""

    def fill(match: re.Match[str]) -> str:
        name, _, default = match[1].partition(":-")
        return values.get(name.partition(":")[0]) or default or "filled"

    return {k: re.sub(r"\$\{([^}]*)\}", fill, str(v)) for k, v in SERVICES[service].get("environment", {}).items()}


def command_lines(service: str) -> list[list[str]]:
    """The commands that a service of ours runs, those of a shell script one by one."""
    command = [str(part) for part in SERVICES[service]["command"]]
    if command[0] != "sh":
        return [command]
    return [shlex.split(re.sub(r"\$\{\w+:-(\w+)\}", r"\1", line)) for line in command[-1].splitlines() if line.strip()]


def options_of(words: list[str]) -> dict[str, Any]:
    """The parameters of the verb that the words name; raises KeyError if there is none."""
    command: Any = typer.main.get_command(app)
    for word in words:
        command = command.commands[word]
        if not hasattr(command, "commands"):
            break
    return {option: parameter for parameter in command.params for option in parameter.opts}


@pytest.mark.parametrize("service", OURS)
def test_every_command_exists(service: str) -> None:
    """A noun, verb or option that the code no longer has would only be found by the deployment that fails."""
    checks = [SERVICES[service]["healthcheck"]["test"][1:]] if "healthcheck" in SERVICES[service] else []
    for line in [*command_lines(service), *checks]:
        words = shlex.split(line[0]) if len(line) == 1 else line
        if words[0] == "celery":
            assert words[1:3] == ["-A", "counterfoil.workers"]
            assert words[3] in {"worker", "beat", "inspect"}
            continue
        assert words[0] == "counterfoil"
        options = options_of(words[1:])
        assert {word for word in words if word.startswith("--")} <= set(options)


def test_migrations_grant_every_login_its_role() -> None:
    """The logins that the database is made with are those that are granted a role, each its own."""
    made = set(re.findall(r"CREATE ROLE (\w+) LOGIN", (ROOT / "deploy" / "logins.sh").read_text()))
    grants = [line for line in command_lines("migrate") if line[1:3] == ["db", "grant"]]
    granted = {line[3]: line[line.index("--as") + 1] for line in grants}
    assert granted == {f"cf_{group}": group for group in GROUPS}
    assert made == set(granted) == {login.name for login in LOGINS}
    tenants = {line[3]: line[line.index("--tenant") + 1] for line in grants}
    assert tenants["cf_agent"] != "*", "an agent's login is for one tenant"


@pytest.mark.parametrize("service", OURS)
def test_every_variable_is_a_setting(service: str) -> None:
    """The settings load from the service's own variables over the sample file; a typing mistake would be refused."""
    settings = Settings.load(SAMPLE, environment(service))
    assert settings.database_address().url.startswith("postgresql://")
    assert not [name for name in environment(service) if not name.startswith("COUNTERFOIL_")]
    if service != "migrate":
        assert "cf_worker:" in settings.database_address().url
        assert settings.broker_url().startswith("redis://:")


def test_secret_files_are_mounted_where_the_sample_reads_them() -> None:
    """Each `*_file` of the sample is a secret of the worker, and deploy/secrets.sh makes it."""
    sample = tomllib.loads(SAMPLE.read_text())
    tables = [sample["database"], *sample["providers"].values()]
    named = {Path(value).name for table in tables for key, value in table.items() if key.endswith("_file")}
    assert named == set(SERVICES["worker"]["secrets"])
    script = (ROOT / "deploy" / "secrets.sh").read_text()
    for name, secret in COMPOSE["secrets"].items():
        assert secret["file"] == f"deploy/secrets/{name}"
        assert name in script


def test_the_secrets_script_makes_everything_once(tmp_path: Path) -> None:
    """All passwords that compose.yaml asks for, private, different, and the same after a second run."""
    (tmp_path / "deploy").mkdir()
    script = tmp_path / "deploy" / "secrets.sh"
    script.write_bytes((ROOT / "deploy" / "secrets.sh").read_bytes())
    subprocess.run(["bash", str(script)], check=True, capture_output=True)
    files = [tmp_path / ".env", *sorted((tmp_path / "deploy" / "secrets").iterdir())]
    first = [file.read_text() for file in files]
    subprocess.run(["bash", str(script)], check=True, capture_output=True)
    assert [file.read_text() for file in files] == first
    passwords = dict(line.split("=") for line in first[0].splitlines())
    asked_for = set(re.findall(r"\$\{(\w+):\?", (ROOT / "compose.yaml").read_text()))
    assert asked_for == set(passwords)
    assert len(set(passwords.values())) == len(passwords)
    assert (tmp_path / ".env").stat().st_mode & 0o077 == 0
    assert (tmp_path / "deploy" / "secrets").stat().st_mode & 0o077 == 0
    assert f"requirepass {passwords['CF_VALKEY_PASSWORD']}\n" in (tmp_path / "deploy/secrets/valkey_conf").read_text()
    assert {file.name for file in files[1:]} == set(COMPOSE["secrets"])


def test_images_ports_and_health() -> None:
    """Third-party images are pinned to a major version; nothing listens beyond this host; what serves has a check."""
    assert SERVICES["postgres"]["image"] in {"postgres:16", "postgres:17", "postgres:18"}
    assert SERVICES["valkey"]["image"] == "valkey/valkey:8"
    for name, service in SERVICES.items():
        assert all(str(port).startswith("127.0.0.1:") for port in service.get("ports", []))
        assert name == "migrate" or "healthcheck" in service
    for name in ("relay", "worker", "beat"):
        assert SERVICES[name]["depends_on"]["migrate"] == {"condition": "service_completed_successfully"}


def test_mounted_files_exist() -> None:
    """Every file that is mounted or built from is in the repository."""
    paths = [SERVICES["worker"]["build"]["dockerfile"]]
    for service in SERVICES.values():
        for volume in service.get("volumes", []):
            source = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", volume).split(":")[0]
            paths += [source] if "/" in source else []
    assert "./deploy/logins.sh" in paths
    for path in paths:
        assert (ROOT / path).is_file(), path


def test_no_password_is_on_a_command_line() -> None:
    """Command lines are readable by every process of the host."""
    for name, service in SERVICES.items():
        assert "PASSWORD" not in str(service.get("command", "")), name


def test_the_sample_configuration_is_the_defaults() -> None:
    """Every value that has a default is that default, so that the reasons beside them stay true; every key is there."""
    sample, defaults = Settings.load(SAMPLE, {}).model_dump(by_alias=True), Settings().model_dump(by_alias=True)
    written = tomllib.loads(SAMPLE.read_text())
    for section in ("limits", "workers", "relay", "reconciler", "approval"):
        assert sample[section] == defaults[section]
        assert set(written[section]) == set(defaults[section])
    provider = Settings().provider("").model_dump()
    provider = {key: _without_none(value) if isinstance(value, dict) else value for key, value in provider.items()}
    optional = {key for key, value in provider.items() if value is None}
    tables = written["providers"]
    shown = {
        key: value for name in (*sorted(set(tables) - {"stripe"}), "stripe") for key, value in tables[name].items()
    }
    assert re.findall(r"^# (\w+) = \[", SAMPLE.read_text().partition(".accounts.")[2], re.M)[:2] == [
        "tenants",
        "former_tenants",
    ], "an account is shown, and in force for nobody"
    wanted = set(provider) - optional - {"accounts", "former_tenants"}
    assert {key: value for key, value in shown.items() if key not in optional} == {key: provider[key] for key in wanted}


def _without_none(table: dict[str, Any]) -> dict[str, Any]:
    """What has no default is shown as a comment."""
    return {key: value for key, value in table.items() if value is not None}
