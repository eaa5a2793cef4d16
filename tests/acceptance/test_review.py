"""What a person says about an action in review is checked at the provider, and never leads to a second effect."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import requests
from tests.acceptance.doubts import CHARGE, CREATE, LANDED_S, charge_ids, doubt, made_by_hand, sends, shown, state_of

from counterfoil import tool
from counterfoil.providers.outcomes import Found, Uncertain
from counterfoil.testing import World

if TYPE_CHECKING:
    from tests.conftest import Database

POST_S = 600.0


@pytest.fixture
def doubted(world: World, enqueue: Any, sql: Any) -> Any:
    """See `doubt`."""
    return partial(doubt, world, enqueue, sql)


@pytest.fixture
def ask(world: World, cli: Any) -> Any:
    """Asks by the command line and lets the reconciler tick once; the answer that is on record then."""

    def say(verb: str, action_id: str, *options: str) -> str | None:
        code, told = cli("review", verb, action_id, "--wait-s", "0", "--json", *options)
        assert (code, json.loads(told)["answer"]) == (6, None)
        world.reconcile()
        return shown(cli, action_id)["requests"][-1]["answer"]

    return say


def test_happened_by_the_right_id(world: World, doubted: Any, ask: Any, cli: Any, sql: Any) -> None:
    """The provider's id of our own effect settles the action, with that receipt and the declared result; nothing is sent."""
    action_id = doubted()
    [receipt] = charge_ids(world)
    assert ask("happened", action_id, "--receipt", receipt, "--reason", "seen in the dashboard") == "succeeded"
    assert state_of(sql, action_id) == ("succeeded", receipt)
    world.settle()
    assert (world.sandbox.count("charges"), sends(world)) == (1, 1)
    [request] = shown(cli, action_id)["requests"]
    assert (request["channel"], request["db_role"], request["reason"]) == (
        "cli",
        "cf_operator",
        "seen in the dashboard",
    )
    assert receipt in request["evidence"]
    [result] = sql("SELECT result FROM counterfoil.action WHERE action_id = %s", action_id)
    assert json.loads(result[0])["amount"] == 500


def test_happened_by_another_id(world: World, doubted: Any, enqueue: Any, ask: Any, sql: Any) -> None:
    """No object, another action's, one of another amount under our key, a declined one: each stays in review and says why."""
    action_id = doubted("504_before_commit")
    other = enqueue("stripe_charge", CHARGE | {"order_id": "1183"}, "other")
    world.work()
    [[_, receipt]] = [state_of(sql, other)]
    [[key]] = sql("SELECT key FROM counterfoil.action WHERE action_id = %s", action_id)
    assert ask("happened", action_id, "--receipt", "pi_none") == "not_found"
    assert ask("happened", action_id, "--receipt", "../refunds") == "not_found"
    assert ask("happened", action_id, "--receipt", receipt) == "other_key"
    assert ask("happened", action_id, "--receipt", made_by_hand(world, key, 499)) == "mismatch"
    assert (
        ask("happened", action_id, "--receipt", made_by_hand(world, key, 500, "pm_card_chargeDeclined"))
        == "failed_there"
    )
    assert state_of(sql, action_id) == ("operator_review", None)
    assert sends(world) == 4, "one of each action and two by hand"


def test_one_of_several(world: World, doubted: Any, ask: Any, cli: Any, sql: Any) -> None:
    """Where the provider holds two under our key, a person chooses one of those that `show` names; no third is made."""
    action_id = doubted()
    [[key]] = sql("SELECT key FROM counterfoil.action WHERE action_id = %s", action_id)
    twin = made_by_hand(world, key, 500)
    assert ask("ask-again", action_id) == "many_found"
    assert sorted(shown(cli, action_id)["candidates"]) == sorted(charge_ids(world))
    assert ask("not-happened", action_id) == "many_found"
    assert ask("happened", action_id, "--receipt", twin) == "succeeded"
    assert state_of(sql, action_id) == ("succeeded", twin)
    assert world.sandbox.count("charges") == 2


def test_not_happened_while_it_exists(world: World, doubted: Any, working: Any, cli: Any, sql: Any) -> None:
    """A person is mistaken: the provider holds it, which wins, is told with exit 4, and nothing is sent again."""
    action_id = doubted()
    [receipt] = charge_ids(world)
    with working():
        code, told = cli("review", "not-happened", action_id, "--wait-s", "20")
    assert code == 4
    assert "it did happen" in told
    assert state_of(sql, action_id) == ("succeeded", receipt)
    assert (world.sandbox.count("charges"), sends(world)) == (1, 1)


