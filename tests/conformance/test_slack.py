"""Slack through slack-sdk: what goes over the wire, what an ambiguous answer means, and what the defaults would do."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
import requests
from slack_sdk import WebClient
from tests.conformance.slack_calls import (
    CHANNEL,
    HISTORY,
    POST,
    POST_MESSAGE,
    SCHEDULE,
    TIMEOUT_S,
    TOKEN,
    TOOLS,
    adapter_of,
    by_hand,
    doubtful,
    find,
    found,
    ours,
    post_call,
    schedule_call,
    sent,
)

from counterfoil.ledger.errors import ArgumentError
from counterfoil.providers.outcomes import (
    Absent,
    Found,
    Many,
    NotSent,
    Rejected,
    Uncertain,
    Unknown,
)
from counterfoil.providers.slack.client import SlackAdapter
from counterfoil.providers.slack.config import SlackConfig
from counterfoil.providers.slack.outcomes import plain
from counterfoil.providers.slack.reads import PAGE_SIZE
from counterfoil.sandbox.client import Sandbox


@pytest.fixture
def slack(sandbox: Sandbox) -> SlackAdapter:
    return adapter_of(sandbox)


def test_what_goes_over_the_wire(slack: SlackAdapter, sandbox: Sandbox) -> None:
    """A post has our key in its metadata; a scheduled message has none, but a block and a mark; words mention nobody."""
    post, schedule = post_call(sandbox), schedule_call(sandbox, 2)
    sent(slack, post)
    sent(slack, schedule)
    posted, scheduled = sandbox.slack.requests(POST_MESSAGE)[0], sandbox.slack.requests(SCHEDULE)[0]
    text, still = "Parcel 1182 was &lt;lost&gt; &amp; found", {"unfurl_links": False, "unfurl_media": False}
    assert json.loads(posted.body or "") == {"channel": CHANNEL, "text": text, "metadata": ours(1), **still}
    block = {"type": "section", "block_id": f"cf-{2:032x}", "text": {"type": "mrkdwn", "text": text, "verbatim": True}}
    assert json.loads(scheduled.body or "") == {
        "channel": CHANNEL,
        "text": f"{text}\n[cf-{2:032x}]",
        "blocks": [block],
        "post_at": int(datetime.fromisoformat(str(schedule.arguments["post_at"])).timestamp()),
        **still,
    }
    assert len(sandbox.slack.requests()) == 2, "no reads before these writes"


def test_attempts_send_the_same_bytes(slack: SlackAdapter, sandbox: Sandbox) -> None:
    """Also later, by another client of the same app."""
    for call, operation in ((post_call(sandbox), POST_MESSAGE), (schedule_call(sandbox, 2), SCHEDULE)):
        sent(slack, call)
        sandbox.advance(100)
        sent(adapter_of(sandbox), call)
        assert len({request.body for request in sandbox.slack.requests(operation)}) == 1


def test_by_default_slack_sdk_sends_again(sandbox: Sandbox) -> None:
    """Why the adapter takes over the wire: one message whose answer is lost is two in the channel."""
    client = WebClient(token=TOKEN, base_url=f"{sandbox.slack.url}/api/")
    sandbox.slack.fault("fin_after_commit", on=POST_MESSAGE)
    client.chat_postMessage(channel=CHANNEL, text="Hello")
    assert sandbox.count("slack_messages") == 2
    sandbox.reset()
    sandbox.slack.fault("fin_after_commit", on=POST_MESSAGE)
    assert isinstance(adapter_of(sandbox).send(post_call(sandbox), timeout_s=TIMEOUT_S), Uncertain)
    assert sandbox.count("slack_messages") == 1


def test_proxies_of_the_environment_are_not_used(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK would send everything, the token too, to whatever the environment names."""
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    sent(adapter_of(sandbox), post_call(sandbox))


def test_nothing_reaches_a_log(slack: SlackAdapter, sandbox: Sandbox, caplog: pytest.LogCaptureFixture) -> None:
    """Neither the words nor the token, at any level, with any answer; and the configuration's text hides the token."""
    with caplog.at_level(logging.DEBUG):
        sent(slack, post_call(sandbox))
        for fault in ("html_2xx", "bad_json_2xx", "rst_after_commit", "500_unstored"):
            sandbox.slack.fault(fault, on=POST_MESSAGE)
            slack.send(post_call(sandbox, 2), timeout_s=TIMEOUT_S)
        find(slack, post_call(sandbox))
    assert "1182" not in caplog.text
    assert TOKEN not in caplog.text
    assert TOKEN not in repr(SlackConfig(token=TOKEN))


