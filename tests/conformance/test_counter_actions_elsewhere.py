"""A counter-action whose object is not there: done, unless the action undone went elsewhere, where it may still be."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.conformance.shipped import SUBJECTS

from counterfoil.providers.outcomes import Found, Rejected, Succeeded
from counterfoil.providers.reach import MOVED
from counterfoil.sandbox.client import Sandbox
from counterfoil.testing.stage import staged

GONE_IS_DONE = ("aws_unschedule", "linear_delete_comment", "slack_unschedule")


@pytest.mark.parametrize("name", GONE_IS_DONE)
def test_gone_is_done_only_where_it_was(name: str, sandbox: Sandbox) -> None:
    """After the deletion the look-up says done; to a call that goes elsewhere than its action did, nobody knows."""
    stage = staged(SUBJECTS[name], sandbox)
    assert isinstance(stage.send(), Succeeded)
    here = stage.lookup()
    assert isinstance(here, Found)
    assert isinstance(here.outcome, Succeeded)
    assert stage.call.of is not None
    moved = replace(stage, call=replace(stage.call, of=replace(stage.call.of, elsewhere=True)))
    assert moved.lookup() == Found(Rejected(MOVED))


def test_an_object_known_by_its_receipt_only(sandbox: Sandbox) -> None:
    """The cancellation's look-up asks by the receipt of what is undone; at another address that is another's object."""
    stage = staged(SUBJECTS["http_unship"], sandbox)
    assert isinstance(stage.send(), Succeeded)
    assert isinstance(stage.lookup(), Found)
    assert stage.call.of is not None
    moved = replace(stage, call=replace(stage.call, of=replace(stage.call.of, elsewhere=True)))
    found = moved.lookup()
    assert isinstance(found, Found)
    assert not found.as_intended