def test_not_happened_too_early(world: World, doubted: Any, ask: Any, cli: Any, sql: Any, tmp_path: Path) -> None:
    """Before a late request must have landed its absence counts for nothing; it lands, and the second answer finds it."""
    (tmp_path / "counterfoil.toml").write_text('tools = ["counterfoil.providers.stripe.tools"]\n')
    action_id = doubted("504_then_commit_after")
    assert ask("not-happened", action_id) == "too_early"
    page = shown(cli, action_id)
    assert "counts from" in page["requests"][-1]["evidence"]
    assert next(v for v in page["verbs"] if v["verb"] == "not_happened")["counts_from"] is not None
    world.advance(LANDED_S)
    assert ask("not-happened", action_id) == "found"
    assert (world.sandbox.count("charges"), sends(world)) == (1, 1)
    assert state_of(sql, action_id)[0] == "succeeded"


def test_not_happened_in_time(world: World, doubted: Any, working: Any, cli: Any, sql: Any) -> None:
    """After the window an empty answer and a person's word end it, with exit 0, as not executed; nothing is sent."""
    action_id = doubted("504_before_commit")
    world.advance(LANDED_S)
    with working():
        code, told = cli("review", "not-happened", action_id, "--wait-s", "20")
    assert code == 0
    assert "not executed" in told
    world.settle()
    assert state_of(sql, action_id) == ("not_executed", None)
    assert (world.sandbox.count("charges"), sends(world)) == (0, 1)


def test_a_provider_that_is_away(world: World, doubted: Any, ask: Any, sql: Any) -> None:
    """A look-up that fails bears nothing out: the action is in review again, and nothing is concluded or sent."""
    action_id = doubted()
    world.advance(LANDED_S)
    world.sandbox.stripe.fault("lookup_429", times=None)
    assert ask("not-happened", action_id) == "unknown"
    assert ask("happened", action_id, "--receipt", charge_ids(world)[0]) == "unknown"
    assert state_of(sql, action_id)[0] == "operator_review"
    assert sends(world) == 1


def test_ask_again(world: World, doubted: Any, ask: Any, sql: Any) -> None:
    """Asking again is the ordinary verdict: what exists is found, and what does not is sent again under the same key."""
    assert ask("ask-again", doubted("504_after_commit", "one")) == "succeeded"
    second = doubted("504_before_commit", "two", order_id="1183")
    assert ask("ask-again", second) == "ready"
    world.settle()
    assert state_of(sql, second)[0] == "succeeded"
    assert world.sandbox.count("charges") == 2


def test_cancelled_while_in_review(world: World, doubted: Any, ask: Any, cli: Any, sql: Any) -> None:
    """Asked about again after a cancel, it is settled by what is found, and not sent; once settled, no verb moves it."""
    action_id = doubted("504_before_commit")
    assert cli("action", "cancel", action_id)[0] == 6
    assert ask("ask-again", action_id) is None, "two absences are needed"
    world.settle()
    assert state_of(sql, action_id)[0] == "permanent_failure"
    assert shown(cli, action_id)["requests"][-1]["answer"] == "permanent_failure"
    code, told = cli("review", "not-happened", action_id)
    assert code == 4
    assert "permanent_failure" in told
    assert sends(world) == 1


@pytest.fixture
def letters(use_tools: Any) -> list[str]:
    """The only tool: one that nobody can ask. The letters that were really sent; each answer is lost."""
    sent: list[str] = []

    @tool(
        cls="irreversible",
        effect="letter",
        target="order",
        once_per=None,
        audience=["customer"],
        provider="post",
        landing_max_s=POST_S,
        approval="never",
        uncertain="operator_review",
    )
    def send_letter(order: str, *, key: str) -> dict[str, str]:
        """Tell the customer."""
        if order == "reaches":
            sent.append(order)
        raise requests.ReadTimeout

    use_tools(send_letter)
    return sent


@pytest.mark.parametrize("order", ["reaches", "lost"])
def test_a_tool_that_nobody_can_ask(
    world: World, letters: list[str], enqueue: Any, ask: Any, cli: Any, order: str
) -> None:
    """A receipt cannot be verified there; a person's word that it did not happen counts after the landing window."""
    action_id = enqueue("send_letter", {"order": order})
    world.settle()
    assert ask("happened", action_id, "--receipt", "letter_1") == "cannot_verify"
    assert ask("ask-again", action_id) == "no_lookup"
    assert ask("not-happened", action_id) == "too_early"
    world.advance(POST_S)
    assert ask("not-happened", action_id, "--reason", "asked the post office") == "not_executed"
    world.settle()
    assert letters == (["reaches"] if order == "reaches" else [])
    code, told = cli("action", "explain", action_id)
    assert code == 0
    assert "a person vouches for it" in told