def test_two_accounts_in_one_process(sandbox: Sandbox) -> None:
    """Each adapter speaks with its own token, and takes no message of the other's app for its own."""
    first, second = adapter_of(sandbox, "xoxb-1"), adapter_of(sandbox, "xoxb-2")
    call = post_call(sandbox)
    sent(first, call)
    sent(second, post_call(sandbox, 2))
    authors = {each["bot_id"] for each in by_hand(sandbox, HISTORY, channel=CHANNEL)["messages"]}
    assert len(authors) == 2
    found(first, call)
    doubtful(second, call, "other_author")


@pytest.mark.parametrize(
    ("error", "field"),
    [
        ("channel_not_found", "channel"),
        ("not_in_channel", "channel"),
        ("is_archived", "channel"),
        ("msg_too_long", "text"),
        ("no_text", "text"),
        ("invalid_auth", None),
        ("token_revoked", None),
        ("missing_scope", None),
        ("invalid_arguments", None),
    ],
)
def test_slack_s_own_refusals(slack: SlackAdapter, sandbox: Sandbox, error: str, field: str | None) -> None:
    """`ok: false` with HTTP 200 and an error on the list is a definite refusal, which names the argument."""
    sandbox.slack.fault("answer", on=POST_MESSAGE, status=200, body={"ok": False, "error": error})
    assert slack.send(post_call(sandbox), timeout_s=TIMEOUT_S) == Rejected(error, field=field)


@pytest.mark.parametrize(
    ("status", "body", "code"),
    [
        (200, {"ok": False, "error": "internal_error"}, "internal_error"),
        (200, {"ok": False, "error": "fatal_error"}, "fatal_error"),
        (200, {"ok": False, "error": "request_timeout"}, "request_timeout"),
        (200, {"ok": False, "error": "service_unavailable"}, "service_unavailable"),
        (200, {"ok": False, "error": "Parcel 1182 <prose>"}, "malformed"),
        (200, {"ok": False}, "malformed"),
        (200, {"ok": None, "error": "is_archived"}, "malformed"),
        (200, {"error": "is_archived"}, "malformed"),
        (200, {"ok": True}, "malformed"),
        (200, {"ok": True, "ts": 1764511000.0002, "channel": CHANNEL}, "malformed"),
        (200, {"ok": True, "ts": "1764511000.000200", "channel": "C0OTHER0000"}, "malformed"),
        (200, "[]", "malformed"),
        (200, '["ok"]', "exception"),
        (200, "true", "exception"),
        (200, "", "malformed"),
        (204, "", "http_204"),
        (400, "<html>no</html>", "malformed"),
        (403, {"error": "is_archived"}, "malformed"),
        (502, {"ok": False, "error": "is_archived"}, "http_502"),
        (409, {"ok": False, "error": "is_archived"}, "http_409"),
    ],
)
def test_what_proves_nothing(slack: SlackAdapter, sandbox: Sandbox, status: int, body: Any, code: str) -> None:
    """Slack's doubts, errors on no list, other shapes, other senders: uncertain, and no prose in the code."""
    sandbox.slack.fault("answer", on=POST_MESSAGE, status=status, body=body)
    outcome = slack.send(post_call(sandbox), timeout_s=TIMEOUT_S)
    assert isinstance(outcome, Uncertain)
    assert outcome.code == code
    assert "prose" not in outcome.evidence


@pytest.mark.parametrize(("status", "error"), [(429, "ratelimited"), (200, "ratelimited"), (200, "rate_limited")])
def test_throttling_waits_as_long_as_slack_says(slack: SlackAdapter, sandbox: Sandbox, status: int, error: str) -> None:
    """Either form is a refusal for now, with Retry-After up to the configured cap."""
    body, headers = {"ok": False, "error": error}, {"Retry-After": "30"}
    sandbox.slack.fault("answer", on=POST_MESSAGE, status=status, body=body, headers=headers)
    outcome = slack.send(post_call(sandbox), timeout_s=TIMEOUT_S)
    assert outcome == Rejected("rate_limited", retryable=True, retry_after_s=30)


