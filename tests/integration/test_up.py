"""`counterfoil up` as people use it: one command, real servers and processes, and a way back."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from counterfoil.ledger.errors import ConfigError
from counterfoil.settings import Settings
from counterfoil.stack.errors import AlreadyUp
from counterfoil.stack.home import Home, home
from counterfoil.stack.project import SHIPPED_TOOLS, MailUrls, write_config
from counterfoil.stack.services import Services
from counterfoil.stack.up import LocalStack, keeper, stop_stack
from counterfoil.stack.valkey import Valkey

Cli = Callable[..., subprocess.CompletedProcess[str]]

MAIL_URLS = MailUrls("smtp://127.0.0.1:2", "imap://127.0.0.1:3")


@pytest.fixture
def project() -> Iterator[Path]:
    """An empty project; whatever runs for it at the end is stopped."""
    folder = Path(tempfile.mkdtemp(prefix="counterfoil-up-"))
    folder.chmod(0o755)  # as root the servers run as another user, who must get in
    yield folder
    if (folder / "home").exists():
        stop_stack(home_of(folder))
    shutil.rmtree(folder)


@pytest.fixture
def cli(project: Path) -> Cli:
    """Runs `counterfoil` in the project as a process of its own."""
    variables = ("COUNTERFOIL_CONFIG", "COUNTERFOIL_DATABASE__URL", "COUNTERFOIL_BROKER__URL")
    environ = {name: value for name, value in os.environ.items() if name not in variables}
    environ["COUNTERFOIL_HOME"] = str(project / "home")

    def run(*argv: str, **env: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "counterfoil.cli", *argv]
        return subprocess.run(
            command, cwd=project, env=environ | env, capture_output=True, text=True, timeout=60, check=False
        )

    return run


def home_of(project: Path) -> Home:
    return home(project, environ={"COUNTERFOIL_HOME": str(project / "home")})


def alive_children(project: Path) -> list[int]:
    records = [json.loads(file.read_text()) for file in (project / "home" / "run").glob("child-*.json")]
    return [record["pid"] for record in records if psutil.pid_exists(record["pid"])]


def wait_for(condition: Callable[[], Any], seconds: float = 15) -> None:
    deadline = time.monotonic() + seconds
    ended = None
    while not (ended := condition()):
        assert time.monotonic() < deadline
        with psutil.Popen([sys.executable, "-c", ""]) as pause:
            pause.wait()
    assert ended


def test_up_acts_and_down_leaves_nothing(cli: Cli, project: Path) -> None:
    """Up detached, an agent's charge by the printed environment, its action listed, a restart, and down."""
    started = cli("up", "--detach", "--json")
    assert started.returncode == 0, started.stderr
    places = json.loads(started.stdout)
    stack_home = home_of(project)
    urls = Services.last(stack_home)
    assert urls is not None
    assert urls.password not in started.stdout + started.stderr
    assert cli("up").returncode == 4, "a second one is refused"
    assert cli("up", "--detach", "--json").stdout == started.stdout, "and detached it is the same one"

    env = json.loads(cli("up", "--env", "--json").stdout)
    assert set(env) == {"COUNTERFOIL_CONFIG", "COUNTERFOIL_DATABASE__URL", "COUNTERFOIL_SANDBOX_URL"}
    assert "cf_agent:" in env["COUNTERFOIL_DATABASE__URL"]
    second = json.loads(cli("up", "--env", "--as", "operator2", "--json").stdout)["COUNTERFOIL_DATABASE__URL"]
    who = json.loads(cli("db", "check", "--json", COUNTERFOIL_DATABASE__URL=second).stdout)
    assert (who["login"], who["groups"]) == ("cf_operator2", ["counterfoil_operator"]), "where two persons must approve"
    with (
        psycopg.connect(env["COUNTERFOIL_DATABASE__URL"]) as agent,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        agent.execute("UPDATE counterfoil.action SET state = 'succeeded'")
    _app_keeps_its_own_tables(json.loads(cli("up", "--env", "--as", "app", "--json").stdout))
    result = charge(env)
    assert result["status"] == "succeeded"
    [action] = json.loads(cli("action", "list", "--json").stdout)
    assert (action["state"], action["action_id"]) == ("succeeded", result["action_id"])
    assert places["sandbox"] in cli("config", "show").stdout
    (project / "counterfoil.toml").write_text("[approval]\nbulk_above = 3\n")
    in_force = cli("config", "show").stdout
    assert places["sandbox"] in in_force, "a project's own file is read as the stack's processes read it"
    assert "approval.bulk_above = 3\n" in in_force

    [worker] = [p for p in psutil.Process(keeper(stack_home)).children() if "worker" in p.cmdline()]
    worker.send_signal(signal.SIGKILL)
    assert charge(env, order="1183")["status"] == "succeeded", "the killed worker was replaced"
    broker = Valkey(stack_home).process()
    assert broker is not None
    broker.kill()
    broker.wait(timeout=10)
    wait_for(lambda: Services.running(stack_home))

    children = alive_children(project)
    assert len(children) == 4
    stopped = cli("down", "--json")
    assert json.loads(stopped.stdout) == {"was_running": True}
    assert not Services.running(stack_home)
    assert not [pid for pid in children if psutil.pid_exists(pid)]
    away = cli("action", "list")
    assert away.returncode == 5
    assert "counterfoil up" in away.stderr
    assert cli("up", "--env").returncode == 5


def _app_keeps_its_own_tables(env: dict[str, str]) -> None:
    """An application's login makes tables in a schema of its own, and writes nothing of the ledger's."""
    with psycopg.connect(env["COUNTERFOIL_DATABASE__URL"]) as app:
        app.execute("CREATE TABLE orders (id int PRIMARY KEY)")
        [where] = app.execute("SELECT to_regclass('app.orders')::text").fetchone() or [None]
        assert where == "orders", "in its own schema, which it finds first"
        app.execute("INSERT INTO orders VALUES (1)")
        app.commit()
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            app.execute("UPDATE counterfoil.action SET state = 'succeeded'")


def charge(env: dict[str, str], order: str = "1182") -> dict[str, Any]:
    """An agent's program, which has nothing but these variables."""
    code = (
        "from counterfoil.client import Counterfoil\n"
        f"with Counterfoil.from_settings().run('ticket-{order}', tenant='acme', actor='bot') as run:\n"
        f"    arguments = {{'order_id': '{order}', 'amount_minor': 500, 'currency': 'usd', 'customer': 'cus_1'}}\n"
        "    print(run.call('stripe_charge', arguments, wait_s=20).model_dump_json())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **env}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_interrupting_up_stops_everything(project: Path) -> None:
    """SIGINT while it starts or runs: the children and the servers end with it, in order."""
    environ = {**os.environ, "COUNTERFOIL_HOME": str(project / "home")}
    with subprocess.Popen(
        [sys.executable, "-m", "counterfoil.cli", "up", "--json"],
        cwd=project,
        env=environ,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            wait_for(lambda: len(alive_children(project)) == 4, 60)  # a busy machine takes half of that to start
            children = alive_children(project)
            process.send_signal(signal.SIGINT)
            process.wait(timeout=40)
        finally:
            process.kill()
    assert not Services.running(home_of(project))
    assert not [pid for pid in children if psutil.pid_exists(pid)]


def test_a_broken_tool_module_is_told_before_anything_runs_on(cli: Cli, project: Path) -> None:
    """Exit 2 naming the module; no server, no child, no keeper stays."""
    refused = cli("up", "--tools", "no_such_module_here")
    assert refused.returncode == 2
    assert "no_such_module_here" in refused.stderr
    assert "Traceback" not in refused.stderr
    detached = cli("up", "--detach", "--tools", "no_such_module_here")
    assert detached.returncode == 2
    assert "no_such_module_here" in detached.stderr, "the cause, and not the last line of a log"
    assert "spelled right?" in detached.stderr, "and its fix"
    assert not Services.running(home_of(project))
    assert alive_children(project) == []


def test_down_without_a_stack_is_3_and_makes_nothing(tmp_path: Path) -> None:
    """Looking does not make a home."""
    environ = {name: value for name, value in os.environ.items() if name != "COUNTERFOIL_HOME"}
    command = [sys.executable, "-m", "counterfoil.cli", "down"]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert list(tmp_path.iterdir()) == []


def test_a_project_keeps_its_tools_and_limits_but_not_its_addresses(project: Path) -> None:
    """What is generated is the project's configuration with everything local put in; Stripe is never the real one."""
    (project / "counterfoil.toml").write_text(
        'tools = ["mine"]\n[limits]\nactions_per_run_max = 7\n[database]\nurl = "postgresql://real/db"\n'
        '[providers.stripe]\nbase_url = "https://api.stripe.com"\napi_key_file = "/no/such"\n'
        '[providers."my shop"]\nbase_url = "http://127.0.0.1:9/x"\nretry_budget = { ratio_max = 0.2 }\n'
        '[tool.mine_charge]\napproval_above_minor = 5\n[approval]\ntwo_person = ["a\\"b", "c\\\\d"]\n'
    )
    made = home_of(project)
    path = write_config(made, project, sandbox_url="http://127.0.0.1:1", mail=MAIL_URLS, fast=True, tools=["more"])
    settings = Settings.load(path, {})
    assert settings.profile == "fast"
    assert settings.tools == ("mine", "more")
    assert settings.limits.actions_per_run_max == 7
    assert settings.database.url is None
    assert settings.provider("stripe").base_url == "http://127.0.0.1:1/stripe"
    assert settings.provider("my shop").retry_budget.ratio_max == 0.2
    assert settings.tool["mine_charge"].approval_above_minor == 5
    assert settings.approval.two_person == ('a"b', "c\\d")
    assert len(settings.key_secret()) >= 32
    assert path.stat().st_mode & 0o077 == 0


def test_without_a_configuration_the_shipped_tools_load(project: Path) -> None:
    """And without the fast profile a project's own address for Stripe stands."""
    made = home_of(project)
    path = write_config(made, project, sandbox_url="http://127.0.0.1:1", mail=MAIL_URLS, fast=False, tools=[])
    assert Settings.load(path, {}).tools == SHIPPED_TOOLS
    (project / "counterfoil.toml").write_text('[providers.stripe]\nbase_url = "https://stripe.example"\n')
    path = write_config(made, project, sandbox_url="http://127.0.0.1:1", mail=MAIL_URLS, fast=False, tools=[])
    assert Settings.load(path, {}).provider("stripe").base_url == "https://stripe.example"


def test_a_fast_stack_refuses_a_provider_that_is_not_here(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loosened times are for sandboxes alone: a real address in the project's file ends the start, servers included."""
    monkeypatch.setenv("COUNTERFOIL_HOME", str(project / "home"))
    (project / "counterfoil.toml").write_text('[providers.mine]\nbase_url = "https://api.example.com"\n')
    with pytest.raises(ConfigError, match=r"providers\.mine"):
        LocalStack(project).start()
    assert not Services.running(home_of(project))


def test_two_stacks_of_one_folder_exclude_each_other(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second start is refused and leaves the first one's servers alone."""
    monkeypatch.setenv("COUNTERFOIL_HOME", str(project / "home"))
    made = home_of(project)
    with made.lock("up"):
        Services.start(made)
        with pytest.raises(AlreadyUp):
            LocalStack(project).start()
        assert Services.running(made)
