"""Which settings may change while processes run: a closed list, and what a change makes of the whole."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from counterfoil.ledger.errors import ConfigError
from counterfoil.settings import Settings
from counterfoil.settings_live import LIVE, configured, with_changes
from counterfoil.settings_providers import SECRETS, ProviderSettings, Reach, Section

FIXED = {
    "accounts": "clients are made once for each",
    "former_tenants": "whose actions go by which credentials",
    "retryable_codes": "read where clients are made",
    "ttl_margin_s": "what evidence means",
    "landing_max_s": "what evidence means",
    "lookup_lag_s": "what evidence means",
    "reference": "part of what is sent",
}
"""Besides `Reach`, which is addresses and secrets."""


def keys() -> set[str]:
    """Every key of a provider's table, those of its tables dotted."""
    found: set[str] = set()
    for name, field in ProviderSettings.model_fields.items():
        below: Any = field.annotation
        is_table = isinstance(below, type) and issubclass(below, Section)
        found |= {f"{name}.{key}" for key in below.model_fields} if is_table else {name}
    return found


def test_every_key_is_on_one_list() -> None:
    """A key that is added to a provider's table is put on either list by whoever adds it."""
    assert keys() == LIVE.keys() | FIXED.keys() | Reach.model_fields.keys()
    assert not LIVE.keys() & (FIXED.keys() | Reach.model_fields.keys())
    assert all(LIVE.values())


def test_secrets_never_change_live() -> None:
    """Neither they nor the files that hold them."""
    for name in (*SECRETS, *(f"{name}_file" for name in SECRETS), "base_url", "server", "webhook_secret_file"):
        assert name not in LIVE
        with pytest.raises(ConfigError, match="is not changed while processes run"):
            with_changes(Settings(), "stripe", {name: "x"})


@pytest.mark.parametrize("profile", ["standard", "fast"])
@pytest.mark.parametrize("listed", [True, False])
def test_a_change_leaves_all_else_alone(profile: Literal["standard", "fast"], listed: bool) -> None:
    """With or without a table, under either profile: the key has the value, and nothing else is another."""
    table: Any = {"base_url": "http://127.0.0.1:1", "api_key": "sk", "attempts_max": 3}
    settings = Settings(profile=profile, providers={"stripe": table} if listed else {})
    for name in LIVE:
        before = configured(settings, "stripe", name)
        value = 0.5 if before is None or (isinstance(before, float) and before <= 1) else before
        changed = with_changes(settings, "stripe", {name: value})
        assert configured(changed, "stripe", name) == value
        others = LIVE.keys() - {name}
        assert [o for o in others if configured(changed, "stripe", o) != configured(settings, "stripe", o)] == []
        assert changed.provider("stripe").api_key == settings.provider("stripe").api_key
        assert changed.provider("stripe").base_url == settings.provider("stripe").base_url
        assert changed.profile == settings.profile
        assert changed.workers == settings.workers
    assert settings.provider("stripe").attempts_max == (3 if listed else 5)


def test_no_error_shows_a_value() -> None:
    """The message names the key and what is expected."""
    with pytest.raises(ConfigError) as refused:
        with_changes(Settings(), "stripe", {"rate_per_s": "sk_live_secret"})
    assert "providers.stripe.rate_per_s" in refused.value.message
    assert "sk_live" not in str(refused.value)
    assert refused.value.__context__ is None
