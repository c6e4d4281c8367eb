"""The one place where templates turn integers into figures: GPU-hours, money, GPUs, instants, spans of time.

A figure carries its exact value in `title`, so that hovering tells what was rounded. Nothing is ever shown as 0 that
is not known: None reads "unknown".
"""

from __future__ import annotations

import html
from collections.abc import Iterable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from django import template
from django.utils import timezone
from django.utils.formats import date_format
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import get_language, ngettext
from django.utils.translation import gettext as _

from ledger.core import figures
from ledger.core.currency import minor_places
from ledger.core.units import (
    MICRO_PER_UNIT,
    MILLI_PER_GPU,
    fixed_decimal,
    gpu_hours_fixed,
    gpu_hours_text,
    micro_text,
    milli_gpus_text,
    money_fixed,
    round_half_even,
    seconds_text,
)
from ledger.wording import (
    ALERT_STATES,
    APPROVAL_KINDS,
    BATCH_STATES,
    CATEGORIES,
    CAUSES,
    DISPOSITIONS,
    DISPUTE_STATES,
    EVENT_TYPES,
    EVIDENCE,
    LINE_KINDS,
    MYRIADS,
    PAYERS,
    PERIOD_STATES,
    PREEMPTOR_SOURCES,
    SEVERITIES,
    STATEMENT_STATES,
    TIME_UNITS,
    apart_from_neighbours,
    category_name,
)

register = template.Library()

Number = int | Decimal | None
_SELECTED = mark_safe(" selected")


def _unknown() -> SafeString:
    return format_html('<span class="unknown">{}</span>', _("unknown"))


def _figure(text: str, exact: str, *, dash: bool = False) -> SafeString:
    shown = figures.DASH if dash and figures.is_zero(exact) else figures.set_digits(text)
    # There are hundreds on a page: format_html and mark_safe, which look for lazy texts, take five times as long.
    exact = html.escape(exact)
    return SafeString(f'<data class="figure" value="{exact}" title="{exact}">{html.escape(shown)}</data>')


@register.filter
def gpu_hours(gpu_us: Number, places: int = 2) -> SafeString:
    """GPU-hours with fixed places; the title holds them exactly."""
    if gpu_us is None:
        return _unknown()
    return _figure(gpu_hours_fixed(int(gpu_us), places), gpu_hours_text(int(gpu_us)))


@register.filter
def gpu_hours_cell(gpu_us: Number) -> SafeString:
    """The same in a dense table: a dash for zero."""
    if gpu_us is None:
        return _unknown()
    return _figure(gpu_hours_fixed(int(gpu_us)), gpu_hours_text(int(gpu_us)), dash=True)


@register.filter
def gpu_seconds(gpu_us: Number) -> SafeString:
    """GPU-seconds, exact and short."""
    if gpu_us is None:
        return _unknown()
    return _figure(seconds_text(int(gpu_us)), seconds_text(int(gpu_us)))


@register.filter
def gpu_us(value: Number) -> SafeString:
    """The exact integer of GPU-microseconds."""
    return _unknown() if value is None else _figure(str(int(value)), str(int(value)), dash=True)


@register.filter
def gpus(milli_gpus: Number) -> SafeString:
    if milli_gpus is None:
        return _unknown()
    text = milli_gpus_text(int(milli_gpus))
    return _figure(text, text)


@register.filter
def gpus_cell(milli_gpus: Number) -> SafeString:
    if milli_gpus is None:
        return _unknown()
    text = milli_gpus_text(int(milli_gpus))
    return _figure(text, text, dash=True)


@register.filter
def gpus_in_words(milli_gpus: Number) -> SafeString | str:
    """The number with its unit: '1 GPU', '16 GPUs', '0.5 GPUs'."""
    if milli_gpus is None:
        return _unknown()
    milli = int(milli_gpus)
    number = milli // MILLI_PER_GPU if milli % MILLI_PER_GPU == 0 else 2
    text = figures.set_digits(milli_gpus_text(milli))
    return ngettext("%(gpus)s GPU", "%(gpus)s GPUs", number) % {"gpus": text}


@register.filter
def count(value: Number) -> SafeString:
    return _unknown() if value is None else _figure(str(value), str(value))


@register.filter
def count_cell(value: Number) -> SafeString:
    return _unknown() if value is None else _figure(str(value), str(value), dash=True)


@register.filter
def money_minor(amount_minor: Number, currency: str) -> SafeString:
    """An amount in the currency's minor unit, as printed on the bill."""
    if amount_minor is None:
        return _unknown()
    text = fixed_decimal(int(amount_minor), minor_places(currency))
    return _figure(text, text)


@register.filter
def money(amount_micro: Number, currency: str) -> SafeString:
    """Micro units, rounded once to the minor unit; the title holds the exact amount."""
    if amount_micro is None:
        return _unknown()
    return _figure(money_fixed(int(amount_micro), minor_places(currency)), micro_text(int(amount_micro)))


