"""Ids and keys: computed from the identity alone, the same for ever, different for every other identity."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterfoil.ledger.errors import ArgumentError
from counterfoil.ledger.keys import (
    RUN_CHARS_MAX,
    action_id,
    check_id,
    check_step_label,
    is_action_id,
    label,
    message_id,
    provider_key,
    step_of,
    uuid_form,
)

SECRET = bytes(range(32))
KEY = "0123456789abcdef0123456789abcdef"


def test_known_answers() -> None:
    """Ids and keys that are recorded somewhere must stay what they are: these texts may never change."""
    first = action_id("acme", "ticket-1182", 1, 1, "do")
    assert first == "act_qw7zvvu62bk7gg2kplhzdbtgo2"
    assert action_id("acme", "ticket-1182", "reship", 2, "undo") == "act_3vbn5qodmbhvphi64umvy3vuye"
    assert (
        provider_key(SECRET, "acme", "stripe_charge", "act_qw7zvvu62bk7gg2kplhzdbtgo2")
        == "5f87f30ea1977f19e71ec40ea35c95b0"
    )


@pytest.mark.case("J1")
def test_two_tenants_never_share_an_id_or_key() -> None:
    """Same run, step and tool under two tenants: two ids, two keys, even where the texts joined are equal."""
    twins = [("a:b", "c"), ("a", "b:c"), ('a","b', "c"), ("a", 'b","c'), ("a", "b"), ("b", "a")]
    ids = {action_id(tenant, run, 1, 1, "do") for tenant, run in twins}
    assert len(ids) == len(twins)
    same_id = action_id("a", "r", 1, 1, "do")
    keys = {provider_key(SECRET, tenant, tool, same_id) for tenant, tool in twins}
    assert len(keys) == len(twins)


def test_label_and_ordinal_differ() -> None:
    """The label "1", which is refused anyway, could not take the place of the ledger's first step."""
    assert action_id("a", "r", "1", 1, "do") != action_id("a", "r", 1, 1, "do")


@pytest.mark.parametrize("text", ["0", "03", "-1", " 3", "3\n", "\u0663", "9" * 5000, "", "reship"])
def test_only_the_ledger_s_own_writing_of_a_number_is_one(text: str) -> None:
    """Any other text stands for itself: a row whose step was rewritten by hand never has the id of the step that it was."""
    assert step_of(text) == text
    assert action_id("a", "r", step_of(text), 1, "do") != action_id("a", "r", 3, 1, "do")
    assert [step_of(str(number)) for number in (1, 3, 10, 999_999_999)] == [1, 3, 10, 999_999_999]


@pytest.mark.case("D2")
def test_nothing_but_the_inputs_decides(tmp_path: Any) -> None:
    """Another process, host name, user, directory and hash seed give the same bytes."""
    code = (
        "from counterfoil.ledger.keys import *; a = action_id('acme', 'r', 's', 1, 'do');"
        "print(a, provider_key(bytes(range(32)), 'acme', 'stripe_charge', a), end='')"
    )
    env = {**os.environ, "HOSTNAME": "other", "USER": "other", "PYTHONHASHSEED": "7", "STRIPE_API_KEY": "sk_other"}
    other = subprocess.run(
        [sys.executable, "-c", code], env=env, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60
    ).stdout
    here = action_id("acme", "r", "s", 1, "do")
    assert other == f"{here} {provider_key(SECRET, 'acme', 'stripe_charge', here)}"


def test_the_secret_decides_the_key() -> None:
    """Without the secret a key cannot be computed; an empty secret is refused."""
    here = action_id("acme", "r", 1, 1, "do")
    assert provider_key(SECRET, "acme", "t", here) != provider_key(bytes(32), "acme", "t", here)
    with pytest.raises(ValueError, match="empty"):
        provider_key(b"", "acme", "t", here)


ids = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=12)
identities = st.tuples(
    ids, ids, ids | st.integers(1, 10**6), st.integers(1, 100), st.sampled_from(["do", "undo", "correct"])
)


@given(identities, identities)
def test_ids_are_injective(one: Any, other: Any) -> None:
    """Two identities have the same id exactly when they are the same identity."""
    assert (action_id(*one) == action_id(*other)) == (one == other)


