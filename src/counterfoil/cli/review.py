"""`counterfoil review list|show|happened|not-happened|ask-again|give-up`: actions that only a person moves on."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from counterfoil.cli import place
from counterfoil.cli.action import ActionId, print_sentences, read_action, terms_of
from counterfoil.cli.options import AsJson, ConfigPath, Limit, Tenant, group
from counterfoil.cli.output import as_json, clean, distance, note, say, stamp, stop, table
from counterfoil.cli.searched import forms_of
from counterfoil.ledger.states import State

if TYPE_CHECKING:
    from counterfoil.cli.explain import Explanation
    from counterfoil.ledger.connection import Ledger, Row
    from counterfoil.ledger.reviews import Said
    from counterfoil.people.reviews import Verb, Would

app = group("Actions in review: evidence is missing or contradictory, and only a person moves them on.")

Why = Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Why; kept with the answer.")]
WaitS = Annotated[
    float, typer.Option("--wait-s", min=0, max=3600, metavar="S", help="Wait for the reconciler's answer this long.")
]
WAIT_S = 30.0

_MICROSECONDS = re.compile(r"\.\d{1,6}\+00:00")
"""How the history writes the end of a time; people read whole seconds everywhere else."""

EXIT = {"done": 0, "contradicted": 4, "refused": 4, "waits": 6}


@app.command("list")
def list_reviews(tenant: Tenant = None, limit: Limit = 50, json_: AsJson = False, config: ConfigPath = None) -> None:
    """List what waits in review, the longest waiting first. Exit 6 if anything does.

    \b
    counterfoil review list --tenant acme
    """
    from counterfoil.cli.explain import why
    from counterfoil.ledger.reviews import in_review

    with place.open_ledger(config, "reader") as ledger:
        rows = in_review(ledger, tenant=tenant, limit=limit)
    if json_:
        as_json([{**row, "why": why(row["last_error_code"])} for row in rows])
    else:
        table(
            ("action", "tenant", "run", "tool", "target", "amount", "since", "why"),
            [
                [
                    *(row[name] for name in ("action_id", "tenant", "run", "tool", "target")),
                    _amount(row),
                    distance(row["since"], row["now"]),
                    why(row["last_error_code"]) if row["asked"] is None else f"being asked for {row['asked_by']}",
                ]
                for row in rows
            ],
            empty="nothing is in review",
        )
    if any(row["state"] == State.OPERATOR_REVIEW for row in rows):
        stop(6)


@app.command()
def show(
    action_id: ActionId,
    arguments: Annotated[bool, typer.Option("--arguments", help="Also its arguments; readers may not.")] = False,
    json_: AsJson = False,
    config: ConfigPath = None,
) -> None:
    """Show the evidence: what was sent and when, what each look-up showed, who has said what, and what each verb would do.

    Ends with what to search for at the provider: the key in the forms in which it is shown there.

    \b
    counterfoil review show act_k3v7…
    counterfoil review show act_k3v7… --arguments
    """
    with place.open_ledger(config, "operator") as ledger:
        page = _page(ledger, action_id, config, arguments=arguments)
    if json_:
        as_json(page.to_json())
    else:
        page.print()


@app.command()
def happened(
    action_id: ActionId,
    receipt: Annotated[
        str, typer.Option("--receipt", metavar="ID", help="The provider's id of what happened, such as pi_3N….")
    ],
    reason: Why = None,
    wait_s: WaitS = WAIT_S,
    json_: AsJson = False,
    config: ConfigPath = None,
) -> None:
    """Say that it happened, as this object of the provider, which is fetched and checked before anything is believed.

    Exit 4 when the provider shows otherwise, 6 when nobody has answered yet or it is in review again. Nothing is sent.

    \b
    counterfoil review happened act_k3v7… --receipt pi_3NqL…
    """
    _ask("happened", action_id, receipt=receipt, reason=reason, wait_s=wait_s, json_=json_, config=config)


@app.command("not-happened")
def not_happened(
    action_id: ActionId, reason: Why = None, wait_s: WaitS = WAIT_S, json_: AsJson = False, config: ConfigPath = None
) -> None:
    """Say that it did not happen. The provider is asked once more first, and what it holds wins.

    Exit 4 when the provider holds it, 6 when it is too early to tell or nobody has answered yet. Nothing is sent.

    \b
    counterfoil review not-happened act_k3v7… --reason "looked at the dashboard"
    """
    _ask("not_happened", action_id, receipt=None, reason=reason, wait_s=wait_s, json_=json_, config=config)


@app.command("ask-again")
def ask_again(
    action_id: ActionId, reason: Why = None, wait_s: WaitS = WAIT_S, json_: AsJson = False, config: ConfigPath = None
) -> None:
    """Leave it to the ordinary look-ups and their verdict once more.

    \b
    counterfoil review ask-again act_k3v7… --reason "provider is up again"
    """
    _ask("ask_again", action_id, receipt=None, reason=reason, wait_s=wait_s, json_=json_, config=config)


@app.command("give-up")
def give_up(
    action_id: ActionId,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; kept in the history.")],
    as_happened: Annotated[
        bool, typer.Option("--as-happened", help="End it as a success that nothing verifies, in your name.")
    ] = False,
    json_: AsJson = False,
    config: ConfigPath = None,
) -> None:
    """End what nobody can find out more about: as failed where by evidence nothing has happened, else not without
    --as-happened.

    What is ended as failed may be proposed anew by an agent, so that takes evidence. Exit 4 when there is none.

    \b
    counterfoil review give-up act_k3v7… --reason "provider has closed the account"
    counterfoil review give-up act_k3v7… --as-happened --reason "customer shows the letter"
    """
    from counterfoil.people import reviews

    with place.open_ledger(config, "operator") as ledger:
        said = reviews.give_up(
            ledger, action_id, by=place.person(), channel="cli", reason=reason, as_happened=as_happened
        )
    _end("give_up", said, json_=json_)


def _ask(
    verb: Any,
    action_id: str,
    *,
    receipt: str | None,
    reason: str | None,
    wait_s: float,
    json_: bool,
    config: Path | None,
) -> None:
    from counterfoil.people import reviews

    with place.open_ledger(config, "operator") as ledger:
        asked = reviews.ask(
            ledger, action_id, verb=verb, receipt=receipt, by=place.person(), channel="cli", reason=reason
        )
        if asked.answer == "asked" and wait_s:
            note(f"asked; waiting up to {wait_s:g} s for the reconciler")
        said = reviews.wait_for_answer(ledger, asked, wait_s=wait_s)
    _end(verb, said, json_=json_)


def _end(verb: Verb, said: Said, *, json_: bool) -> None:
    from counterfoil.people import reviews

    came = reviews.came_of(verb, said)
    text = reviews.told(verb, said)
    if json_:
        as_json(
            {
                "action_id": said.action_id,
                "verb": verb,
                "review_id": said.review_id,
                "came_of": came,
                "answer": said.answer,
                "state": said.state,
                "evidence": said.evidence,
                "message": text,
            }
        )
    else:
        say(f"{said.action_id}: {text}")
        if said.evidence:
            say(f"  {_MICROSECONDS.sub('Z', clean(said.evidence))}")
        if said.answer == "unverified_only":
            say("  --as-happened ends it as a success that nothing verifies, in your name; ask-again asks once more")
    if EXIT[came]:
        stop(EXIT[came])


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What `show` tells. A reader's page has neither receipts, reasons nor evidence in it."""

    action: Row
    said: Explanation
    sent: list[Row]
    candidates: list[str]
    requests: list[Row]
    verbs: list[Would]
    searched: dict[str, str]
    """What to search for at the provider."""
    arguments: dict[str, Any] | None = None

    def to_json(self) -> dict[str, object]:
        return {
            "action_id": self.action["action_id"],
            "state": self.action["state"],
            "code": self.action["last_error_code"],
            **self.said.to_json(),
            "sent": self.sent,
            "candidates": self.candidates,
            "requests": self.requests,
            "verbs": [{"verb": w.verb, "would": w.text, "counts_from": w.counts_from} for w in self.verbs],
            "search_for": self.searched,
            **({} if self.arguments is None else {"arguments": self.arguments}),
        }

    def print(self) -> None:
        from counterfoil.cli.explain import NOBODY

        say(self.said.what)
        say(self.said.state)
        say()
        table(
            ("attempt", "sent", "answered", "outcome", "code", "receipt"),
            [
                [r["number"], r["started_at"], r["finished_at"], r["outcome"], r["code"], r.get("receipt")]
                for r in self.sent
            ],
            empty="no attempts: nothing was sent",
        )
        print_sentences("What is known", self.said.known, dated=True)
        if self.candidates:
            say()
            say(f"Candidates: {clean(', '.join(self.candidates))}")
        print_sentences("Who must act", self.said.person or NOBODY)
        self._print_requests()
        if self.verbs:
            say()
            say("What each verb would do now")
        for w in self.verbs:
            when = f"; counts from {stamp(w.counts_from)} on" if w.counts_from else ""
            say(f"  {w.verb.replace('_', '-'):<13} {w.text}{when}")
        if self.searched:
            say()
            say("What to search for at the provider")
        for name, form in self.searched.items():
            say(f"  {name.replace('_', '-'):<13} {form}")
        if self.arguments is not None:
            say()
            say("Arguments")
        for name, value in (self.arguments or {}).items():
            say(f"  {clean(name):<13} {clean(json.dumps(value, ensure_ascii=False))}")

    def _print_requests(self) -> None:
        if self.requests:
            say()
            table(
                ("asked", "by", "verb", "receipt", "reason", "answer", "evidence"),
                [
                    [
                        r["asked_at"],
                        r["by_person"],
                        r["verb"],
                        r.get("receipt"),
                        r.get("reason"),
                        r["answer"],
                        r.get("evidence"),
                    ]
                    for r in self.requests
                ],
                empty="",
            )


