"""A month's pages as they were known on a day: `?as_of=2026-11-05` (domain.md section 10, `as of`)."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, datetime, time, timedelta
from typing import Any, cast
from zoneinfo import ZoneInfo

from django.http import HttpRequest, HttpResponse, HttpResponseBase, StreamingHttpResponse
from django.utils import timezone
from django.utils.translation import gettext as _

from billing.services.as_of import RequestsGone, month_as_of
from ledger.core.periods import Month
from ledger.models import Role
from ledger.views.page import billing_zone
from ledger.views.tables import TablePage


class KnownThenPage(TablePage):
    """Shows the whole page from the books as they were known at the end of a day, and offers no deed on it.

    Costs what computing the month costs. The page's own `context` has to be read, and answered, inside.
    """

    known_at: datetime | None = None
    known_on: date | None = None
    as_of_problem = ""

    def get(self, request: HttpRequest, **kwargs: Any) -> HttpResponseBase:
        asked = request.GET.get("as_of", "") if request.method in ("GET", "HEAD") else ""
        instant = self._instant(asked)
        if instant is not None:
            try:
                with month_as_of(Month.parse(kwargs["month"]), instant):
                    return self._as_known(request, instant, **kwargs)
            except RequestsGone as gone:
                self.as_of_problem = _(
                    "What was known then cannot be told any more: raw requests of %(day)s are pruned, and some came"
                    " later than that day."
                ) % {"day": gone.day.isoformat()}
                self.known_at = self.known_on = None
        return self.page(request, **kwargs)

    def page(self, request: HttpRequest, **kwargs: Any) -> HttpResponseBase:
        """The page as it is asked for, from the books that the session sees."""
        return super().get(request, **kwargs)

    def _as_known(self, request: HttpRequest, instant: datetime, **kwargs: Any) -> HttpResponseBase:
        self.known_at = instant
        if self.access.sees_all_tenants:
            # Nobody approves, grants, explains or closes anything on what is not the books.
            self.access = replace(self.access, roles=frozenset({Role.AUDITOR}))
        response = self.page(request, **kwargs)
        if response.streaming:
            # What streams is read while the books of then are there.
            stream = cast(StreamingHttpResponse, response)
            stream.streaming_content = [b"".join(cast("Any", stream.streaming_content))]
        return response

    def _instant(self, asked: str) -> datetime | None:
        """The end of the day in the billing zone, or now on the day itself; None: as the books are."""
        if not asked:
            return None
        now = timezone.now()
        try:
            self.known_on = date.fromisoformat(asked)
            ends = datetime.combine(
                self.known_on + timedelta(days=1), time.min, ZoneInfo(billing_zone(self.request))
            )
        except (ValueError, OverflowError):
            self.known_on = None
            self.as_of_problem = _("“%(text)s” is no day: write it as 2026-11-05.") % {"text": asked[:40]}
            return None
        begun = ends - timedelta(days=1)
        if begun > now:
            self.known_on = None
            self.as_of_problem = _("That day is still to come.")
            return None
        return min(ends, now)

    def answer(self, request: HttpRequest, context: dict[str, Any]) -> HttpResponse:
        today = timezone.now().astimezone(ZoneInfo(billing_zone(request))).date()
        told = {
            "known_at": self.known_at,
            "known_on": self.known_on,
            "as_of_problem": self.as_of_problem,
            "today": today,
        }
        return super().answer(request, {**told, **context})
