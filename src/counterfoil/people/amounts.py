"""Decides how money in minor units is told to a person."""

from __future__ import annotations

from collections.abc import Iterable

_DIGITS = {
    **dict.fromkeys("BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX UYI VND VUV XAF XOF XPF".split(), 0),  # noqa: SIM905 - one line, one list
    **dict.fromkeys("BHD IQD JOD KWD LYD OMR TND".split(), 3),  # noqa: SIM905 - one line, one list
    **dict.fromkeys("CLF UYW".split(), 4),  # noqa: SIM905 - one line, one list
}  # fmt: skip
"""Decimals of the minor unit where they are not two (ISO 4217, table A.1)."""


def money(amount_minor: int, currency: str | None) -> str:
    """`5.00 USD` for 500 usd, `500 JPY` for 500 jpy; without a currency, the bare minor units, called that."""
    if not currency:
        return f"{amount_minor} minor units"
    code = currency.upper()
    digits = _DIGITS.get(code, 2)
    sign, units = ("-" if amount_minor < 0 else ""), str(abs(amount_minor)).rjust(digits + 1, "0")
    whole, cents = (units[:-digits], f".{units[-digits:]}") if digits else (units, "")
    return f"{sign}{whole}{cents} {code}"


def totals(amounts: Iterable[tuple[int | None, str | None]]) -> dict[str, int]:
    """The sum of the minor units by currency ("" where none is recorded); calls without an amount add nothing."""
    sums: dict[str, int] = {}
    for amount_minor, currency in amounts:
        if amount_minor is not None:
            sums[currency or ""] = sums.get(currency or "", 0) + amount_minor
    return dict(sorted(sums.items()))


def told(sums: dict[str, int]) -> str | None:
    """Totals on one line; None where no money moves."""
    return " + ".join(money(amount, currency) for currency, amount in sums.items()) or None
