"""Makes a backlog as an outage leaves it: uncertain rows in the ledger, and at the sandbox what of them has happened."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import psycopg

from counterfoil.ledger.canonical import canonical_json
from counterfoil.ledger.keys import action_id
from counterfoil.sandbox.store import Store

API_KEY = "sk_test_sandbox"
PROVIDERS = ("stripe", "jira")
ACCOUNT = hashlib.sha256(f"Bearer {API_KEY}".encode()).hexdigest()[:16]
"""How the sandbox keeps the objects of that key apart from another's."""
_TOOLS = {"stripe": "stripe_charge", "jira": "jira_create"}
_COLUMNS = (
    "action_id, tenant, run, step, revision, phase, actor, tool, tool_version, class, effect, target, provider, account,"
    " queue, arguments, arguments_sha256, audience, compensation, amount_minor, currency, state, generation, key,"
    " key_version, attempt_count, in_doubt, first_sent_at, last_sent_at, quiet_from, uncertain_since,"
    " next_lookup_at, last_error_code"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """`rows` calls of one tool, sent once each at `rate_per_s` until `ended_at`; the share `landed` has happened."""

    provider: str
    rows: int
    landed: float
    ended_at: datetime
    rate_per_s: float = 10.0
    tenant: str = "acme"

    @property
    def tool(self) -> str:
        return _TOOLS[self.provider]

    def key(self, number: int) -> str:
        return hashlib.sha256(f"{self.provider} {self.tenant} {number}".encode()).hexdigest()[:32]

    def sent_at(self, number: int) -> datetime:
        return self.ended_at - timedelta(seconds=(self.rows - number) / self.rate_per_s)

    def has_landed(self, number: int) -> bool:
        """Spread evenly."""
        return int((number + 1) * self.landed) > int(number * self.landed)

    def arguments(self, number: int) -> dict[str, object]:
        if self.provider == "jira":
            return {"issue_type": "Task", "order_id": f"o{number}", "project": "SUP", "summary": "Reship"}
        return {
            "amount_minor": 1200,
            "currency": "eur",
            "customer": f"cus_{self.tenant}{number}",
            "order_id": f"o{number}",
            "payment_method": "pm_card_visa",
        }


def fill_ledger(owner_url: str, backlog: Backlog) -> None:
    """Writes the rows with triggers off, as the owner."""
    money = (1200, "eur") if backlog.provider == "stripe" else (None, None)
    effect = "charge" if backlog.provider == "stripe" else "ticket"
    with psycopg.connect(owner_url) as connection:
        connection.execute("SET LOCAL session_replication_role = replica")
        connection.execute(
            "INSERT INTO counterfoil.run (tenant, run, actor) VALUES (%s, %s, 'bot') ON CONFLICT DO NOTHING",
            (backlog.tenant, backlog.provider),
        )
        with connection.cursor().copy(f"COPY counterfoil.action ({_COLUMNS}) FROM STDIN".encode()) as copy:
            for number in range(backlog.rows):
                arguments, sent_at = canonical_json(backlog.arguments(number)), backlog.sent_at(number)
                quiet_from = sent_at + timedelta(seconds=3)
                copy.write_row(
                    (
                        *(
                            action_id(backlog.tenant, backlog.provider, f"s{number}", 1, "do"),
                            backlog.tenant,
                            backlog.provider,
                            f"s{number}",
                            1,
                            "do",
                            "bot",
                        ),
                        *(backlog.tool, 1, "compensatable", effect, f"o{number}", backlog.provider, "default"),
                        *(f"cf-{backlog.provider}", arguments, hashlib.sha256(arguments.encode()).hexdigest()),
                        *(["finance"], None, *money, "uncertain", 1, backlog.key(number), 1),
                        *(1, True, sent_at, sent_at, quiet_from, quiet_from, quiet_from, "http_504"),
                    )
                )
        connection.execute("ANALYZE counterfoil.action")


def fill_sandbox(folder: Path, *backlogs: Backlog) -> None:
    """Writes what has landed into the database of a sandbox that is not running yet."""
    folder.mkdir(parents=True, exist_ok=True)
    store = Store(folder / "sandbox.db")
    store.configure({"search_lag_s": {"jira": 0, "stripe": 0}})
    with store.transaction():
        for backlog in backlogs:
            put = _put_charge if backlog.provider == "stripe" else _put_ticket
            for number in filter(backlog.has_landed, range(backlog.rows)):
                put(store, backlog, number)
        store.db.execute(
            "UPDATE objects SET created = json_extract(data, '$.created') WHERE kind IN ('payment_intent')"
        )
    store.close()


def _put_charge(store: Store, backlog: Backlog, number: int) -> None:
    given, created = backlog.arguments(number), int(backlog.sent_at(number).timestamp() + 0.3)
    intent = {
        "id": f"pi_{backlog.key(number)[:24]}",
        "object": "payment_intent",
        "amount": given["amount_minor"],
        "amount_capturable": 0,
        "amount_received": given["amount_minor"],
        "capture_method": "automatic_async",
        "created": created,
        "currency": given["currency"],
        "customer": given["customer"],
        "latest_charge": None,
        "metadata": {"counterfoil_key": backlog.key(number), "counterfoil_order": given["order_id"]},
        "status": "succeeded",
    }
    store.put("payment_intent", str(intent["id"]), intent, account=ACCOUNT, parent=str(given["customer"]))
    store.record_effect("stripe", "charge", str(intent["id"]), key=backlog.key(number), amount=1200, currency="eur")


def _put_ticket(store: Store, backlog: Backlog, number: int) -> None:
    created, label = backlog.sent_at(number).timestamp() + 0.3, f"cf-{backlog.key(number)}"
    issue = {
        "id": str(100_000 + number),
        "key": f"SUP-{100_000 + number}",
        "project": "SUP",
        "issuetype": "Task",
        "fields": {"summary": "Reship", "labels": [label]},
        "status": "To Do",
        "creator": "bot",
        "properties": {"counterfoil": {"key": backlog.key(number), "target": f"o{number}"}},
        "created": created,
        "updated": created,
    }
    store.put("issue", str(issue["id"]), issue)
    store.index("jira", "issue", str(issue["id"]), issue, [f"label={label}"], at=created)
    store.record_effect("jira", "ticket", str(issue["key"]), key=backlog.key(number), data={"status": "To Do"})