def _page(ledger: Ledger, action_id: str, config: Path | None, *, arguments: bool) -> Page:
    from counterfoil.cli.explain import explain
    from counterfoil.ledger import reviews
    from counterfoil.ledger.queries import load
    from counterfoil.people.reviews import would

    agent, own = load("counterfoil.ledger", "sql/agent.sql"), load("counterfoil.cli", "sql/show.sql")
    action, wanted = read_action(ledger, action_id), {"action_id": action_id}
    in_full = reviews.may_read_in_full(ledger)
    history = ledger.rows(own["proved_in_action"] if in_full else agent["read_history"], wanted)
    attempts = ledger.rows(agent["read_attempts"], wanted)
    sent = reviews.sent_in_full(ledger, action_id) if in_full else attempts
    terms = terms_of(action, config)
    verbs: list[Would] = []
    recorded = (ledger.row(own["said_in_action"], wanted) if in_full or arguments else None) or {}
    if action["state"] == State.OPERATOR_REVIEW and in_full:
        proved, may_give_up = reviews.evidence_on(ledger, action_id)
        verbs = would(action, terms.contract, can_fetch=terms.can_fetch, sent=proved, may_give_up=may_give_up)
    return Page(
        action=action,
        said=explain(action, attempts, history, terms),
        sent=sent,
        candidates=_candidates(sent, history),
        requests=reviews.requests_about(ledger, action_id, in_full=in_full),
        verbs=verbs,
        searched=forms_of(recorded.get("key"), action["provider"], config),
        arguments=json.loads(recorded["arguments"]) if arguments else None,
    )


def _candidates(sent: Sequence[Row], history: Sequence[Row]) -> list[str]:
    """The provider's ids that attempts or look-ups came upon, the newest first."""
    from counterfoil.cli.evidence import receipts_in

    found = [row["receipt"] for row in sent if row.get("receipt")]
    for row in history:
        found += receipts_in(row.get("evidence"))
    return list(dict.fromkeys(reversed(found)))


def _amount(row: Mapping[str, Any]) -> str | None:
    from counterfoil.people.amounts import money

    return None if row["amount_minor"] is None else money(row["amount_minor"], row["currency"])
