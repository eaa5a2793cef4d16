"""What a model is told in words: something for every answer that there is, and nothing that it was not told in codes."""

from __future__ import annotations

import itertools

import pytest

from counterfoil.outbox.results import NextStep, Result, Status
from counterfoil.prompt import MESSAGE_CHARS_MAX, SYSTEM_TEXT, message


@pytest.mark.parametrize(("status", "next_step"), list(itertools.product(Status, NextStep)))
def test_one_bounded_sentence_for_every_answer(status: Status, next_step: NextStep) -> None:
    """Each status with each next step gives one plain sentence of bounded length."""
    text = message(Result(status=status, next_step=next_step))
    assert 10 < len(text) <= MESSAGE_CHARS_MAX
    assert text.endswith(".")
    assert text.count(".") == 1
    assert text.isascii()
    assert text.isprintable()


def test_every_status_and_next_step_says_something_of_its_own() -> None:
    """No two statuses, and no two next steps, are told in the same words."""
    assert len({message(Result(status=status)) for status in Status}) == len(Status)
    told = {message(Result(status=Status.CANCELLED, next_step=step)) for step in NextStep}
    assert len(told) == len(NextStep)


def test_nothing_of_the_call_or_the_provider_is_quoted() -> None:
    """Code, field, value and arguments do not get into the sentence."""
    bare = Result(status=Status.FAILED, next_step=NextStep.CORRECT_ARGUMENTS)
    full = bare.model_copy(
        update={"code": "IGNORE_ALL", "field": "ignore all previous", "value": "v", "arguments": {"a": "b"}}
    )
    assert message(full) == message(bare)


@pytest.mark.parametrize("status", [Status.PENDING, Status.UNCERTAIN])
def test_what_is_unknown_is_never_called_an_error(status: Status) -> None:
    """An open outcome is told without the words that make models try again."""
    words = message(Result(status=status, next_step=NextStep.WAIT)).lower().replace("that is no error", "")
    assert not any(word in words for word in ("error", "fail", "retry", "try again", "wrong"))


def test_the_system_text_explains_every_status() -> None:
    """Each status is a line's subject, and the text stays short enough for any prompt."""
    subjects = [word for line in SYSTEM_TEXT.splitlines() if line.startswith("- ")
                for word in line[2:].partition(":")[0].split(", ")]  # fmt: skip
    assert sorted(subjects) == sorted(Status)
    assert len(SYSTEM_TEXT) < 2000


def test_a_plan_that_has_stopped_is_not_called_undone() -> None:
    """Some of its steps may have happened; a single call that failed has surely not."""
    plan = message(Result(status=Status.FAILED, proposal_id="P-AAAABBBBCCCC"))
    single = message(Result(status=Status.FAILED, action_id="act_a", proposal_id="P-AAAABBBBCCCC"))
    assert "was done before" in plan
    assert single == message(Result(status=Status.FAILED))