def test_lengths_and_times_that_slack_would_not_keep(slack: SlackAdapter, sandbox: Sandbox) -> None:
    """A text that Slack would cut, and a time at which nothing can be taken back any more, are refused before the wire."""
    too_long = [post_call(sandbox, text="&" * 9_000), schedule_call(sandbox, text="<" * 800)]
    for call in too_long:
        assert slack.send(call, timeout_s=TIMEOUT_S) == Rejected("msg_too_long", field="text")
    soon = schedule_call(sandbox, in_s=290)
    assert slack.send(soon, timeout_s=TIMEOUT_S) == Rejected("too_soon", field="post_at")
    assert not sandbox.slack.requests()
    far = schedule_call(sandbox, in_s=121 * 86_400)
    assert slack.send(far, timeout_s=TIMEOUT_S) == Rejected("time_too_far", field="post_at")
    past = schedule_call(sandbox)
    sandbox.advance(4000)
    assert slack.send(past, timeout_s=TIMEOUT_S) == Rejected("time_in_past", field="post_at")


def test_a_channel_that_others_are_in_is_not_the_team_s(slack: SlackAdapter, sandbox: Sandbox) -> None:
    """`team` is checked with Slack before the write; a direct message counts as seen outside, and doubt refuses."""
    sandbox.config(slack_shared=["C0SHARED000"])
    inside = post_call(sandbox, audience="team")
    sent(slack, inside)
    refused = Rejected("channel_is_shared", field="audience")
    for channel in ("C0SHARED000", "D0123456789"):
        for call in (
            post_call(sandbox, 2, audience="team", channel=channel),
            schedule_call(sandbox, 3, audience="team", channel=channel),
        ):
            assert slack.send(call, timeout_s=TIMEOUT_S) == refused
    about = {"id": CHANNEL, "is_ext_shared": False, "is_pending_ext_shared": True}
    for channel in (about, {"id": CHANNEL}, about | {"is_pending_ext_shared": False, "pending_shared": ["T1"]}):
        sandbox.slack.fault("answer", on="conversations.info", status=200, body={"ok": True, "channel": channel})
        assert slack.send(inside, timeout_s=TIMEOUT_S) == refused
    sandbox.slack.fault("html_502", on="conversations.info")
    assert slack.send(inside, timeout_s=TIMEOUT_S) == NotSent("before_write_http_502")
    sandbox.slack.fault("answer", on="conversations.info", status=200, body={"ok": False, "error": "missing_scope"})
    assert slack.send(inside, timeout_s=TIMEOUT_S) == Rejected("missing_scope")
    assert sandbox.count("slack_messages") == 1
    assert len(sandbox.slack.requests(POST_MESSAGE)) == 1


def test_decoys(slack: SlackAdapter, sandbox: Sandbox) -> None:
    """Metadata can be written by any app: another author, other words, another thread or target go to a person."""
    texts = {"text": "Parcel 1182 was &lt;lost&gt; &amp; found"}
    by_hand(sandbox, POST_MESSAGE, channel=CHANNEL, metadata=ours(1), **texts)
    doubtful(slack, post_call(sandbox, 1), "other_author")
    by_hand(sandbox, POST_MESSAGE, TOKEN, channel=CHANNEL, metadata=ours(2), text="Parcel 1183")
    doubtful(slack, post_call(sandbox, 2), "other_text")
    by_hand(sandbox, POST_MESSAGE, TOKEN, channel=CHANNEL, metadata=ours(3, "C0OTHER0000"), **texts)
    finding = find(slack, post_call(sandbox, 3))
    assert isinstance(finding, Found)
    assert finding.target == "C0OTHER0000", "which is not what the intent says"
    parent = by_hand(sandbox, POST_MESSAGE, channel=CHANNEL, text="A question")["ts"]
    reply = post_call(sandbox, 4, thread_ts=parent)
    by_hand(sandbox, POST_MESSAGE, TOKEN, channel=CHANNEL, metadata=ours(4), **texts)
    assert find(slack, reply) == Absent(), "it is in the channel, not in the thread"
    mine = post_call(sandbox, 5)
    sent(slack, mine)
    by_hand(sandbox, POST_MESSAGE, channel=CHANNEL, metadata=ours(5), **texts)
    assert isinstance(find(slack, mine), Many)