@register.filter
def money_large(amount_minor: Number, currency: str) -> SafeString:
    """A sum to take in at a glance, beside its currency: in 万 and 亿 where a Chinese reader expects them (the title
    has all of it), else as printed."""
    if amount_minor is None:
        return _unknown()
    text = fixed_decimal(int(amount_minor), minor_places(currency))
    large = figures.in_myriads(int(amount_minor), minor_places(currency))
    is_chinese = currency == "CNY" and (get_language() or "").startswith("zh")
    if not is_chinese or large is None:
        return _figure(text, text)
    shown = f"{figures.set_digits(large[0])}{figures.THIN_SPACE}{MYRIADS[large[1]]}"
    return format_html('<data class="figure" value="{}" title="{}">{}</data>', text, text, shown)


@register.filter
def micro_large(amount_micro: Number, currency: str) -> SafeString:
    """The same from micro units."""
    if amount_micro is None:
        return _unknown()
    places = minor_places(currency)
    return money_large(round_half_even(int(amount_micro) * 10**places, MICRO_PER_UNIT), currency)


@register.filter
def money_cell(amount_micro: Number, currency: str) -> SafeString:
    if amount_micro is None:
        return _unknown()
    text = money_fixed(int(amount_micro), minor_places(currency))
    return _figure(text, micro_text(int(amount_micro)), dash=True)


@register.filter
def price(price_micro: Number, *, dash: bool = False) -> SafeString:
    """A unit price or an exact amount with all of its places, at least two; the title has it as files and API do."""
    if price_micro is None:
        return _unknown()
    exact = micro_text(int(price_micro))
    text = exact + {-1: ".00", 2: "0"}.get(len(exact) - exact.rfind(".") if "." in exact else -1, "")
    return _figure(text, exact, dash=dash)


@register.filter
def price_cell(price_micro: Number) -> SafeString:
    """The same in a dense table: a dash for zero."""
    return price(price_micro, dash=True)


@register.filter
def signed_percent(text: str | None) -> str:
    """A change in percent: '+3.1 %', '−0.4 %', a dash where there is nothing to compare."""
    if text is None:
        return figures.DASH
    sign = "" if text.startswith("-") or figures.is_zero(text) else "+"
    return f"{sign}{figures.set_digits(text)}{figures.THIN_SPACE}%"


@register.filter
def percent(text: str) -> str:
    return f"{text}{figures.THIN_SPACE}%"


@register.filter
def percent_cell(text: str) -> str:
    """The same in a dense table: a dash for zero."""
    return figures.DASH if figures.is_zero(text) else percent(text)


@register.filter
def share(ppm: int | None) -> SafeString | str:
    """A share in millionths as a percentage; its value and title are the fraction, as in files and from the API."""
    if ppm is None:
        return figures.DASH
    shown = f"{fixed_decimal(round_half_even(ppm, 1000), 1)}{figures.THIN_SPACE}%"
    fraction = fixed_decimal(ppm, 6)
    text = figures.DASH if ppm == 0 else shown
    return format_html('<data class="figure" value="{}" title="{}">{}</data>', fraction, fraction, text)


@register.filter
def million_tokens(tokens: Number) -> SafeString:
    if tokens is None:
        return _unknown()
    text = fixed_decimal(int(tokens), 6)
    return _figure(text, text)


@register.filter
def instant(at: datetime | None) -> SafeString | str:
    """An instant in the zone chosen for pages; UTC in the title, always."""
    if at is None:
        return figures.DASH
    utc = at.astimezone(UTC)
    title = f"{_clock(utc)} UTC"
    return format_html(
        '<time datetime="{}" title="{}">{}</time>', utc.isoformat(), title, _clock(timezone.localtime(at))
    )


@register.filter
def second(at: datetime | None) -> SafeString | str:
    """An instant of a table, to the second; the milliseconds that a source gave stand in the title and in CSV."""
    if at is None:
        return figures.DASH
    utc, shown = at.astimezone(UTC), timezone.localtime(at)
    return format_html(
        '<time datetime="{}" title="{} UTC">{}</time>',
        utc.isoformat(),
        _clock(utc),
        f"{shown:%Y-%m-%d %H:%M:%S}",
    )


@register.filter
def validity(at: datetime | None) -> SafeString | str:
    """From when on terms hold: the day where it is a midnight of the zone, and words for 'since ever'."""
    if at is None:
        return figures.DASH
    if at.timestamp() <= 0:
        return _("always")
    shown = timezone.localtime(at)
    is_midnight = (shown.hour, shown.minute, shown.second, shown.microsecond) == (0, 0, 0, 0)
    return format_html(
        '<time datetime="{}" title="{} UTC">{}</time>',
        at.astimezone(UTC).isoformat(),
        _clock(at.astimezone(UTC)),
        f"{shown:%Y-%m-%d}" if is_midnight else _clock(shown),
    )


