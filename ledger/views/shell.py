"""What stands around every page: sections by role, the month and its neighbours, language, zone and theme."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from django.conf import settings
from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse
from django.utils.functional import cached_property
from django.utils.module_loading import import_string
from django.utils.translation import get_language
from django.utils.translation import gettext as _

from ledger.access import Access, access_of_user
from ledger.models import Period
from ledger.views.page import THEME_COOKIE, THEMES, ZONE_COOKIE, billing_zone
from ledger.wording import ROLES

MONTH_IN_SESSION = "month"


@dataclass(frozen=True)
class Section:
    """One entry of the section list. `key` is its second key after `g`."""

    name: str
    url: str
    key: str = ""
    current: bool = False
    count: int = 0


class Shell:
    """Built once per rendered page; reads the list of months and the ledger's settings."""

    def __init__(self, request: HttpRequest, month: str = "", months: Sequence[str] | None = None) -> None:
        self.request = request
        self.access: Access = access_of_user(request.user) if hasattr(request, "user") else Access()
        self._given_months = months
        self._page_month = month

    @cached_property
    def months(self) -> list[str]:
        """Months that can be switched to, newest first."""
        if self._given_months is not None:
            return sorted(self._given_months, reverse=True)
        if not self.access.sees_anything:
            return []
        return list(Period.objects.order_by("-month").values_list("month", flat=True))

    @cached_property
    def month(self) -> str:
        """The page's month; elsewhere the one looked at last, else the newest."""
        remembered = self.request.session.get(MONTH_IN_SESSION, "")
        if self._page_month:
            if self._page_month != remembered:
                self.request.session[MONTH_IN_SESSION] = self._page_month
            return self._page_month
        if remembered in self.months:
            return str(remembered)
        return self.months[0] if self.months else ""

    @cached_property
    def earlier(self) -> str:
        return next((month for month in self.months if month < self.month), "")

    @cached_property
    def later(self) -> str:
        return next((month for month in reversed(self.months) if month > self.month), "")

    def month_url(self, month: str) -> str:
        """The same page of another month where there is one, else that month's page.

        A page that does not exist has no month: its answer must not depend on what was asked for.
        """
        match = getattr(self.request, "resolver_match", None) if self._page_month else None
        if match is not None and "month" in match.kwargs:
            # A line's number is that of its statement alone: another month has the statement, not the line.
            is_line = "position" in match.kwargs
            name = "billing:statement" if is_line else match.view_name
            kept = {key: value for key, value in match.kwargs.items() if key != "position"}
            try:
                return reverse(name, kwargs={**kept, "month": month})
            except NoReverseMatch:
                pass
        view = getattr(getattr(match, "func", None), "view_class", None)
        named = getattr(view, "month_parameter", "")
        if match is not None and named:
            return f"{self.request.path}?{urlencode({named: month})}"
        return reverse("billing:month", kwargs={"month": month})

    @property
    def month_links(self) -> list[tuple[str, str]]:
        return [(month, self.month_url(month)) for month in self.months]

    @property
    def earlier_url(self) -> str:
        return self.month_url(self.earlier) if self.earlier else ""

    @property
    def later_url(self) -> str:
        return self.month_url(self.later) if self.later else ""

    @property
    def sections(self) -> list[Section]:
        here = self.request.path
        entries = self._entries()
        best = max((url for _name, url, *_ in entries if here.startswith(url)), key=len, default="")
        return [
            Section(name, url + query, key, url == best, self.open_alerts if key == "a" else 0)
            for name, url, key, query in entries
        ]

    def _entries(self) -> list[tuple[str, str, str, str]]:
        """(name, path, key, query); pages of a month or a window are asked for the month in sight."""
        runs_the_ledger, sees = self.access.sees_all_tenants, self.access.sees_anything
        months = reverse("billing:months")
        preemptions = reverse("billing:month-preemptions", args=[self.month]) if self.month else ""
        window = f"?{urlencode({'window': self.month})}" if self.month else ""
        month = f"?{urlencode({'month': self.month})}" if self.month else ""
        entries = [
            (True, _("Months"), months, "m", ""),
            (sees and bool(preemptions), _("Preemptions"), preemptions, "p", ""),
            (runs_the_ledger, _("Cluster"), reverse("billing:cluster"), "c", ""),
            (sees, _("Demand"), reverse("billing:demand"), "d", window),
            (sees, _("Quotas"), reverse("billing:quota"), "q", window),
            (sees, _("Budgets"), reverse("billing:budgets"), "b", month),
            (sees, _("Plan"), reverse("billing:plan"), "l", ""),
            (runs_the_ledger, _("Calibration"), reverse("billing:calibration"), "k", window),
            (runs_the_ledger, _("Ingest"), reverse("ingest:overview"), "i", ""),
            (sees, _("Alerts"), reverse("billing:alerts"), "a", ""),
            (runs_the_ledger, _("Audit"), reverse("billing:audit"), "u", ""),
            (sees and not runs_the_ledger, _("Rates"), reverse("billing:rates"), "r", ""),
            (runs_the_ledger, _("Settings"), reverse("billing:settings"), "s", ""),
            (self.access.sees_people, _("Users and tokens"), reverse("billing:users"), "t", ""),
        ]
        return [entry for is_shown, *entry in entries if is_shown]  # type: ignore[misc]

    @cached_property
    def open_alerts(self) -> int:
        """How many alerts nobody has dealt with (setting OPEN_ALERTS names who counts)."""
        counted: int = import_string(settings.OPEN_ALERTS)(self.access)
        return counted

    @property
    def roles(self) -> str:
        names = [str(ROLES[role]) for role in sorted(self.access.roles)]
        if self.access.admin_of:
            names.append(str(ROLES["tenant_admin"]))
        if self.access.tenant_ids - self.access.admin_of:
            names.append(str(ROLES["tenant_viewer"]))
        return ", ".join(names)

    @property
    def theme(self) -> str:
        chosen = self.request.COOKIES.get(THEME_COOKIE, "auto")
        return chosen if chosen in THEMES else "auto"

    @property
    def themes(self) -> list[tuple[str, str, str]]:
        return [("auto", "◐", _("As the system")), ("light", "☀", _("Light")), ("dark", "☾", _("Dark"))]

    @property
    def zone(self) -> str:
        return "utc" if self.request.COOKIES.get(ZONE_COOKIE) == "utc" else "billing"

    @property
    def zone_name(self) -> str:
        return "UTC" if self.zone == "utc" else self.billing_zone

    @property
    def billing_zone(self) -> str:
        return billing_zone(self.request)

    @property
    def languages(self) -> list[tuple[str, str, bool]]:
        now = get_language()
        short = {"en": "EN", "zh-hans": "中文"}
        return [(code, short.get(code, name), code == now) for code, name in settings.LANGUAGES]