def test_a_word_that_was_given_too_early(world: World, letters: list[str], enqueue: Any, cli: Any, sql: Any) -> None:
    """What lands after a person spoke and before a reconciler came is not called undone: the word counts as of its time."""
    action_id = enqueue("send_letter", {"order": "reaches"})
    world.settle()
    cli("review", "not-happened", action_id, "--wait-s", "0")
    world.advance(POST_S + 60)  # no reconciler runs; what is in the post arrives
    world.reconcile()
    assert shown(cli, action_id)["requests"][-1]["answer"] == "too_early"
    assert state_of(sql, action_id)[0] == "operator_review"
    assert letters == ["reaches"]


def test_a_payment_that_is_being_processed(
    world: World, configure: Any, enqueue: Any, ask: Any, cli: Any, sql: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Absence was earned, and then a person names a payment that the provider still works on: that cannot be given up."""
    configure("stripe", attempts_max=1)
    world.sandbox.stripe.fault("504_before_commit", on=CREATE)
    action_id = enqueue("stripe_charge", CHARGE)
    world.settle()
    assert shown(cli, action_id)["code"] == "absent"
    [[key]] = sql("SELECT key FROM counterfoil.action WHERE action_id = %s", action_id)
    made = made_by_hand(world, key, 500)
    adapter = type(world.reconciler.look_ups.adapter(world.registry.get("stripe_charge", None), "default"))
    monkeypatch.setattr(adapter, "fetch", lambda *_, **__: Found(Uncertain("processing")))
    assert ask("happened", action_id, "--receipt", made) == "unknown"
    assert cli("review", "give-up", action_id, "--reason", "enough")[0] == 4
    assert state_of(sql, action_id)[0] == "operator_review"
    assert "not done with it yet" in cli("review", "list")[1]


def test_giving_up(world: World, letters: list[str], enqueue: Any, cli: Any, sql: Any) -> None:
    """Without evidence giving up is refused and says so; as a success it is unverified, in a named person's name."""
    action_id = enqueue("send_letter", {"order": "lost"})
    world.settle()
    code, told = cli("review", "give-up", action_id, "--reason", "nobody knows")
    assert code == 4
    assert "--as-happened" in told
    assert state_of(sql, action_id)[0] == "operator_review"
    code, _ = cli("review", "give-up", action_id, "--as-happened", "--reason", "customer shows it")
    assert code == 0
    assert state_of(sql, action_id) == ("succeeded", "unverified")
    [[reason, by]] = sql(
        "SELECT reason, changed_by FROM counterfoil.history WHERE action_id = %s AND to_state = 'succeeded'", action_id
    )
    assert f"unverified: {by} says" in reason
    assert letters == []


def test_giving_up_with_evidence(world: World, configure: Any, enqueue: Any, ask: Any, cli: Any, sql: Any) -> None:
    """Where absence was earned and no attempt is left, giving up ends it as failed, and nothing is sent."""
    configure("stripe", attempts_max=1)
    world.sandbox.stripe.fault("504_before_commit", on=CREATE)
    action_id = enqueue("stripe_charge", CHARGE)
    world.settle()
    assert shown(cli, action_id)["code"] == "absent"
    assert ask("happened", action_id, "--receipt", "pi_none") == "not_found"
    assert shown(cli, action_id)["code"] == "absent", "why it came up is not forgotten"
    assert cli("review", "give-up", action_id, "--reason", "wrong order")[0] == 0
    world.settle()
    assert state_of(sql, action_id) == ("permanent_failure", None)
    assert (world.sandbox.count("charges"), sends(world)) == (0, 1)


def test_what_contradicts_giving_up(world: World, doubted: Any, ask: Any, cli: Any, sql: Any) -> None:
    """Neither a payment of another amount under our key nor a receipt of a late attempt lets a person call it failed."""
    action_id = doubted("504_before_commit")
    [[key]] = sql("SELECT key FROM counterfoil.action WHERE action_id = %s", action_id)
    sql("UPDATE counterfoil.action SET last_error_code = 'absent' WHERE action_id = %s", action_id)
    assert ask("happened", action_id, "--receipt", made_by_hand(world, key, 499)) == "mismatch"
    assert cli("review", "give-up", action_id, "--reason", "x")[0] == 4
    sql(
        "UPDATE counterfoil.attempt SET outcome = 'succeeded', receipt = 'pi_late', result = '{\"id\": \"pi_late\"}'"
        " WHERE action_id = %s",
        action_id,
    )
    sql("UPDATE counterfoil.action SET last_error_code = 'absent' WHERE action_id = %s", action_id)
    assert cli("review", "give-up", action_id, "--reason", "x")[0] == 4
    assert ask("not-happened", action_id) == "found"
    assert state_of(sql, action_id) == ("succeeded", "pi_late")


def test_nothing_was_ever_sent(world: World, enqueue: Any, sql: Any, cli: Any) -> None:
    """A row that was stopped before its call is ended by a person at once; that it happened cannot be said of it."""
    action_id = enqueue("stripe_charge", CHARGE)
    sql(
        "UPDATE counterfoil.action SET state = 'operator_review', last_error_code = 'policy_mismatch', changed_by = 'w'"
        " WHERE action_id = %s",
        action_id,
    )
    for verb in (["happened", "--receipt", "pi_1"], ["ask-again"]):
        assert cli("review", verb[0], action_id, *verb[1:])[0] == 4
    assert cli("review", "give-up", action_id, "--as-happened", "--reason", "x")[0] == 4
    assert cli("review", "not-happened", action_id)[0] == 0
    world.settle()
    assert state_of(sql, action_id)[0] == "not_executed"
    assert sends(world) == 0


def test_what_is_listed_and_shown(
    world: World, doubted: Any, cli: Any, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list says why and exits 6; a reader's page has no receipt, reason or evidence, and its verbs are refused."""
    assert cli("review", "list")[0] == 0
    action_id = doubted()
    for usage in (["happened", action_id], ["happened", action_id, "--receipt", " "], ["give-up", action_id]):
        assert cli("review", *usage)[0] == 2
    assert cli("review", "give-up", action_id, "--reason", "x" * 501)[0] == 2
    assert cli("review", "ask-again", "act_" + "z" * 26)[0] == 3
    [receipt] = charge_ids(world)
    code, told = cli("review", "list")
    assert code == 6
    assert action_id in told
    assert "5.00 USD" in told
    code, told = cli("review", "show", action_id)
    assert code == 0
    assert "What each verb would do now" in told
    cli("review", "happened", action_id, "--receipt", "pi_none", "--reason", "secret reason", "--wait-s", "0")
    code, told = cli("review", "list", "--json")
    assert (code, json.loads(told)[0]["asked"]) == (0, "happened"), "it waits for the reconciler, not for a person"
    world.reconcile()
    assert cli("review", "list", "--tenant", "globex")[0] == 0

    monkeypatch.setattr(type(database), "url", _as_reader(database))
    code, told = cli("review", "list")
    assert code == 6
    code, told = cli("review", "show", action_id)
    assert code == 0
    assert "not_found" in told
    for hidden in (receipt, "pi_none", "secret reason"):
        assert hidden not in told
    assert cli("review", "not-happened", action_id)[0] == 4
    assert cli("review", "give-up", action_id, "--reason", "x")[0] == 4


def _as_reader(database: Database) -> Any:
    url = database.url("reader")
    return lambda *_: url


def test_what_to_search_for_is_shown(doubted: Any, cli: Any, sql: Any) -> None:
    """The key in its forms, and with --arguments what was asked for."""
    action_id = doubted()
    [(key,)] = sql("SELECT key FROM counterfoil.action WHERE action_id = %s", action_id)
    page = shown(cli, action_id)
    assert (page["search_for"]["key"], page["search_for"]["label"]) == (key, f"cf-{key}")
    assert "arguments" not in page
    code, told = cli("review", "show", action_id, "--arguments")
    assert (code, f"key           {key}" in told, '"usd"' in told) == (0, True, True)
    code, told = cli("action", "show", action_id, "--arguments")
    assert (code, f"label: cf-{key}" in told) == (0, True)


def test_a_mail_s_message_id_is_shown(tmp_path: Path) -> None:
    """By the sender's domain in the settings; without one, the key's other forms."""
    from counterfoil.cli.searched import forms_of

    key, config = "0123456789abcdef" * 2, tmp_path / "counterfoil.toml"
    config.write_text('[providers.email]\nemail = "shop@shop.example"\n')
    assert forms_of(key, "email", config)["message_id"] == f"<cf-{key}@shop.example>"
    assert set(forms_of(key, "stripe", config)) == {"key", "label", "uuid"}
    assert forms_of(None, "email", config) == {}
