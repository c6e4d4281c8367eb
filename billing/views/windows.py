"""Pages of a stretch of time, named in their address as in the API: `?window=2026-10`, `last7d`, `start,end`."""

from __future__ import annotations

from typing import ClassVar
from urllib.parse import urlencode

from django.utils.functional import cached_property
from django.utils.translation import gettext as _

from billing.selectors.periods import ledger_and_now
from billing.views.heat import Choice
from ledger.core.periods import Month, Span, to_datetime
from ledger.core.windows import BadWindow, parse_window
from ledger.models import Ledger, Period
from ledger.templatetags.figures import month_name
from ledger.views.tables import TablePage

_FIRST_MS, _LAST_MS = 0, 4_000_000_000_000
_MONTHS_OFFERED = 3


class WindowPage(TablePage):
    """A page with a window. What names none, or one out of reach of the calendar, is the newest month of the books."""

    month_parameter: ClassVar[str] = "window"

    @cached_property
    def _asked(self) -> tuple[Ledger, int]:
        return ledger_and_now()

    @property
    def ledger(self) -> Ledger:
        return self._asked[0]

    @property
    def now_ms(self) -> int:
        return self._asked[1]

    @property
    def zone(self) -> str:
        return self.ledger.billing_time_zone

    @cached_property
    def _months(self) -> list[str]:
        return list(Period.objects.order_by("-month").values_list("month", flat=True))

    @cached_property
    def named(self) -> tuple[str, Span]:
        """(as the address names it, what that is)"""
        default = self._months[0] if self._months else str(Month.containing(self.now_ms, self.zone))
        for text in (self.request.GET.get("window", ""), default):
            try:
                span = parse_window(text, self.zone, self.now_ms)
            except (BadWindow, ValueError, OverflowError):
                continue
            if span.start_ms > _FIRST_MS and span.end_ms < _LAST_MS:
                return text, span
        return default, Month.parse(default).span(self.zone)

    @property
    def window(self) -> Span:
        return self.named[1]

    @property
    def month(self) -> str:
        """The month in sight: the one that the window ends in."""
        return str(Month.containing(self.window.end_ms - 1, self.zone))

    def window_context(self) -> dict[str, object]:
        text, span = self.named
        months = self._months[:_MONTHS_OFFERED]
        if self.month not in months:
            months.append(self.month)
        names = {
            **{month: month_name(month) for month in sorted(months)},
            "last7d": _("the last 7 days"),
            "last24h": _("the last 24 hours"),
        }
        return {
            "month": self.month,
            "starts_at": to_datetime(span.start_ms),
            "ends_at": to_datetime(span.end_ms),
            "windows": [Choice(name, self.url(window=key), key == text) for key, name in names.items()],
        }

    def url(self, **changes: str) -> str:
        """This page with other parameters; pages of tables start anew, filters stay."""
        query = {key: value for key, value in self.request.GET.items() if key not in ("csv", "excel")}
        query = {key: value for key, value in query.items() if not key.endswith("page")}
        return f"?{urlencode({**query, **changes})}"
