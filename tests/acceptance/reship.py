"""The example of the reordered plan in a test's world: its own tools and agent code, and everybody else by hand."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import psycopg

from counterfoil import Counterfoil, Proposal, Run
from counterfoil.testing import World

if TYPE_CHECKING:
    from tests.conftest import Database

FOLDER = Path(__file__).parents[2] / "examples" / "reship"

COUNTED = (
    *("authorizations", "charges", "cancellations", "refunds", "tickets_created", "tickets_open", "transitions"),
    *("drafts_created", "drafts_open", "drafts_deleted", "customer_messages"),
)
PREPARED = dict.fromkeys(COUNTED, 0) | {
    **dict.fromkeys(("authorizations", "tickets_created", "tickets_open", "drafts_created", "drafts_open"), 1)
}
"""Before the decision: one hold, one staged ticket, one draft."""
COMMITTED = PREPARED | {"charges": 1, "transitions": 1, "drafts_open": 0, "customer_messages": 1}
"""After an approval: captured, opened, sent, each once."""
TAKEN_BACK = PREPARED | {"cancellations": 1, "transitions": 1, "tickets_open": 0, "drafts_open": 0, "drafts_deleted": 1}
"""After a rejection: the hold released, the ticket closed, the draft deleted; nobody was charged or told anything."""
CALLS = ("search_orders", "lookup_policy", "email_draft", "jira_stage", "stripe_authorize", "propose")
"""What the agent does before it ends its turn."""


class Killed(BaseException):
    """Plays a SIGKILL of the agent; nothing may catch it."""


class MortalRun:
    """A run whose process dies when so many of its calls have returned."""

    def __init__(self, run: Run, calls: int) -> None:
        self._run, self._left = run, calls

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            answer = getattr(self._run, name)(*args, **kwargs)
            self._left -= 1
            if self._left == 0:
                raise Killed
            return answer

        return call


def load(name: str) -> ModuleType:
    """A module of the example; under a name of its own, since `tools` may be anybody's."""
    module_name = f"reship_{name}"
    spec = importlib.util.spec_from_file_location(module_name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[module_name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@dataclass(kw_only=True)
class Reship:
    """Order 1182: its agent, the people who decide, and what the world has seen of it."""

    world: World
    database: Database
    agent: ModuleType
    client: Callable[..., Counterfoil]
    working: Callable[[], AbstractContextManager[None]]
    proposal_id: str = ""

    def prepare(self, *, dies_after: int = 0, **words: str) -> Proposal:
        """Starts the agent from nothing; with `words` its model says something else. Then versions are read."""
        with self.working(), self.client().run("reship-1182", tenant="acme", actor="reship-bot") as run:
            handle: Any = MortalRun(run, dies_after) if dies_after else run
            proposal: Proposal = self.agent.reship(handle, "1182", self.agent.Words(**words))
        self.proposal_id = proposal.id
        self.world.settle()
        return proposal

    def decide(self, verdict: str = "approved", by: str = "alice") -> str:
        """Through the people's door, over the digest of now; what it answers."""
        with psycopg.connect(self.database.url("operator")) as connection:
            row = connection.execute("SELECT counterfoil.proposal_digest(%s)", (self.proposal_id,)).fetchone()
        assert row is not None
        return self.operator("decide", self.proposal_id, verdict, row[0], by, "cli")

    def operator(self, door: str, *arguments: str) -> str:
        """One of the people's doors; its answer."""
        marks = ", ".join(["%s"] * len(arguments))
        with psycopg.connect(self.database.url("operator")) as connection:
            row = connection.execute(f"SELECT answer FROM counterfoil.{door}({marks})".encode(), arguments).fetchone()
        assert row is not None
        return str(row[0])

    def unwind(self, reason: str = "rejected") -> None:
        """Has everything taken back, and waits for it."""
        with self.client().run("reship-1182", tenant="acme", actor="reship-bot") as run:
            run.unwind(reason)
        self.world.settle()

    def counts(self) -> dict[str, int]:
        """What the world has seen."""
        counts = self.world.sandbox.counts()
        return {name: counts[name] for name in COUNTED}

    def kinds(self) -> list[str]:
        """The same in the order in which it happened."""
        return [effect.kind for effect in self.world.sandbox.effects()]

    def states(self) -> dict[str, str]:
        """The state of each tool's action; each tool acts once here."""
        return {name.partition("/")[0]: state for name, state in self.world.states().items()}
