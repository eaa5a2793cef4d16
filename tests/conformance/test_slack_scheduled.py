"""Slack's scheduled messages: found on the list and in the channel, taken back by id; and what a person names."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from email.utils import formatdate

import pytest
from tests.conformance.slack_calls import (
    CHANNEL,
    DELETE,
    HISTORY,
    LIST,
    POST,
    POST_MESSAGE,
    SCHEDULE,
    TIMEOUT_S,
    TOKEN,
    adapter_of,
    by_hand,
    doubtful,
    find,
    found,
    ours,
    post_call,
    schedule_call,
    sent,
    unschedule_call,
)

from counterfoil.providers.contract import OTHER_KEY, Call
from counterfoil.providers.outcomes import (
    Absent,
    Finding,
    Found,
    Many,
    NotSent,
    Rejected,
    Succeeded,
    Uncertain,
    Unknown,
)
from counterfoil.providers.slack.client import SlackAdapter
from counterfoil.providers.slack.outcomes import fallback_of
from counterfoil.sandbox.client import Sandbox


@pytest.fixture
def slack(sandbox: Sandbox) -> SlackAdapter:
    return adapter_of(sandbox)


def test_a_message_scheduled_with_metadata_never_posts(sandbox: Sandbox) -> None:
    """Why the key is in a block and a mark: Slack takes such a message, and posts nothing."""
    post_at = int(sandbox.now()) + 3600
    for metadata in (ours(1), None):
        by_hand(sandbox, SCHEDULE, TOKEN, channel=CHANNEL, text="Hello", post_at=post_at, metadata=metadata)
    sandbox.advance(3601)
    assert (sandbox.count("slack_scheduled"), sandbox.count("slack_messages")) == (2, 1)


def test_a_scheduled_message_before_and_after_its_time(slack: SlackAdapter, sandbox: Sandbox) -> None:
    """It is found on the list, then in the channel, shown without the mark; the same words of another call are not it."""
    call, twin = schedule_call(sandbox), schedule_call(sandbox, 2)
    receipt = sent(slack, call)
    assert find(slack, twin) == Absent()
    waiting = found(slack, call)
    assert (waiting.id, waiting.fields["status"]) == (receipt, "scheduled")
    sandbox.advance(3700)
    assert sandbox.count("slack_messages") == 1
    posted = found(slack, call)
    assert posted.fields["status"] == "posted"
    assert posted.id != receipt
    assert find(slack, twin) == Unknown("about_to_post")
    [message] = by_hand(sandbox, HISTORY, channel=CHANNEL)["messages"]
    assert "cf-" not in message["blocks"][0]["text"]["text"]
    reply = schedule_call(sandbox, 3, thread_ts=posted.id)
    sent(slack, reply)
    sandbox.advance(3700)
    assert found(slack, reply).fields["status"] == "posted"


def test_scheduled_decoys_and_twins(slack: SlackAdapter, sandbox: Sandbox) -> None:
    """Our mark on other words or at another time goes to a person, and so do two, waiting or posted."""
    mine = schedule_call(sandbox, 1)
    post_at = int(datetime.fromisoformat(str(mine.arguments["post_at"])).timestamp())
    words = fallback_of(str(POST["text"]), mine.key)
    by_hand(sandbox, SCHEDULE, TOKEN, channel=CHANNEL, text=words + "!", post_at=post_at)
    doubtful(slack, mine, "other_text")
    other = schedule_call(sandbox, 2)
    marked = fallback_of(str(POST["text"]), other.key)
    by_hand(sandbox, SCHEDULE, TOKEN, channel=CHANNEL, text=marked, post_at=post_at + 60)
    doubtful(slack, other, "other_time")
    twin = schedule_call(sandbox, 3)
    for _ in range(2):
        sent(slack, twin)
    assert isinstance(find(slack, twin), Many)
    fake = schedule_call(sandbox, 4)
    by_hand(sandbox, POST_MESSAGE, channel=CHANNEL, text=fallback_of(str(POST["text"]), fake.key))
    assert find(slack, fake) == Absent(), "nothing of it can be in the channel before its time"
    sandbox.advance(3700)
    assert isinstance(find(slack, twin), Many)
    by_hand(sandbox, POST_MESSAGE, channel=CHANNEL, text=fallback_of(str(POST["text"]), fake.key))
    doubtful(slack, fake, "other_author")


@pytest.mark.parametrize("known", [True, False])
def test_taking_back(slack: SlackAdapter, sandbox: Sandbox, known: bool) -> None:
    """By the receipt, or by the mark where the scheduling's answer was lost; afterwards nothing is posted."""
    schedule = schedule_call(sandbox)
    receipt = sent(slack, schedule)
    undo = unschedule_call(sandbox, schedule, receipt if known else None)
    assert find(slack, undo) == Absent()
    assert sent(slack, undo) == receipt
    assert len(sandbox.slack.requests(LIST)) == (1 if known else 2)
    assert find(slack, undo) == (
        Found(Succeeded(receipt, {"id": receipt, "status": "deleted"})) if known else Unknown("of_unresolved")
    )
    sandbox.advance(4000)
    assert sandbox.count("slack_messages") == 0
    assert sandbox.count("slack_unscheduled") == 1


