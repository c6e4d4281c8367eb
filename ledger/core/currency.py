"""Minor units of currencies (ISO 4217): how many decimal places a printed amount has."""

from __future__ import annotations

_NO_MINOR_UNIT = frozenset(
    {"CLP", "ISK", "JPY", "KRW", "PYG", "RWF", "UGX", "VND", "VUV", "XAF", "XOF", "XPF"}
)
_THOUSANDTHS = frozenset({"BHD", "IQD", "JOD", "KWD", "LYD", "OMR", "TND"})


def minor_places(currency: str) -> int:
    """2 for most, 0 for currencies without a minor unit, 3 for those that divide in thousandths."""
    if currency in _NO_MINOR_UNIT:
        return 0
    return 3 if currency in _THOUSANDTHS else 2
