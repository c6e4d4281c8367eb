"""Bars that always fill to 100 %: widths from shares that add up, and the same in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django import template

from ledger.core.figures import THIN_SPACE, set_digits
from ledger.core.units import gpu_hours_fixed
from ledger.wording import category_name

register = template.Library()

WIDE_ENOUGH_PERCENT = 7
WIDE_ENOUGH_ON_A_PHONE_PERCENT = 18


@register.filter
def width(part: Any) -> str:
    return f"{part.percent}%"


@register.filter
def fits(part: Any) -> bool:
    """Whether the share can be printed inside of the part."""
    return float(part.percent) >= WIDE_ENOUGH_PERCENT


@register.filter
def fits_narrow(part: Any) -> bool:
    return float(part.percent) >= WIDE_ENOUGH_ON_A_PHONE_PERCENT


@register.filter
def part_text(part: Any) -> str:
    hours = set_digits(gpu_hours_fixed(part.gpu_us))
    return f"{category_name(part.category)}: {hours} ({part.percent}{THIN_SPACE}%)"


@register.filter
def bar_text(row: Any) -> str:
    """The whole bar in words, for those who do not see it."""
    return "; ".join(part_text(part) for part in row.parts if part.gpu_us)


@register.filter
def at(mapping: Mapping[Any, Any], key: Any) -> Any:
    """`mapping|at:key`, None where there is none."""
    return mapping.get(key)