def test_a_reply_is_no_thread(slack: SlackAdapter, sandbox: Sandbox) -> None:
    """An answer to an answer goes into the thread of both, and is not read with the one that was named: no absence."""
    parent = by_hand(sandbox, POST_MESSAGE, channel=CHANNEL, text="A question")["ts"]
    reply = by_hand(sandbox, POST_MESSAGE, channel=CHANNEL, text="An answer", thread_ts=parent)["ts"]
    call = post_call(sandbox, thread_ts=reply)
    assert find(slack, call) == Unknown("Incomplete")
    sent(slack, call)
    assert find(slack, call) == Unknown("Incomplete")
    inside = by_hand(sandbox, "conversations.replies", channel=CHANNEL, ts=parent)["messages"]
    assert [each["thread_ts"] for each in inside[1:]] == [parent, parent]
    found(slack, post_call(sandbox, 1, thread_ts=parent))


@pytest.mark.parametrize("metadata", [None, {"event_type": "counterfoil_action"}])
def test_our_words_without_our_key_are_no_absence(slack: SlackAdapter, sandbox: Sandbox, metadata: Any) -> None:
    """Whyever Slack shows no metadata: what this app has said at that time may be it, and is not said again."""
    by_hand(
        sandbox,
        POST_MESSAGE,
        TOKEN,
        channel=CHANNEL,
        text="Parcel 1182 was &lt;lost&gt; &amp; found",
        metadata=metadata,
    )
    doubtful(slack, post_call(sandbox), "no_key")
    assert find(slack, post_call(sandbox, text="Parcel 1183")) == Absent()
    assert find(adapter_of(sandbox, "xoxb-2"), post_call(sandbox)) == Absent(), "another app's words"
    sandbox.advance(400)
    assert find(slack, post_call(sandbox)) == Absent(), "said before"


def test_metadata_without_a_target(slack: SlackAdapter, sandbox: Sandbox) -> None:
    """Ours always says what it is about, so one that does not is not ours."""
    metadata = {"event_type": "x", "event_payload": {"counterfoil_key": f"{1:032x}"}}
    by_hand(sandbox, POST_MESSAGE, TOKEN, channel=CHANNEL, metadata=metadata, text=str(POST["text"]))
    finding = find(slack, post_call(sandbox))
    assert isinstance(finding, Found)
    assert finding.target == ""


def test_a_text_that_slack_rewrites_is_still_ours(slack: SlackAdapter, sandbox: Sandbox) -> None:
    """Links, escapes and emoji are Slack's doing; other words are not."""
    call = post_call(sandbox, text="See https://shop.example/a?b=1&c=2 :tada: 🎉 👍\n<b> & more, 12:30:45")
    sent(slack, call)
    [message] = by_hand(sandbox, HISTORY, channel=CHANNEL)["messages"]
    assert "<https://" in message["text"]
    found(slack, call)
    assert plain("<http://shop.example|shop.example> is <https://x.example/>") == "shop.example is https://x.example/"
    assert plain("<mailto:jo@shop.example|jo@shop.example>") == "jo@shop.example"
    assert plain("See 1182 \N{WARNING SIGN}\ufe0f") == plain("See  1182 :warning:")
    assert plain("&amp;lt;") == "&lt;", "unescaped once"
    assert plain("pay 10") != plain("pay 100")


def test_a_reply_is_found_in_its_thread(slack: SlackAdapter, sandbox: Sandbox) -> None:
    """A channel's history does not show replies; a post that was answered is still the post."""
    first = post_call(sandbox)
    parent = sent(slack, first)
    reply = post_call(sandbox, 2, thread_ts=parent)
    assert find(slack, reply) == Absent()
    receipt = sent(slack, reply)
    assert found(slack, reply).id == receipt
    assert len(sandbox.slack.requests("conversations.replies")) == 2
    assert found(slack, first).id == parent, "though it heads a thread now"
    lost = post_call(sandbox, 3, thread_ts="1700000000.000001")
    assert find(slack, lost) == Unknown("http_200"), "a thread that is gone says nothing"