@given(identities, ids)
def test_forms(identity: Any, tool: str) -> None:
    """Every id and key has the promised form, whatever the identity holds."""
    here = action_id(*identity)
    assert is_action_id(here)
    assert len(here) == 30
    key = provider_key(SECRET, identity[0], tool, here)
    assert len(key) == 32
    assert set(key) <= set("0123456789abcdef")
    assert label(key) == f"cf-{key}"
    assert uuid_form(key).version == 4


def test_forms_of_a_key() -> None:
    """A label, a UUID with version and variant set, and a Message-ID carry the same key."""
    assert label(KEY) == f"cf-{KEY}"
    assert str(uuid_form(KEY)) == "01234567-89ab-4def-8123-456789abcdef"
    assert message_id(KEY, "mail.example.com") == f"<cf-{KEY}@mail.example.com>"


@pytest.mark.parametrize("domain", ["", "a b", "a>b", "x\r\nBcc: y", "ä.example", "a..b", "a\n"])
def test_a_domain_cannot_inject_a_header(domain: str) -> None:
    """Only plain host names may follow the key in a Message-ID."""
    with pytest.raises(ValueError, match="domain"):
        message_id(KEY, domain)


@pytest.mark.parametrize("key", ["", KEY.upper(), KEY + "0", KEY + "\n", f"cf-{KEY}"])
def test_only_a_key_becomes_a_label(key: str) -> None:
    """A text that is not a provider key is refused in every form."""
    for form in (label, uuid_form):
        with pytest.raises(ValueError, match="32 hex"):
            form(key)


@pytest.mark.parametrize(
    "text", ["", "act_", "act_" + "a" * 25, "act_" + "a" * 27, "act_" + "A" * 26, "act_" + "1" * 26]
)
def test_what_is_not_an_action_id(text: str) -> None:
    """Only `act_` and 26 base32 characters are an action id."""
    assert not is_action_id(text)


@pytest.mark.parametrize(("step", "revision"), [(0, 1), (-1, 1), (True, 1), (1, 0), (1, True), ("a", 0)])
def test_counting_starts_at_one(step: Any, revision: Any) -> None:
    """Step and revision below 1, and booleans, are our own bug."""
    with pytest.raises(ValueError, match="counted"):
        action_id("a", "r", step, revision, "do")


@pytest.mark.case("E4")
def test_ids_with_quotes_and_unicode_are_valid() -> None:
    """Blanks, quotes, colons and any script are fine in ids; the key made of them is still plain."""
    run = ("Größe \"'`%;:\\ 漢字😀 " * 30)[:300]
    assert check_id("Acme Corp", "tenant", 200) == "Acme Corp"
    assert check_id(run, "run", RUN_CHARS_MAX) == run
    assert is_action_id(action_id("Acme Corp", run, 1, 1, "do"))


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (None, "wrong_type"),
        (7, "wrong_type"),
        (b"x", "wrong_type"),
        ("", "empty"),
        ("x" * 11, "too_long"),
        ("a\0b", "nul"),
        ("a\ud800", "lone_surrogate"),
        ("\udc00", "lone_surrogate"),
    ],
)
def test_an_id_that_cannot_be_stored_is_refused(value: object, code: str) -> None:
    """An id that the database cannot hold or index is refused with its name and a stable code."""
    with pytest.raises(ArgumentError) as refused:
        check_id(value, "tenant", 10)
    assert (refused.value.path, refused.value.code) == ("tenant", code)
    with pytest.raises(ArgumentError):
        check_step_label(value if value != "x" * 11 else "x" * 201)


@pytest.mark.parametrize("step", ["1", "007", "٣"])
def test_a_number_is_not_a_label(step: str) -> None:
    """Numbers are the ledger's own steps; a label of digits only is refused."""
    with pytest.raises(ArgumentError) as refused:
        check_step_label(step)
    assert refused.value.code == "digits_only"


def test_labels() -> None:
    """Any other id is a label."""
    for step in ("reship", "1a", "step 1", "-1", "1.0"):
        assert check_step_label(step) == step
