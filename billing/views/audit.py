"""Who did what, and the chain of closed statements that reveals a change anywhere in history (domain.md section 10)."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from django.db.models import QuerySet
from django.http import HttpResponseBase, HttpResponseRedirect, QueryDict
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext as _

from billing.api.periods import soon
from billing.models import Statement, StatementState
from billing.services.verification import start_verification
from billing.tasks import verify_ledger
from billing.views.audit_values import audit_lines
from billing.views.verification import last_verification, outcome_shown, runs_table
from ledger.core.sentences import spelled_out
from ledger.models import AuditEntry, Period
from ledger.services.audit import Actor
from ledger.views.acting import ActingPage, Refused, text_of
from ledger.views.page import runs_the_ledger
from ledger.views.tables import CODE, COUNT, INSTANT, TEXT_FILTER, Column, Filter, Table, words
from ledger.wording_deeds import DEEDS, OBJECTS, deed_name, object_name

_SHOWN_HASH = 16
_SHOWN_CHARACTERS = 24
_SHOWN_OF_ID = 28


class AuditPage(ActingPage):
    """Whoever runs or checks the ledger may verify it: that changes nothing of the books."""

    template = "billing/audit.html"
    allows = staticmethod(runs_the_ledger)

    def may_act(self) -> bool:
        return self.access.sees_all_tenants

    def tables(self) -> list[Table]:
        return [runs_table(), chain_table(), deeds_table()]

    def context(self) -> dict[str, Any]:
        last = last_verification()
        return {
            "head": _issued().first(),
            "last": last,
            "last_outcome": outcome_shown(last) if last else "",
            "months": list(_computed().values_list("month", flat=True)),
        }

    def do(self, form: QueryDict, by: Actor, **_kwargs: Any) -> str | HttpResponseBase:
        month = text_of(form, "month", 40)
        if month and not _computed().filter(month=month).exists():
            raise Refused(_("There are no books of that month."))
        run, is_new = start_verification(by, month)
        if is_new:
            soon(lambda: verify_ledger.delay(run.pk))
        return HttpResponseRedirect(reverse("billing:verification", args=[run.pk]), status=303)


def _computed() -> QuerySet[Period]:
    return Period.objects.filter(horizon_at__isnull=False).order_by("-month")


def chain_table() -> Table:
    """Newest first; the chain itself runs by month, then by slug."""
    return Table(
        "chain",
        _issued,
        [
            Column("month", _("Month"), of="period_id", field="period_id", filter=TEXT_FILTER),
            Column("tenant", _("Tenant"), of="tenant.slug", field="tenant__holder__slug", filter=TEXT_FILTER),
            Column("number", _("Number"), CODE, field="number"),
            Column("sha256", _("SHA-256"), CODE, html=lambda row: _short(row.sha256)),
            Column(
                "previous_of_tenant",
                _("Before it, of the tenant"),
                CODE,
                html=lambda row: _short(row.previous_of_tenant),
            ),
            Column(
                "previous_of_ledger",
                _("Before it, of the ledger"),
                CODE,
                html=lambda row: _short(row.previous_of_ledger),
            ),
        ],
        label=_("Chain of statements"),
        empty=_("No month is closed yet; the first closed statement begins the chain."),
    )


def _issued() -> QuerySet[Statement]:
    found = Statement.objects.filter(state=StatementState.ISSUED).select_related("tenant__holder")
    return found.order_by("-period_id", "-tenant__holder__slug")


def _short(sha256: str) -> str:
    return f"{sha256[:_SHOWN_HASH]}…" if sha256 else "—"


def deeds_table(rows: Callable[[], QuerySet[AuditEntry]] | None = None) -> Table:
    """rows: newest first; all of them by default."""
    return Table(
        "deeds",
        rows or (lambda: AuditEntry.objects.order_by("-pk")),
        [
            Column("recorded_at", _("When"), INSTANT, field="recorded_at"),
            Column("actor", _("Who"), field="actor", filter=TEXT_FILTER),
            Column("action", _("Deed"), words(deed_name), field="action", filter=Filter(choices=DEEDS.items)),
            Column(
                "object_type",
                _("Kind of object"),
                words(object_name),
                field="object_type",
                filter=Filter(choices=OBJECTS.items),
                on_page=False,
            ),
            Column("object_id", _("Object"), field="object_id", filter=TEXT_FILTER, html=_object),
            Column(
                "reason",
                _("Reason"),
                can_sort=False,
                css=lambda entry: "wide" if len(entry.reason) > _SHOWN_CHARACTERS else "",
            ),
            *(
                Column(name, title, CODE, of=_json_of(name), html=_folded(name), can_sort=False)
                for name, title in (("before", _("Before")), ("after", _("After")))
            ),
            Column("entry", _("Entry"), COUNT, of="pk", field="pk", on_page=False),
        ],
        label=_("Who did what"),
        empty=_("Nobody has done anything yet."),
    )


def _object(entry: AuditEntry) -> Any:
    """What kind of thing, and which one."""
    return format_html('{}<br><span class="code">{}</span>', object_name(entry.object_type), entry.object_id)


def _json_of(name: str) -> Callable[[AuditEntry], str]:
    def value(entry: AuditEntry) -> str:
        kept = getattr(entry, name)
        return "" if kept is None else json.dumps(spelled_out(kept), ensure_ascii=False, sort_keys=True)

    return value


def _folded(name: str) -> Callable[[AuditEntry], str]:
    """What is long, such as a whole configuration, opens at a click."""

    def cell(entry: AuditEntry) -> str:
        lines = audit_lines(getattr(entry, name))
        first = lines[0] if lines else "—"
        if len(lines) <= 1 and len(first) <= _SHOWN_CHARACTERS:
            return first
        opening = first if len(first) <= _SHOWN_CHARACTERS else f"{first[:_SHOWN_CHARACTERS]}…"
        rest = format_html_join("", "<li>{}</li>", ((line,) for line in lines))
        return format_html(
            '<details><summary>{}</summary><ul class="evidence">{}</ul></details>', opening, rest
        )

    return cell