def test_every_page_is_read(slack: SlackAdapter, sandbox: Sandbox) -> None:
    """Ours may be on the last page; a page that cannot be read, or that has no end, is no absence."""
    call = post_call(sandbox)
    receipt = sent(slack, call)
    with requests.Session() as session:
        for number in range(PAGE_SIZE):
            reply = session.post(
                f"{sandbox.slack.url}/api/{POST_MESSAGE}",
                json={"channel": CHANNEL, "text": f"{number}"},
                headers={"Authorization": "Bearer x"},
                timeout=5,
            )
            assert reply.json()["ok"]
    assert found(slack, call).id == receipt
    assert len(sandbox.slack.requests(HISTORY)) == 2
    for fault, more in (("html_502", {"nth": 2}), ("answer", {"status": 200, "body": {"ok": True, "messages": []}})):
        sandbox.clear_faults()
        sandbox.slack.fault(fault, on=HISTORY, times=None, **more)
        assert isinstance(find(slack, call), Unknown)
    sandbox.clear_faults()
    endless = {"ok": True, "messages": [], "has_more": True, "response_metadata": {"next_cursor": "x"}}
    sandbox.slack.fault("answer", on=HISTORY, status=200, body=endless, times=None)
    assert find(slack, call) == Unknown("Incomplete")


def test_an_app_that_slack_lets_read_little(slack: SlackAdapter, sandbox: Sandbox) -> None:
    """15 messages a minute: a quiet channel is looked up, of a busy one nothing is ever called absent."""
    sandbox.config(slack_history="limited")
    call = post_call(sandbox)
    sent(slack, call)
    found(slack, call)
    sandbox.advance(61)
    for number in range(15):
        by_hand(sandbox, POST_MESSAGE, channel=CHANNEL, text=f"{number}")
    assert find(slack, call) == Unknown("ratelimited")
    sandbox.advance(61)
    assert find(slack, post_call(sandbox, 2)) == Unknown("ratelimited")


def test_a_history_that_lags(slack: SlackAdapter, sandbox: Sandbox) -> None:
    """A new message may be missing for a while, which is no evidence until the contract's lag has passed."""
    assert TOOLS.get("slack_post").contract.lookup_lag_s == 60
    sandbox.config(search_lag_s={"slack": 50})
    call = post_call(sandbox)
    sent(slack, call)
    assert find(slack, call) == Absent()
    sandbox.advance(51)
    found(slack, call)


def test_calls_of_a_batch_share_what_is_read(slack: SlackAdapter, sandbox: Sandbox) -> None:
    """Three posts in one channel are one reading of its history, which begins before the oldest."""
    calls = [post_call(sandbox, number) for number in (1, 2, 3)]
    for call in calls:
        sent(slack, call)
    calls[2] = replace(calls[2], first_sent_at=datetime.fromtimestamp(sandbox.now() + 900, UTC))
    findings = slack.lookup(calls, timeout_s=TIMEOUT_S)
    assert all(isinstance(finding, Found) for finding in findings.values())
    assert len(sandbox.slack.requests(HISTORY)) == 1
    assert isinstance(find(slack, calls[2]), Absent), "alone, it looks no further back than its own time"


@pytest.mark.parametrize(
    ("tool", "name", "value"),
    [
        ("slack_post", "channel", "#general"),
        ("slack_post", "channel", "general"),
        ("slack_post", "channel", "U0123456789"),
        ("slack_post", "text", " \n"),
        ("slack_post", "text", "x" * 40_001),
        ("slack_post", "thread_ts", "1700000000"),
        ("slack_post", "audience", "public"),
        ("slack_schedule", "post_at", "2026-02-30T10:00:00Z"),
        ("slack_schedule", "post_at", "2026-12-07T10:00:00+01:00"),
        ("slack_schedule", "post_at", "1796637600"),
        ("slack_schedule", "text", "x" * 3_001),
    ],
)
def test_arguments_that_are_refused_at_the_door(tool: str, name: str, value: str) -> None:
    """Names instead of ids, texts that Slack would cut, times that are none."""
    good = POST | ({"post_at": "2026-12-07T10:00:00Z"} if tool == "slack_schedule" else {})
    TOOLS.get(tool).validate(good)
    with pytest.raises(ArgumentError) as refused:
        TOOLS.get(tool).validate(good | {name: value})
    assert refused.value.path == f"$.{name}"
