"""The contract in force: operators may lengthen times, never shorten them but on this machine; times must fit."""

from __future__ import annotations

import math
from typing import Any

import pytest

from counterfoil.ledger.errors import ConfigError
from counterfoil.providers.contract import Contract
from counterfoil.settings import Settings
from counterfoil.settings_contracts import check_contract, contract_in_force, ttl_margin_s

LOCAL = "http://127.0.0.1:8401"
LAGGING = Contract(lookup=True, lookup_lag_s=60, landing_max_s=120)
NATIVE = Contract(native_key_ttl_s=86_400, lookup=True, landing_max_s=120)


def with_provider(profile: str = "standard", /, **provider: Any) -> Settings:
    return Settings.model_validate({"profile": profile, "providers": {"p": provider}})


def test_the_code_decides_by_default() -> None:
    """Without an override the contract stays as the tool's code declares it."""
    assert contract_in_force(LAGGING, "p", Settings()) == LAGGING


def test_longer_is_always_taken() -> None:
    """An operator who knows the provider to be slower makes absence harder to earn, at any address."""
    changed = contract_in_force(LAGGING, "p", with_provider(landing_max_s=300, lookup_lag_s=90))
    assert (changed.landing_max_s, changed.lookup_lag_s) == (300, 90)


@pytest.mark.parametrize("name", ["landing_max_s", "lookup_lag_s"])
def test_shorter_only_on_this_machine(name: str) -> None:
    """A shorter time ends doubt sooner than the code vouches for: refused, unless the provider is on loopback."""
    with pytest.raises(ConfigError, match=rf"providers\.p\.{name} is shorter") as refused:
        contract_in_force(LAGGING, "p", with_provider("standard", **{name: 1}))
    assert refused.value.key == f"providers.p.{name}"
    changed = contract_in_force(LAGGING, "p", with_provider("standard", base_url=LOCAL, **{name: 1}))
    assert getattr(changed, name) == 1


def test_the_fast_profile_shortens_on_this_machine_only() -> None:
    """Fast caps landing and lag, keeps what is shorter (an exact look-up stays exact), and spares unlisted providers."""
    fast = with_provider("fast", base_url=LOCAL)
    changed = contract_in_force(LAGGING, "p", fast)
    assert (changed.landing_max_s, changed.lookup_lag_s) == (2, 3)
    assert contract_in_force(NATIVE, "p", fast).lookup_lag_s == 0
    assert contract_in_force(LAGGING, "unlisted", fast) == LAGGING
    assert contract_in_force(LAGGING, "p", with_provider("fast", base_url=LOCAL, landing_max_s=5)).landing_max_s == 5


def test_the_ttl_margin() -> None:
    """A quarter of the ttl unless configured; keys that are kept for ever need none of it."""
    assert ttl_margin_s(NATIVE, "p", Settings()) == 21_600
    assert ttl_margin_s(NATIVE, "p", with_provider(ttl_margin_s=400)) == 400
    assert ttl_margin_s(LAGGING, "p", Settings()) == 0
    check_contract("t", Contract(native_key_ttl_s=math.inf), "p", Settings())


@pytest.mark.parametrize(
    ("contract", "key"),
    [
        (Contract(native_key_ttl_s=599), "providers.p.ttl_margin_s"),
        (Contract(native_key_ttl_s=0), "providers.p.ttl_margin_s"),
        (Contract(native_key_ttl_s=math.nan), "providers.p.ttl_margin_s"),
        (Contract(lookup=True, landing_max_s=86_400), "reconciler.watch_s"),
        (Contract(lookup=True, landing_max_s=math.inf), "landing_max_s"),
        (Contract(lookup=True, landing_max_s=math.nan), "landing_max_s"),
        (Contract(lookup=True, lookup_lag_s=-1), "lookup_lag_s"),
    ],
)
def test_a_contract_that_does_not_fit_is_refused(contract: Contract, key: str) -> None:
    """Times that could send twice, or never decide, are refused with the tool's name and the setting."""
    with pytest.raises(ConfigError, match=r"^charge: ") as refused:
        check_contract("charge", contract, "p", Settings())
    assert refused.value.key == key


def test_exact_bounds() -> None:
    """A margin of exactly pause + request + landing is enough; a second less is not."""
    check_contract("t", Contract(native_key_ttl_s=600), "p", Settings())  # a quarter is 150 = 10 + 20 + 120
    check_contract("t", NATIVE, "p", with_provider(ttl_margin_s=150))
    with pytest.raises(ConfigError, match="150 s"):
        check_contract("t", NATIVE, "p", with_provider(ttl_margin_s=149))
    with pytest.raises(ConfigError, match="leaves nothing"):
        check_contract("t", NATIVE, "p", with_provider(ttl_margin_s=86_400))


def test_the_lease_covers_the_call() -> None:
    """A provider whose timeout does not fit the lease is refused for every tool of it."""
    settings = with_provider(timeout_s=20)
    short = settings.model_copy(update={"workers": settings.workers.model_copy(update={"lease_s": 35.0})})
    with pytest.raises(ConfigError, match="lease_s"):
        check_contract("t", NATIVE, "p", short)


def test_the_fast_profile_fits() -> None:
    """Under the fast profile the usual contracts still pass the check."""
    fast = with_provider("fast", base_url=LOCAL)
    for contract in (LAGGING, NATIVE):
        check_contract("t", contract_in_force(contract, "p", fast), "p", fast)
