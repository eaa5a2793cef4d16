"""What is sent to Linear, against the part of its schema that is written down here; no server takes part."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid

import pytest
from graphql import OperationDefinitionNode, parse

from counterfoil.providers.contract import Call
from counterfoil.providers.linear import documents
from counterfoil.providers.linear.documents import READS, WRITES
from counterfoil.providers.linear.outcomes import carries, closing_state, id_of, mark_of, marked
from counterfoil.sandbox.linear_graphql import problems, root_field

EVERY = {
    name: value
    for name, value in vars(documents).items()
    if isinstance(value, str) and name.isupper() and name[0] != "_"
}


def call_of(key: str = "ab" * 16, **changed: str) -> Call:
    arguments = {"team": "SUP", "title": "Reship", "order_id": "1182", "description": ""} | changed
    return Call(
        action_id="act_1",
        tenant="acme",
        account="main",
        tool="linear_create",
        key=key,
        arguments=arguments,
        target="1182",
        first_sent_at=None,
    )


@pytest.mark.parametrize("name", EVERY)
def test_a_document_fits_the_schema_and_is_what_it_is_listed_as(name: str) -> None:
    """Each is valid, holds one operation, and a mutation is never listed as a reading."""
    document = EVERY[name]
    assert problems(document) == []
    [operation] = [each for each in parse(document).definitions if isinstance(each, OperationDefinitionNode)]
    assert (operation.operation.value == "mutation") == (document in WRITES) == (document not in READS)


def test_every_document_is_listed() -> None:
    """A new one has to be said to be a reading, or a write that begins with that field."""
    assert set(EVERY.values()) == READS | set(WRITES)
    assert {document: root_field(json.dumps({"query": document}).encode()) for document in WRITES} == WRITES


def test_the_schema_refuses_what_linear_would() -> None:
    """The check can fail: an unknown field, a missing argument, a variable of another type."""
    for wrong in (
        "{ issues { nodes { colour } } }",
        "{ issue { id } }",
        "query Q($id: Int!) { issue(id: $id) { id } }",
        "{",
    ):
        assert problems(wrong)


NO_OPERATION = (
    b"",
    b"[]",
    b"{}",
    b'{"query": 3}',
    b'{"query": "{"}',
    b'{"query": "query A {id}", "operationName": "B"}',
)


@pytest.mark.parametrize("raw", NO_OPERATION)
def test_what_is_no_document_asks_for_nothing(raw: bytes) -> None:
    """Whatever a client sends, the sandbox can say that it names no operation."""
    assert root_field(raw) is None


def test_the_sandbox_starts_without_the_graphql_library() -> None:
    """It takes longer to load than everything else there; Linear's first request loads it."""
    code = "import sys, counterfoil.sandbox.server; sys.exit('graphql' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_ids_are_uuids_of_version_4_and_one_for_each_key() -> None:
    """Linear takes UUIDs v4 only; ours follow from the key alone, and do not show it."""
    keys = [f"{number:032x}" for number in range(200)]
    ids = [id_of(key) for key in keys]
    assert len(set(ids)) == 200
    assert all(uuid.UUID(each).version == 4 and str(uuid.UUID(each)) == each for each in ids)
    assert id_of(keys[0]) == ids[0]


def test_the_mark_binds_the_key_and_everything_that_was_asked_for() -> None:
    """The same call has the same mark; another key, target or word has another; a text without our key has none."""
    mark = mark_of(call_of())
    assert mark == mark_of(call_of())
    others = {mark_of(call_of("cd" * 16)), mark_of(call_of(title="Refund")), mark_of(call_of(description="x"))}
    assert len(others | {mark}) == 4
    assert marked("", call_of()) == f"`{mark}`"
    text = marked("Parcel lost.\n\n```\nunclosed", call_of())
    assert text.splitlines()[-1] == f"`{mark}`"
    assert carries(text, "ab" * 16)
    assert not carries(text, "cd" * 16)
    assert not carries(text, "")


def test_the_state_that_closes_is_one_of_the_type_canceled() -> None:
    """The usual name first, whatever stands before it; never a state of another type; none where there is none."""

    def state(name: str, kind: str, position: float) -> dict[str, object]:
        return {"id": name, "name": name, "type": kind, "position": position}

    wont, canceled = state("Not reproducible", "canceled", 1), state("Canceled", "canceled", 2)
    assert closing_state([wont, canceled]) == "Canceled"
    assert closing_state([state("Zombie", "canceled", 3), wont]) == "Not reproducible"
    assert closing_state([state("Canceled", "completed", 1)]) is None
    assert closing_state([]) is None