@register.filter
def moment(at: datetime | None) -> SafeString | str:
    """To the second: when a person did something."""
    return instant(None if at is None else at.replace(microsecond=0))


def _clock(at: datetime) -> str:
    milliseconds = at.microsecond // 1000
    return f"{at:%Y-%m-%d %H:%M:%S}" + (f".{milliseconds:03d}" if milliseconds else "")


@register.filter
def clock_time(at: datetime) -> str:
    """Hours and minutes in the chosen zone."""
    return f"{timezone.localtime(at):%H:%M}"


@register.filter
def duration(milliseconds: int | None) -> SafeString | str:
    """A span of time in its two largest units."""
    if milliseconds is None:
        return _unknown()
    parts = figures.duration_parts(milliseconds)
    return " ".join(f"{number}{figures.THIN_SPACE}{TIME_UNITS[unit]}" for number, unit in parts)


@register.filter
def month_name(month: str) -> str:
    """'2026-10' in words of the reader's language."""
    year, number = month.split("-")
    return date_format(datetime(int(year), int(number), 1, tzinfo=UTC), "YEAR_MONTH_FORMAT", use_l10n=True)


@register.filter
def category(name: str) -> SafeString:
    """A category with the mark that it has in every chart and legend; other kinds of line have none."""
    if name not in CATEGORIES:
        return format_html('<span class="category">{}</span>', category_name(name))
    return format_html(
        '<span class="category"><i class="mark mark-{}" aria-hidden="true"></i>{}</span>',
        name,
        category_name(name),
    )


@register.filter
def category_text(name: str) -> str:
    return category_name(name)


@register.filter
def cause(name: str) -> str:
    return str(CAUSES.get(name, name))


@register.filter
def evidence(name: str) -> str:
    return str(EVIDENCE.get(name, name))


@register.filter
def disposition(name: str) -> str:
    return str(DISPOSITIONS.get(name, name))


@register.filter
def period_state(state: int) -> str:
    return str(PERIOD_STATES[state])


@register.filter
def statement_state(state: str) -> str:
    return str(STATEMENT_STATES.get(state, state))


@register.filter
def dispute_state(state: str) -> str:
    return str(DISPUTE_STATES.get(state, state))


@register.filter
def line_kind(kind: str) -> str:
    return str(LINE_KINDS.get(kind, kind))


@register.filter
def set_apart(line: Any) -> str:
    """Class, purpose and the like of a statement line, in words."""
    return apart_from_neighbours(line.service_class, line.purpose, line.service_idle)


@register.filter
def preemptor_source(name: str) -> str:
    return str(PREEMPTOR_SOURCES.get(name, name))


@register.filter
def severity(name: str) -> str:
    return str(SEVERITIES.get(name, name))


@register.filter
def approval_kind(name: str) -> str:
    return str(APPROVAL_KINDS.get(name, name))


@register.filter
def alert_state(name: str) -> str:
    return str(ALERT_STATES.get(name, name))


@register.filter
def payer(name: str) -> str:
    return str(PAYERS.get(name, name))


@register.filter
def event_type(name: str) -> str:
    return str(EVENT_TYPES.get(name, name))


@register.filter
def batch_state(name: str) -> str:
    return str(BATCH_STATES.get(name, name))


@register.filter
def ppm_percent(ppm: int, places: int = 4) -> str:
    """Millionths as a percentage of at most so many places, without trailing zeros."""
    text = fixed_decimal(round_half_even(ppm, 10 ** (4 - places)), places).rstrip("0").rstrip(".")
    return f"{text}{figures.THIN_SPACE}%"


@register.filter
def slot_clock(at: datetime) -> SafeString:
    """The clock of a slot's edge in the zone chosen for pages, UTC in the title; seconds only where a slot is cut off
    the minute."""
    utc, shown = at.astimezone(UTC), timezone.localtime(at)
    return format_html(
        '<time datetime="{}" title="{} UTC">{}</time>',
        utc.isoformat(),
        _clock(utc),
        f"{shown:%H:%M:%S}" if shown.second else f"{shown:%H:%M}",
    )


@register.filter
def date_utc(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d}"


@register.filter
def figures_of(row: Any, names: list[str]) -> list[int]:
    """The GPU time of a day or month in the order of these categories."""
    return [row.gpu_us[name] for name in names]


@register.simple_tag
def options(names: Iterable[str], chosen: str | None = None) -> SafeString:
    """Of hundreds of names at once, as a loop of the template would take longer than the rest of a page."""
    return mark_safe(
        "".join(
            f"<option{_SELECTED if name == chosen else ''}>{html.escape(name)}</option>" for name in names
        )
    )
