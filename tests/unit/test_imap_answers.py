"""What a mailbox's answer to a search is taken for: a list of messages, none, or nothing that can be understood."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from counterfoil.providers.email.cut import Cut
from counterfoil.providers.email.imap import Mailbox, NotUnderstood, Wrote


def found(answer: list[Any]) -> list[str]:
    """What a search is taken to have found, by imaplib's form of the answer."""
    client: Any = SimpleNamespace(sock=SimpleNamespace(settimeout=lambda _s: None), uid=lambda *_: ("OK", answer))
    with Cut(5) as cut:
        return Mailbox(client, cut, Wrote()).find("<cf-")


@pytest.mark.parametrize(("answer", "uids"), [([b""], []), ([b"7"], ["7"]), ([b"7 12"], ["7", "12"])])
def test_a_search(answer: list[Any], uids: list[str]) -> None:
    """An empty list is the mailbox's word that there is none."""
    assert found(answer) == uids


@pytest.mark.parametrize("answer", [[None], [b"7,12"], [b"0"], [b"7 x"], [b"<cf-"]])
def test_a_search_that_proves_nothing(answer: list[Any]) -> None:
    """An OK without any list, or with what is none, is no absence: a second draft would follow from it."""
    with pytest.raises(NotUnderstood):
        found(answer)
