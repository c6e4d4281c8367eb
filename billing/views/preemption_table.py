"""The table of preemptions that many pages have: who lost what to whom, why, and what it cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from django.db.models import QuerySet
from django.urls import reverse
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import pgettext

from billing.models import PreemptionRecord
from billing.selectors.names import Names
from billing.selectors.pages_preemptions import ShownPreemption, in_words, shown
from ledger.access import Access
from ledger.views.tables import GPU_HOURS, GPUS, INSTANT, NOWRAP, TEXT, Column, Filter, Table, words
from ledger.wording import CAUSES, DISPOSITIONS


def preemption_table(
    name: str,
    label: str,
    rows: Callable[[], Sequence[ShownPreemption]],
    access: Access,
    *,
    hide: Sequence[str] = (),
) -> Table:
    """Over a few records, already as their reader sees them. `hide`: columns that would say the same in each row."""
    columns = [column for column in columns_for(access) if column.key not in hide]
    return Table(name, rows, [_without_field(column) for column in columns], label=label)


def preemption_record_table(
    rows: Callable[[], QuerySet[PreemptionRecord]], names: Callable[[], Names], access: Access
) -> Table:
    """Over all records of a month, read by the page; the whole of a page of its own."""

    def present(records: Sequence[PreemptionRecord]) -> list[ShownPreemption]:
        known = names()
        return [side for record in records for side in shown(record, known, access)]

    return Table(
        "preemptions",
        rows,
        columns_for(access, rows, names),
        label=_("Preemptions"),
        prefix="",
        present=present,
        empty=_("No work lost its GPUs in this month."),
    )


def preemption_side_table(
    name: str,
    label: str,
    rows: Callable[[], QuerySet[PreemptionRecord]],
    present: Callable[[Sequence[PreemptionRecord]], Sequence[ShownPreemption]],
    names: Callable[[], Names],
    access: Access,
    *,
    hide: str,
    rows_a_page: int,
) -> Table:
    """All that befell one tenant, or all that it caused: `hide` names the column that is itself in each row."""
    columns = [
        Column(**{**vars(column), "on_page": False, "filter": None}) if column.key == hide else column
        for column in columns_for(access, rows, names)
    ]
    return Table(name, rows, columns, label=label, present=present, rows_a_page=rows_a_page)


def _without_field(column: Column) -> Column:
    return Column(**{**vars(column), "field": "", "filter": None})


def columns_for(
    access: Access,
    records: Callable[[], QuerySet[PreemptionRecord]] | None = None,
    names: Callable[[], Names] | None = None,
) -> list[Column]:
    """To sort by names is for those who see them: an order of aliases would tell that of the names."""
    sees_all = access.sees_all_tenants
    name = NOWRAP if sees_all else TEXT  # an alias is words

    def values(path: str) -> list[str]:
        return sorted(set(records().order_by().values_list(path, flat=True))) if records is not None else []

    # Which work of another's took the GPUs is not a tenant's to know.
    workload = Column(
        "preemptor_workload",
        _("Preemptor's workload"),
        of="record.preemptor_workload",
        field="preemptor_workload",
        filter=Filter(exact=True),
        on_page=False,
    )
    columns = [
        Column("preemption", _("Preemption"), of="record.pk", on_page=False),
        Column(
            "decided_at", _("Decided"), INSTANT, of="record.decided_at", field="decided_at", link=_to_record
        ),
        Column(
            "victim",
            _("Victim"),
            name,
            field="victim__slug" if sees_all else "",
            html=_victim,
            filter=Filter(where=_of_side("victim", access, names)),
        ),
        Column(
            "preemptor",
            _("Preemptor"),
            name,
            field="preemptor__slug" if sees_all else "",
            filter=Filter(where=_of_side("preemptor", access, names)),
        ),
        Column(
            "cause",
            _("Cause"),
            words(lambda code: CAUSES.get(code, code)),
            of="record.cause",
            field="cause",
            filter=Filter(choices=lambda: [(code, CAUSES.get(code, code)) for code in values("cause")]),
        ),
        Column(
            "pool",
            _("Pool"),
            NOWRAP,
            of="record.pool.slug",
            field="pool__slug",
            filter=Filter(choices=lambda: [(slug, slug) for slug in values("pool__slug")]),
        ),
        Column("gpus", _("GPUs"), GPUS, of="record.milli_gpus", field="milli_gpus"),
        Column(
            "entitled_gpus",
            _("Entitled"),
            GPUS,
            of="record.entitled_milli_gpus",
            field="entitled_milli_gpus",
            help=_("The part that was inside the victim's own reservation."),
        ),
        Column("lost_gpu_hours", _("Lost"), GPU_HOURS, of="lost_gpu_us", on_page=False),
        Column("recompute_gpu_hours", _("Recompute"), GPU_HOURS, of="recompute_gpu_us", on_page=False),
        Column(
            "requeued_gpu_hours",
            _("Re-queued"),
            GPU_HOURS,
            of="requeued_gpu_us",
            unit=_("GPU-hours"),
            partial=lambda side: side.partial,
            help=_("Lost + recompute: granted work that has to be run again"),
        ),
        Column(
            "waiting_gpu_hours",
            _("Waiting"),
            GPU_HOURS,
            of="waiting_gpu_us",
            field="waiting_gpu_us" if sees_all else "",
            unit=_("GPU-hours"),
        ),
        Column("then", pgettext("what became of it", "Then"), NOWRAP, of=_outcome, html=_outcome_in_words),
        Column("resumed_pool", _("Resumed in"), TEXT, of="record.resumed_pool.slug", on_page=False),
    ]
    return [*columns, workload] if sees_all else columns


def _to_record(side: ShownPreemption) -> str:
    return reverse("billing:preemption", args=[side.record.pk])


def _victim(side: ShownPreemption) -> Any:
    if side.role != "victim":
        return side.victim
    return format_html('{} <span class="muted">{}</span>', side.victim, pgettext("reader", "(you)"))


def _outcome(side: ShownPreemption) -> str:
    if side.record.queued_only:
        return "deferral"
    return "resumed" if side.record.resumed_at else side.record.disposition


def _outcome_in_words(side: ShownPreemption) -> str:
    record, outcome = side.record, _outcome(side)
    if outcome == "deferral":
        return _("deferral")
    if outcome != "resumed":
        return str(DISPOSITIONS.get(outcome, outcome))
    if record.resumed_pool is None or record.resumed_pool_id == record.pool_id:
        return _("resumed")
    return f"{_('resumed')} · {record.resumed_pool.slug}"


def _of_side(
    side: str, access: Access, names: Callable[[], Names] | None
) -> Callable[[QuerySet[Any], str], QuerySet[Any]]:
    """By slug for those who see all; else by what stands in the cell: another's slug would tell that it exists."""

    def where(records: QuerySet[Any], wanted: str) -> QuerySet[Any]:
        if access.sees_all_tenants or names is None:
            return records.filter(**{f"{side}__slug": wanted})
        # As over the rows of any other table: a part of the name, in either case.
        meant = names().shown_where(lambda name: wanted.casefold() in in_words(name).casefold())
        return records.filter(**{f"{side}__in": meant})

    return where
