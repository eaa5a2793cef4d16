"""Decides how Slack is read: whole answers or an exception, never a half list."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from slack_sdk.web import SlackResponse

from counterfoil.providers.slack.outcomes import SCHEDULED_ID, TS, Author
from counterfoil.providers.slack.wire import Wire
from counterfoil.providers.transport import answered_at

PAGE_SIZE = 100
"""Slack advises 200 at most; but a page of messages with blocks and attachments has to fit into 1 MiB."""
PAGES_MAX = 50
"""As many as Slack surely answers in a minute."""

Item = Mapping[str, Any]


class Incomplete(Exception):
    """The answer is malformed, or longer than `PAGES_MAX` pages: it proves nothing."""


class SlackReads:
    """The reads that sends and look-ups share. Raises what slack-sdk raises, or Incomplete."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._author: Author | None = None
        self._known: dict[tuple[str | None, ...], list[Item]] = {}
        self.now: datetime | None = None
        """Slack's own time, as of the last answer that said it."""

    def forget(self) -> None:
        """What is asked from now on is asked anew; calls of one batch share what they read."""
        self._known.clear()
        self.now = None

    def author(self) -> Author:
        """Whose token this is, which never changes."""
        if self._author is None:
            answer = self._answer(self._wire.auth_test())
            user, bot = answer.get("user_id"), answer.get("bot_id")
            if not isinstance(user, str) or not user or not isinstance(bot, str | None):
                raise Incomplete("malformed")
            self._author = Author(user, bot or None)
        return self._author

    def seen_outside(self, channel: str) -> bool:
        """Whether people of another company are, or may be, in the channel: all but a surely internal one, direct messages
        too."""
        about = self._answer(self._wire.conversations_info(channel=channel)).get("channel")
        if not isinstance(about, Mapping) or about.get("id") != channel:
            raise Incomplete("malformed")
        if about.get("is_im") is True or about.get("is_ext_shared") is not False:
            return True
        return any(about.get(name) not in (None, False) for name in ("is_pending_ext_shared", "pending_shared"))

    def messages(self, channel: str, thread: str | None, *, oldest: str, latest: str | None = None) -> list[Item]:
        """The channel's messages strictly between two times, or a thread's, which the channel does not show."""
        bounds: dict[str, Any] = {"oldest": oldest, "latest": latest, "include_all_metadata": True, "limit": PAGE_SIZE}

        def page(cursor: str | None) -> SlackResponse:
            if thread is None:
                return self._wire.conversations_history(channel=channel, cursor=cursor, **bounds)
            return self._wire.conversations_replies(channel=channel, ts=thread, cursor=cursor, **bounds)

        found = self._once(("messages", channel, thread, oldest, latest), lambda: self._pages(page, "messages"))
        if not all(isinstance(each.get("ts"), str) and TS.fullmatch(each["ts"]) for each in found):
            raise Incomplete("malformed")
        if thread is not None and any(each.get("thread_ts", thread) != thread for each in found):
            raise Incomplete("no_thread")  # its name is that of an answer: what is in the thread is not read
        unique = {each["ts"]: each for each in found}  # every page of a thread begins with its first message
        return [each for ts, each in unique.items() if ts != thread]

    def scheduled(self, channel: str) -> list[Item]:
        """What this app has scheduled in the channel and Slack has not posted yet."""

        def page(cursor: str | None) -> SlackResponse:
            return self._wire.chat_scheduledMessages_list(channel=channel, cursor=cursor, limit=PAGE_SIZE)

        found = self._once(("scheduled", channel), lambda: self._pages(page, "scheduled_messages"))
        if not all(isinstance(each.get("id"), str) and SCHEDULED_ID.fullmatch(each["id"]) for each in found):
            raise Incomplete("malformed")
        if any(each.get("channel_id") != channel for each in found):
            raise Incomplete("unfiltered")
        return found

    def _once(self, name: tuple[str | None, ...], read: Callable[[], list[Item]]) -> list[Item]:
        if name not in self._known:
            self._known[name] = read()
        return self._known[name]

    def _pages(self, page: Callable[[str | None], SlackResponse], name: str) -> list[Item]:
        found: list[Item] = []
        cursor: str | None = None
        for _ in range(PAGES_MAX):
            answer = self._answer(page(cursor))
            items = answer.get(name)
            if not isinstance(items, list) or not all(isinstance(item, Mapping) for item in items):
                raise Incomplete("malformed")
            found += items
            cursor = _next(answer)
            if cursor is None:
                return found
        raise Incomplete("too_many_pages")

    def _answer(self, reply: SlackResponse) -> Item:
        self.now = answered_at(reply.headers) or self.now
        if not isinstance(reply.data, Mapping):
            raise Incomplete("malformed")
        return reply.data


def _next(answer: Item) -> str | None:
    """The cursor of the next page, None at the end; an answer that does not say which is neither."""
    more, about = answer.get("has_more"), answer.get("response_metadata")
    cursor = about.get("next_cursor") if isinstance(about, Mapping) else None
    if isinstance(cursor, str) and cursor and more is not False:
        return cursor
    if more is False or ("has_more" not in answer and cursor == ""):
        return None
    raise Incomplete("malformed")
