"""Decides how Linear is called and asked: one mutation an attempt, under an id of ours, with our mark in its text.

What a second creation under one id does, Linear does not say. So every creation is preceded by a reading of that id: what
is there already is not made again, and a look-up that finds nothing has to be earned before anything is repeated.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from counterfoil.providers.attempt import ReplyTooLarge
from counterfoil.providers.contract import OTHER_KEY, Call
from counterfoil.providers.frame import each_found, gone, judged_send, must_show_by
from counterfoil.providers.linear.config import LinearConfig
from counterfoil.providers.linear.documents import CLOSE_ISSUE, CREATE_COMMENT, CREATE_ISSUE, DELETE_COMMENT, WRITES
from counterfoil.providers.linear.outcomes import (
    carries,
    closed,
    closed_as,
    closing_state,
    comment_deleted,
    comment_done,
    comment_finding,
    comment_made,
    data_of,
    id_of,
    issue_finding,
    issue_made,
    marked,
    refusal,
)
from counterfoil.providers.linear.reads import (
    CALLS_MAX,
    RATE_LIMITED,
    GraphQLOneShot,
    Incomplete,
    LinearReads,
    NoSuchIssue,
    error_code,
    open_session,
)
from counterfoil.providers.outcomes import (
    Absent,
    Finding,
    Found,
    NotSent,
    Outcome,
    Reading,
    Rejected,
    Succeeded,
    Uncertain,
    Unknown,
    Unreadable,
)
from counterfoil.providers.transport import classify_exception, retry_after_of

CLOSED_TEXT = "Canceled by Counterfoil: what this issue was opened for has been taken back."
"""The comment of an issue that is closed without a reason."""
MADE_TOGETHER = ("linear_create", "linear_comment")
"""Tools whose look-ups share readings."""
_IDENTIFIER = re.compile(r"[A-Z][A-Z0-9]{0,9}-[0-9]{1,9}", re.ASCII)
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)


class LinearAdapter:
    """Calls one Linear workspace. Used by one thread at a time, in the process that made it."""

    def __init__(self, config: LinearConfig) -> None:
        self._config = config
        self._transport = GraphQLOneShot()
        self._session = open_session(config, self._transport)
        self._reads = LinearReads(self._session, config.url)

    def send(self, call: Call, *, timeout_s: float) -> Outcome:
        """Makes the one write of this attempt, after the reading that it needs."""
        with self._transport.attempt(timeout_s=timeout_s, writes_max=1) as transport:
            return judged_send(
                lambda: self._send(call),
                classify_exception,
                wrote=lambda: transport.wrote,
                name=error_code,
                waits=self._waits,
            )

    def lookup(self, calls: Sequence[Call], *, timeout_s: float) -> Mapping[str, Finding]:
        """One reading for a hundred issues or comments that were made, one for each other call; what fails is Unknown."""
        with self._transport.attempt(timeout_s=timeout_s, writes_max=0, request_s=self._config.timeout_s):
            findings: dict[str, Finding] = {}
            for tool in MADE_TOGETHER:
                made = [call for call in calls if call.tool == tool]
                for start in range(0, len(made), CALLS_MAX):
                    if len(made) > 1:
                        findings |= self._find_many(tool, made[start : start + CALLS_MAX])
            return findings | each_found([c for c in calls if c.action_id not in findings], self._find, name=error_code)

    def rows_a_request(self, tool: str) -> int:
        """As many as one filter names, for what is made; a change is read on its issue."""
        return CALLS_MAX if tool in MADE_TOGETHER else 1

    def fetch(self, call: Call, receipt: str, *, timeout_s: float) -> Finding:
        """Reads the issue of that identifier, or the comment of that id, and checks our mark on it."""
        with self._transport.attempt(timeout_s=timeout_s, writes_max=0, request_s=self._config.timeout_s):
            try:
                return self._fetch(call, receipt)
            except Exception as exc:  # noqa: BLE001 - a failed reading says nothing
                return Unknown(error_code(exc))

    def version(self, call: Call, *, timeout_s: float) -> Reading:
        """None: what is made or taken back here depends on no version."""
        del call, timeout_s
        return Unreadable("no_version")

    def _send(self, call: Call) -> Outcome:
        try:
            match call.tool:
                case "linear_create":
                    return self._create(call)
                case "linear_close":
                    return self._close(call)
                case "linear_comment":
                    return self._comment(call)
                case "linear_delete_comment":
                    return self._delete_comment(call)
                case _:
                    return NotSent("unknown_tool")
        except NoSuchIssue:  # only a reading says so
            return Rejected("not_found", field="issue" if "issue" in call.arguments else None)

    def _create(self, call: Call) -> Outcome:
        team, there = self._reads.before_issue(call)
        if there:
            return _already(issue_finding(call, there))
        if team is None:
            return Rejected("not_found", field="team")
        wanted = id_of(call.key)
        given = {"id": wanted, "teamId": team, "title": call.arguments["title"]}
        given["description"] = marked(call.arguments.get("description"), call)
        data = self._write(call, CREATE_ISSUE, {"input": given})
        return issue_made(data.get("issueCreate"), wanted=wanted) if isinstance(data, Mapping) else data

    def _close(self, call: Call) -> Outcome:
        issue, comment = self._about(call)
        if issue is None:
            return NotSent("of_unresolved")
        state = closed_as(issue)
        if state is not None:
            return closed(issue, state)
        if comment is not None:
            return Uncertain("opened_again")
        chosen = closing_state(issue["team"]["states"]["nodes"])
        if chosen is None:
            return Rejected("no_canceled_state")
        body = marked(call.arguments.get("reason") or CLOSED_TEXT, call)
        more = {"id": id_of(call.key), "issueId": issue["id"], "body": body}
        given = {"issue": issue["id"], "input": {"stateId": chosen}, "comment": more}
        data = self._write(call, CLOSE_ISSUE, given)
        return _closed_outcome(data, issue, id_of(call.key)) if isinstance(data, Mapping) else data

    def _comment(self, call: Call) -> Outcome:
        wanted = id_of(call.key)
        issue, there = self._reads.issue(str(call.arguments["issue"]), comment=wanted)
        if there is not None:
            return _already(comment_finding(call, [there]))
        given = {"id": wanted, "issueId": issue["id"], "body": marked(call.arguments["body"], call)}
        data = self._write(call, CREATE_COMMENT, {"input": given})
        return comment_made(data.get("commentCreate"), wanted=wanted) if isinstance(data, Mapping) else data

    def _delete_comment(self, call: Call) -> Outcome:
        wanted = _comment_of(call)
        if wanted is None or call.of is None:
            return NotSent("of_unresolved")
        _, comment = self._reads.issue(str(call.arguments["issue"]), comment=wanted)
        if comment is None and self._must_show(call):
            return comment_done(wanted)
        if not call.of.receipt and not (comment and carries(comment["body"], call.of.key)):
            return NotSent("of_unresolved")
        data = self._write(call, DELETE_COMMENT, {"id": wanted})
        return comment_deleted(data.get("commentDelete"), wanted=wanted) if isinstance(data, Mapping) else data

    def _write(self, call: Call, document: str, variables: Mapping[str, object]) -> Mapping[str, Any] | Outcome:
        """The data of the answer to the one write, or what an answer without it proves."""
        answer = self._reads.post(document, variables)
        data = data_of(answer)
        if data is not None:
            return data
        return refusal(answer, call, first=WRITES[document], retry_after_cap_s=self._config.retry_after_cap_s)

    def _waits(self, exc: Exception) -> float | None:
        """What Linear asked for where it turned a reading away."""
        cap_s = self._config.retry_after_cap_s
        return retry_after_of(exc.headers, cap_s=cap_s) if isinstance(exc, Incomplete) else None

    def _find_many(self, tool: str, calls: Sequence[Call]) -> dict[str, Finding]:
        """What one reading says of all. Where Linear answers, but not this question, each is asked about by itself."""
        try:
            if tool == "linear_create":
                issues = self._reads.issues_of_all(calls)
                return {c.action_id: issue_finding(c, found) for c, found in zip(calls, issues, strict=True)}
            comments = self._reads.comments_of_all(calls)
            return {c.action_id: comment_finding(c, found) for c, found in zip(calls, comments, strict=True)}
        except (Incomplete, ReplyTooLarge) as exc:
            code = error_code(exc)
            if code == RATE_LIMITED or code.startswith("http_5"):
                return {call.action_id: Unknown(code) for call in calls}
            return {}
        except Exception as exc:  # noqa: BLE001 - a failed look-up is never absence, whatever failed in it
            return {call.action_id: Unknown(error_code(exc)) for call in calls}

    def _find(self, call: Call) -> Finding:
        match call.tool:
            case "linear_create":
                return issue_finding(call, self._reads.issues_of(call))
            case "linear_comment":
                return comment_finding(call, self._reads.comments_of(call))
            case "linear_close":
                return self._find_closed(call)
            case _:
                return self._find_deleted(call)

    def _find_closed(self, call: Call) -> Finding:
        """Closed by whomever; open although our comment says that we closed it is for a person."""
        issue, comment = self._about(call)
        if issue is None:
            return Unknown("of_unresolved")
        state = closed_as(issue)
        if state is not None:
            return Found(closed(issue, state), unkeyed=True)
        return Absent() if comment is None else Found(Uncertain("opened_again"), as_intended=False)

    def _find_deleted(self, call: Call) -> Finding:
        """Gone while its issue can be read: a missing permission would hide both. One that was made just now may not show
        yet."""
        wanted = _comment_of(call)
        if wanted is None:
            return Unknown("of_unresolved")
        _, comment = self._reads.issue(str(call.arguments["issue"]), comment=wanted)
        if comment is not None:
            return Absent()
        if not self._must_show(call):
            return Unknown("too_fresh")
        return Found(gone(call, comment_done(wanted)), unkeyed=True)

    def _must_show(self, call: Call) -> bool:
        """Whether the list that was read last must show what was made before this call, if it is there."""
        return must_show_by(call, self._reads.now, lag_s=self._config.read_lag_s)

    def _fetch(self, call: Call, receipt: str) -> Finding:
        if call.tool == "linear_create":
            if not _IDENTIFIER.fullmatch(receipt) and not _UUID.fullmatch(receipt):
                return Absent()
            try:
                issue, _ = self._reads.issue(receipt, comment=id_of(call.key))
            except NoSuchIssue:
                return Absent()
            ours = issue["id"] == id_of(call.key) or carries(issue["description"], call.key)
            return issue_finding(call, [issue]) if ours else Unknown(OTHER_KEY)
        if call.tool == "linear_comment":
            if not _UUID.fullmatch(receipt):
                return Absent()
            _, comment = self._reads.issue(str(call.arguments["issue"]), comment=receipt)
            if comment is None:
                return Absent()
            ours = comment["id"] == id_of(call.key) or carries(comment["body"], call.key)
            return comment_finding(call, [comment]) if ours else Unknown(OTHER_KEY)
        if call.tool == "linear_delete_comment":
            return self._find(call) if receipt == _comment_of(call) else Unknown(OTHER_KEY)
        issue_about, _ = self._about(call)
        named = issue_about is not None and receipt in (issue_about["id"], issue_about["identifier"])
        return self._find(call) if named else Unknown(OTHER_KEY)

    def _about(self, call: Call) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
        """The issue that this call closes, by the receipt of its opening or the id that this gave it; our comment on it.

        An identifier may name another issue by now: a team's key can be given up and taken by another team.
        """
        if call.of is None:
            return None, None
        issue, comment = self._reads.issue(call.of.receipt or id_of(call.of.key), comment=id_of(call.key))
        by_id = call.of.receipt and issue["id"] == id_of(
            call.of.key
        )  # an id that no receipt confirms may be another hand's
        if not by_id and not carries(issue["description"], call.of.key):
            return None, None
        return issue, comment


def _already(finding: Finding) -> Outcome:
    """What is there under our id before the write: it is the outcome where it is ours, and nothing is written."""
    if isinstance(finding, Found) and finding.as_intended and isinstance(finding.outcome, Succeeded):
        return finding.outcome
    return Uncertain("id_in_use")


def _closed_outcome(data: Mapping[str, Any], issue: Mapping[str, Any], comment: str) -> Outcome:
    """Both the move and its comment are needed."""
    moved = issue_made(data.get("issueUpdate"), wanted=str(issue["id"]))
    said = comment_made(data.get("commentCreate"), wanted=comment)
    for part in (moved, said):
        if isinstance(part, Uncertain):
            return part
    now = data["issueUpdate"]["issue"].get("state")
    if not isinstance(now, Mapping) or now.get("type") != "canceled":
        return Uncertain("not_closed")
    return closed(issue, str(now.get("name")))


def _comment_of(call: Call) -> str | None:
    """The comment that this call deletes: the receipt of what made it, else the id that this gave it."""
    return None if call.of is None else call.of.receipt or id_of(call.of.key)
