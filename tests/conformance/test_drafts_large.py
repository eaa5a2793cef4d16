"""Drafts that people have made large: what is read of them is bounded, and it is never ours."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from tests.conformance.drafting import OTHER_KEY, TIMEOUT_S, Drafting, call_of, config_of
from tests.mailbox import MailProgram

from counterfoil.providers.email.client import EmailAdapter
from counterfoil.providers.outcomes import Found, Succeeded, Uncertain, Unreadable
from counterfoil.sandbox.client import Sandbox


@pytest.fixture
def drafting(sandbox: Sandbox) -> Drafting:
    return Drafting(sandbox)


@pytest.fixture
def person(sandbox: Sandbox) -> Iterator[MailProgram]:
    """Somebody at the same mailbox."""
    made = MailProgram(sandbox)
    yield made
    made.close()


def test_a_draft_that_has_become_too_large(
    drafting: Drafting, person: MailProgram, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody has put a file into it: it is another message, which a person judges, and no other draft waits for that."""
    drafting.send()
    [(uid, raw)] = person.drafts().items()
    person.delete(uid)
    person.put(raw + b"more and more\r\n" * 9000)
    monkeypatch.setattr("counterfoil.providers.email.imap.MESSAGE_BYTES_MAX", 60_000)
    monkeypatch.setattr("counterfoil.providers.email.imap.REPLY_BYTES_MAX", 80_000)
    drafting.send(call_of(key=OTHER_KEY))
    calls = [call_of(), call_of(key=OTHER_KEY)]
    found = [*EmailAdapter(config_of(sandbox)).lookup(calls, timeout_s=TIMEOUT_S).values()]
    assert found[0] == Found(Uncertain("other_content"), as_intended=False)
    assert isinstance(found[1], Found)
    assert found[1].as_intended
    assert drafting.send() == Uncertain("other_content")
    assert drafting.read() == Unreadable("draft_edited")


def test_a_session_about_many_large_drafts(
    drafting: Drafting, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What may be said is bounded for each answer, not for all of them: the last draft is found like the first."""
    monkeypatch.setattr("counterfoil.providers.email.imap.REPLY_BYTES_MAX", 80_000)
    calls = [call_of(key=f"{n:02}" * 16, body="你" * 5000) for n in range(4)]
    for call in calls:
        assert isinstance(drafting.send(call), Succeeded)
    found = EmailAdapter(config_of(sandbox)).lookup(calls, timeout_s=TIMEOUT_S)
    assert [type(found[call.action_id]) for call in calls] == [Found] * 4


def test_a_header_without_end(drafting: Drafting, person: MailProgram) -> None:
    """What nobody writes by hand is not taken apart, which would take longer than the look-up has."""
    drafting.send()
    person.edit(b"To: jo@example.com", b"To: jo@example.com" + b', "a" <b@example.com>' * 30_000)
    before = time.monotonic()
    assert isinstance(drafting.find(), Found)
    assert drafting.send() == Uncertain("other_content")
    assert time.monotonic() - before < 4
