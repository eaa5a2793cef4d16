"""Decides how Slack is called and asked: one write an attempt, with our key in it, found again where Slack keeps it.

A message is found in its channel's history, a reply in its thread. A scheduled one is on Slack's list until it is posted,
and in the history from then on; the list is asked first, so that one that moves in between is not missed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta

from slack_sdk.errors import SlackApiError

from counterfoil.providers.contract import OTHER_KEY, Call, Of
from counterfoil.providers.frame import each_found, found_or_unknown, gone, judged_send, must_show_by
from counterfoil.providers.outcomes import (
    Absent,
    Finding,
    Found,
    NotSent,
    Outcome,
    Reading,
    Rejected,
    Uncertain,
    Unknown,
    Unreadable,
)
from counterfoil.providers.slack.config import SlackConfig
from counterfoil.providers.slack.outcomes import (
    NO_LONGER_WAITING,
    POSTED,
    SCHEDULED_ID,
    TS,
    blocks_of,
    carries,
    error_code,
    error_of,
    error_outcome,
    escaped,
    fallback_of,
    marked,
    may_be_post,
    may_be_schedule,
    metadata_of,
    no_key,
    post_finding,
    posted_outcome,
    schedule_finding,
    scheduled_outcome,
    seconds_of,
    time_of,
    unscheduled,
)
from counterfoil.providers.slack.reads import Incomplete, Item, SlackReads
from counterfoil.providers.slack.tools import SCHEDULED_TEXT_CHARS_MAX, TEXT_CHARS_MAX
from counterfoil.providers.slack.wire import Wire

SKEW = timedelta(minutes=5)
AHEAD_MIN = timedelta(minutes=5)
"""Less ahead, a scheduled message could hardly be taken back: Slack deletes none in its last minute."""
EARLY_MAX, LATE_MAX = timedelta(minutes=2), timedelta(days=1)
"""So long before and after its time a scheduled message may be neither on the list nor in the history, and be posted all the
same. Slack says nothing of it; later than that it is posted never, and the history is read no further."""


class SlackAdapter:
    """Calls one Slack workspace as one app. Used by one thread at a time, in the process that made it."""

    def __init__(self, config: SlackConfig) -> None:
        self._config = config
        self._wire = Wire(config)
        self._reads = SlackReads(self._wire)
        self._since: dict[tuple[str, str | None], datetime] = {}

    def send(self, call: Call, *, timeout_s: float) -> Outcome:
        """Makes the one write of this attempt, after the reads that it needs."""
        with self._wire.attempt(timeout_s=timeout_s, writes_max=1) as wire:
            self._reads.forget()
            return judged_send(lambda: self._send(call), self._judge(call), wrote=lambda: wire.wrote, name=error_code)

    def lookup(self, calls: Sequence[Call], *, timeout_s: float) -> Mapping[str, Finding]:
        """History, thread or list of scheduled messages, to their ends; what fails or has no end is Unknown."""
        with self._wire.attempt(timeout_s=timeout_s, writes_max=0, request_s=self._config.timeout_s):
            self._reads.forget()
            self._since = {}
            for call in calls:
                if call.tool == "slack_post" and call.first_sent_at is not None:
                    place = _place(call.arguments)
                    self._since[place] = min(call.first_sent_at, self._since.get(place, call.first_sent_at))
            return each_found(calls, self._find, name=error_code)

    def fetch(self, call: Call, receipt: str, *, timeout_s: float) -> Finding:
        """Reads the message of that `ts`, or the scheduled message of that id, and checks our key on it."""
        with self._wire.attempt(timeout_s=timeout_s, writes_max=0, request_s=self._config.timeout_s):
            self._reads.forget()
            return found_or_unknown(lambda: self._fetch(call, receipt), name=error_code)

    def version(self, call: Call, *, timeout_s: float) -> Reading:
        """A message changes nothing that has a version."""
        del call, timeout_s
        return Unreadable("no_version")

    def _judge(self, call: Call) -> Callable[[Exception], NotSent | Rejected | Uncertain]:
        return lambda exc: error_outcome(exc, call, retry_after_cap_s=self._config.retry_after_cap_s)

    def _send(self, call: Call) -> Outcome:
        match call.tool:
            case "slack_post":
                return self._refused(call) or self._post(call)
            case "slack_schedule":
                return self._refused(call) or self._schedule(call)
            case "slack_unschedule":
                return self._unschedule(call)
            case _:
                return NotSent("unknown_tool")

    def _refused(self, call: Call) -> Rejected | None:
        """What Slack would do otherwise than it was meant, or tell people that it must not reach."""
        chars_max = TEXT_CHARS_MAX if call.tool == "slack_post" else SCHEDULED_TEXT_CHARS_MAX
        if len(escaped(str(call.arguments["text"]))) > chars_max:
            return Rejected("msg_too_long", field="text")
        if call.tool == "slack_schedule" and _is_too_soon(call):
            return Rejected("too_soon", field="post_at")
        if call.arguments["audience"] != "team":
            return None
        try:
            outside = self._reads.seen_outside(str(call.arguments["channel"]))
        except SlackApiError as exc:
            said = self._judge(call)(exc)
            if isinstance(said, Rejected):
                return said
            raise
        return Rejected("channel_is_shared", field="audience") if outside else None

    def _post(self, call: Call) -> Outcome:
        channel, thread = _place(call.arguments)
        reply = self._wire.chat_postMessage(
            channel=channel,
            text=escaped(str(call.arguments["text"])),
            thread_ts=thread,
            metadata=metadata_of(call),
            unfurl_links=False,  # a preview is nobody's approved words
            unfurl_media=False,
        )
        return posted_outcome(reply.data, call)

    def _schedule(self, call: Call) -> Outcome:
        (channel, thread), text = _place(call.arguments), str(call.arguments["text"])
        reply = self._wire.chat_scheduleMessage(
            channel=channel,
            post_at=seconds_of(call),
            text=fallback_of(text, call.key),
            blocks=blocks_of(text, call.key),
            thread_ts=thread,
            unfurl_links=False,
            unfurl_media=False,
        )
        return scheduled_outcome(reply.data, call)

    def _unschedule(self, call: Call) -> Outcome:
        of = call.of
        if of is None:
            return NotSent("of_unresolved")
        identity = of.receipt if _is(SCHEDULED_ID.fullmatch, of.receipt) else None
        if identity is None:
            waiting, posted = self._waiting(of), self._posted(of)
            if posted or _is(TS.fullmatch, of.receipt):
                return Rejected(POSTED)
            if len(waiting) != 1:
                return NotSent("of_unresolved")
            identity = str(waiting[0]["id"])
        try:
            reply = self._wire.chat_deleteScheduledMessage(
                channel=str(of.arguments["channel"]), scheduled_message_id=identity
            )
        except SlackApiError as exc:
            if error_of(exc) != NO_LONGER_WAITING or exc.response.status_code != 200:
                raise
            return self._why_not(call, of)
        return unscheduled(identity) if reply.get("ok") is True else Uncertain("malformed")

    def _why_not(self, call: Call, of: Of) -> Outcome:
        """Slack deletes nothing: it was posted, is about to be, or was deleted before."""
        self._reads.forget()
        finding = found_or_unknown(lambda: self._find_unscheduled(call, refused=True), name=error_code)
        match finding:
            case Found(outcome):
                return outcome
            case Absent() if self._about_to_post(of):
                return Rejected("too_late")
            case _:
                return Uncertain("not_deleted", evidence=type(finding).__name__)

    def _find(self, call: Call) -> Finding:
        match call.tool:
            case "slack_post":
                return self._find_post(call)
            case "slack_schedule":
                return self._find_schedule(call)
            case "slack_unschedule":
                return self._find_unscheduled(call)
            case _:
                return Unknown("unknown_tool")

    def _find_post(self, call: Call) -> Finding:
        if call.first_sent_at is None:
            return Unknown("no_time")
        place = _place(call.arguments)
        oldest = _ts(min(call.first_sent_at, self._since.get(place, call.first_sent_at)) - SKEW)
        found = self._reads.messages(*place, oldest=oldest)
        ours = [each for each in found if carries(each, call.key)]
        since = _ts(call.first_sent_at - SKEW)
        doubtful = [each for each in found if each["ts"] > since and may_be_post(each, call)]
        if not ours and any(self._reads.author().wrote(each) for each in doubtful):
            return no_key()
        return post_finding(ours, call, self._reads.author())

    def _find_schedule(self, call: Call) -> Finding:
        """Without a trace around its time it may be on its way: scheduled again it might be posted twice."""
        about = _as_of(call)
        waiting, posted = self._waiting(about), self._posted(about)
        if not waiting and not posted and self._about_to_post(about):
            return Unknown("about_to_post")
        if not waiting and not posted and self._is_unmarked(call):
            return no_key()
        return schedule_finding(waiting, posted, call, self._reads.author())

    def _is_unmarked(self, call: Call) -> bool:
        """The list, which is of this app alone, shows what may be this call's without its mark."""
        since = (call.first_sent_at or self._now()) - SKEW
        listed = self._reads.scheduled(str(call.arguments["channel"]))
        return any(may_be_schedule(each, call, since=since) for each in listed)

    def _find_unscheduled(self, call: Call, *, refused: bool = False) -> Finding:
        """Done only where the message waits no longer, was not posted and is not being posted just now.

        That the list does not show it says so only if the list must have shown it since it was scheduled, which was before
        this call; or if Slack has `refused` to delete it.
        """
        of = call.of
        if of is None:
            return Unknown("of_unresolved")
        if _is(TS.fullmatch, of.receipt):
            return Found(Rejected(POSTED))
        waiting, posted = self._waiting(of), self._posted(of)
        if posted:
            return Found(Rejected(POSTED))
        if waiting:
            return Absent()
        if of.receipt is None:
            return Unknown("of_unresolved")
        if self._about_to_post(of):
            return Unknown("about_to_post")
        is_gone = refused or must_show_by(call, self._now(), lag_s=self._config.read_lag_s)
        return Found(gone(call, unscheduled(of.receipt)), unkeyed=True) if is_gone else Unknown("too_fresh")

    def _about_to_post(self, of: Of) -> bool:
        post_at = time_of(of.arguments["post_at"])
        return post_at - EARLY_MAX <= self._now() <= post_at + LATE_MAX

    def _now(self) -> datetime:
        if self._reads.now is None:
            raise Incomplete("no_date")
        return self._reads.now

    def _waiting(self, of: Of) -> list[Item]:
        """What is still on Slack's list of that scheduling."""
        found = self._reads.scheduled(str(of.arguments["channel"]))
        return [each for each in found if marked(each, of.key) or each["id"] == of.receipt]

    def _posted(self, of: Of) -> list[Item]:
        """What that scheduling has become in its channel; nothing yet, before its time by Slack's own clock."""
        post_at = time_of(of.arguments["post_at"])
        if self._reads.now is not None and self._reads.now < post_at - SKEW:
            return []
        found = self._reads.messages(*_place(of.arguments), oldest=_ts(post_at - SKEW), latest=_ts(post_at + LATE_MAX))
        return [each for each in found if marked(each, of.key)]

    def _fetch(self, call: Call, receipt: str) -> Finding:
        if call.tool == "slack_unschedule":
            named = call.of is not None and call.of.receipt in (None, receipt)
            return self._find_unscheduled(call) if named else Unknown(OTHER_KEY)
        is_post = call.tool == "slack_post"
        if not is_post and SCHEDULED_ID.fullmatch(receipt):
            here = [each for each in self._reads.scheduled(str(call.arguments["channel"])) if each["id"] == receipt]
            ours = [each for each in here if marked(each, call.key)]
            return Unknown(OTHER_KEY) if here and not ours else schedule_finding(ours, (), call, self._reads.author())
        if not TS.fullmatch(receipt):
            return Absent()
        at = float(receipt)
        found = self._reads.messages(*_place(call.arguments), oldest=f"{at - 1:.6f}", latest=f"{at + 1:.6f}")
        here = [each for each in found if each["ts"] == receipt]
        ours = [each for each in here if (carries if is_post else marked)(each, call.key)]
        if here and not ours:
            return Unknown(OTHER_KEY)
        author = self._reads.author()
        return post_finding(ours, call, author) if is_post else schedule_finding((), ours, call, author)


def _place(arguments: Mapping[str, object]) -> tuple[str, str | None]:
    """Channel and thread."""
    thread = arguments.get("thread_ts")
    return str(arguments["channel"]), thread if isinstance(thread, str) else None


def _as_of(call: Call) -> Of:
    """A scheduling seen as what an unscheduling is about; by its mark alone."""
    return Of(action_id=call.action_id, tool=call.tool, key=call.key, receipt=None, arguments=call.arguments)


def _is_too_soon(call: Call) -> bool:
    """By the first claim, so that every attempt is judged alike; later ones Slack refuses itself once the time is past."""
    return call.first_sent_at is not None and time_of(call.arguments["post_at"]) < call.first_sent_at + AHEAD_MIN


def _ts(at: datetime) -> str:
    return f"{at.timestamp():.6f}"


def _is(matches: Callable[[str], object], text: str | None) -> bool:
    return text is not None and bool(matches(text))