def test_taking_back_what_is_gone(slack: SlackAdapter, sandbox: Sandbox) -> None:
    """Slack has one word for deleted and for posted: which it is decides between done and refused."""
    calls = [schedule_call(sandbox, number, in_s=3600 * number) for number in (1, 2)]
    posted, deleted = (sent(slack, call) for call in calls)
    by_hand(sandbox, DELETE, TOKEN, channel=CHANNEL, scheduled_message_id=deleted)
    undo = unschedule_call(sandbox, calls[1], deleted)
    assert sent(slack, undo) == deleted, "somebody has done it before"
    found(slack, undo)
    sandbox.advance(3600 + 900)
    refused = Rejected("already_posted")
    for receipt in (posted, None, found(slack, calls[0]).id):
        late = unschedule_call(sandbox, calls[0], receipt)
        assert slack.send(late, timeout_s=TIMEOUT_S) == refused
        assert find(slack, late) == Found(refused)
    unknown = unschedule_call(sandbox, schedule_call(sandbox, 7), None)
    assert slack.send(unknown, timeout_s=TIMEOUT_S) == NotSent("of_unresolved")
    assert sandbox.count("slack_unscheduled") == 1


def test_taking_back_in_the_last_minute(slack: SlackAdapter, sandbox: Sandbox) -> None:
    """Slack deletes nothing then: too late where it still waits, and nothing is concluded while it may be on its way."""
    schedule = schedule_call(sandbox)
    undo = unschedule_call(sandbox, schedule, sent(slack, schedule))
    sandbox.advance(3560)
    assert slack.send(undo, timeout_s=TIMEOUT_S) == Rejected("too_late")
    gone = {"ok": True, "scheduled_messages": [], "response_metadata": {"next_cursor": ""}}
    date = {"Date": formatdate(sandbox.now(), usegmt=True)}
    sandbox.slack.fault("answer", on=LIST, status=200, body=gone, headers=date, times=2)
    assert find(slack, undo) == Unknown("about_to_post")
    assert slack.send(undo, timeout_s=TIMEOUT_S) == Uncertain("not_deleted", evidence="Unknown")
    assert sandbox.count("slack_unscheduled") == 0


def test_a_list_that_need_not_show_it_yet(sandbox: Sandbox) -> None:
    """A message that was scheduled just now may be missing from the list, which is no proof that it was taken back."""
    slack = adapter_of(sandbox, read_lag_s=60)
    sandbox.config(search_lag_s={"slack": 50})
    schedule = schedule_call(sandbox)
    undo = unschedule_call(sandbox, schedule, sent(slack, schedule))
    assert find(slack, undo) == Unknown("too_fresh")
    sandbox.advance(58)
    assert find(slack, undo) == Absent(), "it waits, as the list has come to show"
    sent(slack, undo)
    sandbox.advance(51)
    found(slack, undo)


def test_nothing_is_concluded_while_it_may_be_posted(slack: SlackAdapter, sandbox: Sandbox) -> None:
    """Around its time a message may be neither listed nor in the channel yet: that is no absence, which would schedule it a
    second time before that, or call it failed after."""
    schedule = schedule_call(sandbox, in_s=330)
    sent(slack, schedule)
    sandbox.config(search_lag_s={"slack": 50})
    sandbox.advance(230)
    gone = {"ok": True, "scheduled_messages": [], "response_metadata": {"next_cursor": ""}}
    date = {"Date": formatdate(sandbox.now(), usegmt=True)}
    sandbox.slack.fault("answer", on=LIST, status=200, body=gone, headers=date)
    assert find(slack, schedule) == Unknown("about_to_post")
    sandbox.advance(110)
    assert sandbox.count("slack_messages") == 1
    assert find(slack, schedule) == Unknown("about_to_post")
    sandbox.advance(50)
    finding = find(slack, schedule)
    assert isinstance(finding, Found)
    assert finding.renamed  # its `ts` is no other message's
    assert found(slack, schedule).fields["status"] == "posted"
    never = schedule_call(sandbox, 2)
    sandbox.advance(3600 + 86_500)
    assert find(slack, never) == Absent()


