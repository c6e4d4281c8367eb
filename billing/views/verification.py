"""One verification of the books: its progress while it runs, what each check compares, and what deviated."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import render
from django.urls import reverse
from django.utils.functional import Promise
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from billing.core.sentences import PROBLEMS
from billing.models import Deviation, RunState, Statement, VerificationRun
from billing.services.verification import WORKER_DIED
from billing.views.progress import how_far
from ledger.core.units import MS_PER_SECOND
from ledger.models import Period
from ledger.templatetags.figures import month_name
from ledger.views.page import runs_the_ledger
from ledger.views.tables import CODE, COUNT, DURATION, INSTANT, TEXT_FILTER, Column, Filter, Table, TablePage
from ledger.wording_sentences import gist, in_words

PROGRESS = "verification-progress"
Text = str | Promise

# Check -> what has to hold, and what is compared with what.
CHECK_WORDS: dict[str, tuple[Text, Text]] = {
    "transfers_net_to_zero": (
        gettext_lazy("Transfers net to zero"),
        gettext_lazy("What came into all accounts equals what went out of them, in GPU time and in money."),
    ),
    "transfers_are_what_was_posted": (
        gettext_lazy("Transfers are what was posted"),
        gettext_lazy("Each transfer's id follows from its key and from all that was posted under it before."),
    ),
    "batches_lose_nothing": (
        gettext_lazy("No event is lost"),
        gettext_lazy("Received = booked + duplicate + conflict + quarantined, and what was booked is there."),
    ),
    "the_record_is_guarded": (
        gettext_lazy("Facts are append-only"),
        gettext_lazy("The triggers that refuse any change of facts and transfers are in place."),
    ),
    "slots_conserve_capacity": (
        gettext_lazy("Capacity is conserved"),
        gettext_lazy(
            "Per pool and slot, capacity equals where all of it went, and holders' rows add up to it."
        ),
    ),
    "slots_meet": (
        gettext_lazy("Slots meet"),
        gettext_lazy("A month is the sum of its slots, across changes of the clock too."),
    ),
    "pairs_equal_lending": (
        gettext_lazy("Pairs equal lending"),
        gettext_lazy("What lenders lent to each borrower adds up to what was lent and to what was borrowed."),
    ),
    "days_equal_slots": (
        gettext_lazy("Days equal slots"),
        gettext_lazy(
            "What is kept added up by day, for bills, pages and forecasts, is the sum of the slots and of the hours "
            "of requests."
        ),
    ),
    "hours_equal_requests": (
        gettext_lazy("Hours equal requests"),
        gettext_lazy(
            "The hours that requests are billed by are the sum of the requests, as long as those are kept."
        ),
    ),
    "tenant_days_equal_days": (
        gettext_lazy("Tenants' days equal those of pools"),
        gettext_lazy(
            "What forecasts go by, each tenant's days and their amounts, is what was added up by day in every pool, "
            "at the rate card."
        ),
    ),
    "posted_is_target": (
        gettext_lazy("Posted is target"),
        gettext_lazy("What stands posted for a month equals what its facts and terms say, line by line."),
    ),
    "statements_add_up": (
        gettext_lazy("Statements add up"),
        gettext_lazy("The lines of each statement add up to its total, to the minor unit."),
    ),
    "showback_is_nobodys_debt": (
        gettext_lazy("Showback is nobody's debt"),
        gettext_lazy("Amounts that are only shown stand on no tenant's account."),
    ),
    "statements_are_what_was_sealed": (
        gettext_lazy("Statements are what was sealed"),
        gettext_lazy("Each issued statement gives its hash, and each hash covers the one before it."),
    ),
    "annexes_are_what_was_sealed": (
        gettext_lazy("Files are what was sealed"),
        gettext_lazy("Each file of a closed statement gives the hash that the statement names."),
    ),
    "books_follow_from_facts": (
        gettext_lazy("Books follow from facts"),
        gettext_lazy(
            "Every month, computed again from all of its facts, gives the books as they stand; a closed one with what "
            "was posted for it later."
        ),
    ),
}
_STATES = {
    "waiting": gettext_lazy("waits"),
    "running": gettext_lazy("at work"),
    "done": gettext_lazy("holds"),
    "failed": gettext_lazy("could not be checked"),
}

# Why a check could not be carried out, where that has words; else the name of the error.
_DETAILS = {
    WORKER_DIED: gettext_lazy("each worker that began it was killed, most likely for want of memory"),
}


def check_title(name: str) -> str:
    return str(CHECK_WORDS[name][0]) if name in CHECK_WORDS else name.replace("_", " ")


class VerificationPage(TablePage):
    """The page, or its progress alone where that asks for itself."""

    template = "billing/verification.html"
    allows = staticmethod(runs_the_ledger)

    def get(self, request: HttpRequest, **kwargs: Any) -> HttpResponseBase:
        run = VerificationRun.objects.filter(pk=kwargs["run_id"]).first()
        if run is None:
            raise Http404
        self.run = run
        if request.headers.get("HX-Target") == PROGRESS:
            return self._progress(request)
        response = super().get(request, **kwargs)
        response["Vary"] = "HX-Request, HX-Target"
        return response

    def _progress(self, request: HttpRequest) -> HttpResponse:
        """Once it has ended, the browser is told to fetch the page anew: then there are results."""
        response = render(request, "billing/_verification_progress.html", {"progress": progress(self.run)})
        response["Cache-Control"] = "private, no-store"
        if self.run.state != RunState.RUNNING:
            response["HX-Refresh"] = "true"
        return response

    def tables(self, run_id: int) -> list[Table]:
        return [checks_table(lambda: shown_checks(self.run)), deviations_table(self.run)]

    def context(self, run_id: int) -> dict[str, Any]:
        return {"run": self.run, "progress": progress(self.run)}


def progress(run: VerificationRun) -> dict[str, Any]:
    running = (step["name"] for step in run.steps if step["state"] == "running")
    return {**how_far(run), "at_work": next(map(check_title, running), "")}


def shown_checks(run: VerificationRun) -> list[dict[str, Any]]:
    """Each check with what it compares; `is_clean` once it is done without a deviation."""
    shown = []
    for step in run.steps:
        count = step.get("deviations", 0)
        shown.append(
            {
                "name": step["name"],
                "title": check_title(step["name"]),
                "meaning": CHECK_WORDS.get(step["name"], ("", ""))[1],
                "code": "deviates" if count else step["state"],
                "state": _STATES[step["state"]],
                "is_clean": step["state"] == "done" and not count,
                "is_failed": step["state"] == "failed" or bool(count),
                "count": count,
                "detail": _DETAILS.get(step.get("detail", ""), step.get("detail", "")),
            }
        )
    return shown


def checks_table(rows: Callable[[], list[dict[str, Any]]]) -> Table:
    return Table(
        "checks",
        rows,
        [
            Column("check", _("Invariant"), of="name", html=lambda row: row["title"]),
            Column("meaning", _("What is compared"), css=lambda row: "wide"),
            Column("state", _("Result"), of="code", html=_result),
            Column("deviations", _("Deviations"), COUNT, of="count", on_page=False),
            Column("detail", _("Detail"), CODE, on_page=False),
        ],
        label=_("What is checked"),
    )


def _result(check: dict[str, Any]) -> Any:
    css = " firm" if check["is_clean"] else " alarm" if check["is_failed"] else ""
    count = check["count"]
    told = check["state"]
    if count:
        told = ngettext("%(counter)s deviation", "%(counter)s deviations", count) % {"counter": count}
    shown = format_html('<span class="state{}">{}</span>', css, told)
    return (
        format_html('{} <span class="code">{}</span>', shown, check["detail"]) if check["detail"] else shown
    )


def deviations_table(run: VerificationRun) -> Table:
    return Table(
        "deviations",
        lambda: Deviation.objects.filter(run=run).order_by("pk"),
        [
            Column(
                "check",
                _("Invariant"),
                of="deviation.check_name",
                field="check_name",
                html=lambda row: check_title(row.deviation.check_name),
                filter=Filter(lambda: [(name, title) for name, (title, _meaning) in CHECK_WORDS.items()]),
            ),
            Column("invariant", _("Rule"), of="deviation.invariant", field="invariant", on_page=False),
            Column(
                "where",
                _("Where"),
                CODE,
                of="deviation.where",
                field="where",
                html=_where,
                link=lambda row: row.place,
                filter=TEXT_FILTER,
            ),
            Column(
                "problem",
                _("Problem"),
                CODE,
                of=lambda row: str(row.deviation.told),
                field="code",
                html=lambda row: in_words(row.deviation.told),
                filter=Filter(lambda: [(code, gist(code)) for code in PROBLEMS]),
            ),
        ],
        present=_placed,
        label=_("Deviations"),
        empty=_("Nothing deviates."),
    )


def _where(row: Placed) -> str:
    batch = row.deviation.values.get("batch")
    return row.deviation.where if batch is None else _("batch %(number)s") % {"number": batch}


_OF_MONTH = re.compile(r"(\d{4}-(?:0[1-9]|1[0-2]))(?: |$)")


@dataclass(frozen=True)
class Placed:
    """A deviation, and the page of the batch, statement or month it is of; None where it names none that is there."""

    deviation: Deviation
    place: str | None


def _placed(rows: Sequence[Deviation]) -> list[Placed]:
    """At most two queries, however many rows."""
    named = [row.where for row in rows]
    statements = Statement.objects.filter(number__in=named).select_related("tenant__holder")
    places = {
        one.number: reverse("billing:statement", args=[one.period_id, one.tenant.slug]) for one in statements
    }
    months = {found[1] for where in named if (found := _OF_MONTH.match(where))}
    known = set(Period.objects.filter(month__in=months).values_list("month", flat=True)) if months else set()

    def place(row: Deviation) -> str | None:
        where = row.where
        if "batch" in row.values:
            return reverse("ingest:batch", args=[row.values["batch"]])
        if (month := _OF_MONTH.match(where)) and month[1] in known:
            return reverse("billing:month", args=[month[1]])
        return places.get(where)

    return [Placed(row, place(row)) for row in rows]


def runs_table() -> Table:
    """All verifications, the newest first."""
    return Table(
        "verifications",
        lambda: VerificationRun.objects.order_by("-pk"),
        [
            Column(
                "started_at",
                _("When"),
                INSTANT,
                field="started_at",
                link=lambda row: reverse("billing:verification", args=[row.pk]),
            ),
            Column("requested_by", _("Who"), field="requested_by", filter=TEXT_FILTER),
            Column(
                "month",
                _("Month"),
                field="month",
                html=lambda row: month_name(row.month) if row.month else _("everything"),
                filter=TEXT_FILTER,
            ),
            Column("duration_s", _("Took"), DURATION, of=_took_ms, can_sort=False),
            Column("checks", _("Checks"), COUNT, of=lambda row: len(row.steps), can_sort=False),
            Column(
                "deviations",
                _("Deviations"),
                COUNT,
                field="deviations",
                css=lambda row: "alarm" if row.deviations else "",
            ),
            Column("state", _("Result"), of=outcome, html=outcome_shown, can_sort=False),
        ],
        label=_("Verifications"),
        empty=_("Nobody has verified the books from here yet."),
    )


def _took_ms(run: VerificationRun) -> int | None:
    if run.ended_at is None:
        return None
    return round((run.ended_at - run.started_at).total_seconds() * MS_PER_SECOND)


def outcome(run: VerificationRun) -> str:
    if run.state == RunState.RUNNING:
        return "running"
    if run.deviations:
        return "deviates"
    return "incomplete" if run.failed else "holds"


_OUTCOMES = {
    "running": (gettext_lazy("at work"), ""),
    "deviates": (gettext_lazy("deviates"), " alarm"),
    "incomplete": (gettext_lazy("could not be checked wholly"), " alarm"),
    "holds": (gettext_lazy("everything holds"), " firm"),
}


def outcome_shown(run: VerificationRun) -> Any:
    text, css = _OUTCOMES[outcome(run)]
    return format_html('<span class="state{}">{}</span>', css, text)


def last_verification() -> VerificationRun | None:
    found: QuerySet[VerificationRun] = VerificationRun.objects.order_by("-pk")
    return found.first()