def test_a_list_that_shows_no_marks_is_no_absence(slack: SlackAdapter, sandbox: Sandbox) -> None:
    """What this app has scheduled since, there and for that second, may be it, whatever text Slack lists for a block."""
    schedule, later = schedule_call(sandbox), schedule_call(sandbox, 2, in_s=7200)
    sent(slack, schedule)
    [item] = by_hand(sandbox, LIST, TOKEN, channel=CHANNEL)["scheduled_messages"]
    for text in ("Parcel 1182 was &lt;lost&gt; &amp; found", None):
        listed = [{**item, "text": text}]
        cut = {"ok": True, "scheduled_messages": listed, "response_metadata": {"next_cursor": ""}}
        sandbox.slack.fault("answer", on=LIST, status=200, body=cut, times=3)
        doubtful(slack, schedule, "no_key")
        assert find(slack, later) == Absent(), "at another time"
        earlier = replace(schedule, first_sent_at=datetime.fromtimestamp(sandbox.now() + 900, UTC))
        assert find(slack, earlier) == Absent(), "scheduled before that"


def test_a_list_without_the_mark(slack: SlackAdapter, sandbox: Sandbox) -> None:
    """What Slack lists under the receipt waits still, whatever has become of its text."""
    schedule = schedule_call(sandbox)
    receipt = sent(slack, schedule)
    item = {"id": receipt, "channel_id": CHANNEL, "post_at": 1, "date_created": 1, "text": "Parcel"}
    cut = {"ok": True, "scheduled_messages": [item], "response_metadata": {"next_cursor": ""}}
    sandbox.slack.fault("answer", on=LIST, status=200, body=cut)
    assert find(slack, unschedule_call(sandbox, schedule, receipt)) == Absent()


def test_nothing_is_concluded_around_its_time(slack: SlackAdapter, sandbox: Sandbox) -> None:
    """Slack does not say how late a message may be posted: for a day, one without a trace is not called taken back."""
    schedule = schedule_call(sandbox)
    receipt = sent(slack, schedule)
    by_hand(sandbox, DELETE, TOKEN, channel=CHANNEL, scheduled_message_id=receipt)
    undo = unschedule_call(sandbox, schedule, receipt)
    sandbox.advance(3600)
    assert find(slack, undo) == Unknown("about_to_post")
    sandbox.advance(86_300)
    assert find(slack, undo) == Unknown("about_to_post")
    sandbox.advance(200)
    found(slack, undo)


def test_a_list_that_is_stale_settles_nothing(slack: SlackAdapter, sandbox: Sandbox) -> None:
    """Slack refuses a deletion, and its list still shows the message, long before its time: one of them is old."""
    schedule = schedule_call(sandbox)
    receipt = sent(slack, schedule)
    sandbox.config(search_lag_s={"slack": 50})
    by_hand(sandbox, DELETE, TOKEN, channel=CHANNEL, scheduled_message_id=receipt)
    undo = unschedule_call(sandbox, schedule, receipt)
    assert slack.send(undo, timeout_s=TIMEOUT_S) == Uncertain("not_deleted", evidence="Absent")
    sandbox.advance(51)
    found(slack, undo)


def test_what_a_person_names(slack: SlackAdapter, sandbox: Sandbox) -> None:
    """A message is fetched by its `ts`, a waiting one by its id, and checked for our key; none is absent."""
    posts = [post_call(sandbox, number) for number in (1, 2)]
    mine, theirs = (sent(slack, call) for call in posts)
    schedules = [schedule_call(sandbox, number) for number in (3, 4)]
    waiting, other = (sent(slack, call) for call in schedules)

    def fetched(call: Call, receipt: str) -> Finding:
        return slack.fetch(call, receipt, timeout_s=TIMEOUT_S)

    finding = fetched(posts[0], mine)
    assert isinstance(finding, Found)
    assert (finding.target, finding.as_intended) == (CHANNEL, True)
    assert fetched(posts[0], theirs) == Unknown(OTHER_KEY)
    for nothing in ("1700000000.000001", waiting, "", "²", "1764511000.0002/x"):
        assert fetched(posts[0], nothing) == Absent()
    assert isinstance(fetched(schedules[0], waiting), Found)
    assert fetched(schedules[0], other) == Unknown(OTHER_KEY)
    assert fetched(schedules[0], "Q0999") == Absent()
    undo = unschedule_call(sandbox, schedules[0], waiting)
    assert fetched(undo, waiting) == Absent()
    assert fetched(undo, other) == Unknown(OTHER_KEY)
    sandbox.advance(3700)
    posted = found(slack, schedules[0]).id
    assert isinstance(fetched(schedules[0], posted), Found)
    assert fetched(schedules[0], mine) == Unknown(OTHER_KEY)
    sandbox.slack.fault("html_502", on=HISTORY)
    assert isinstance(fetched(posts[0], mine), Unknown)
