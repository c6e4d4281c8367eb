"""What preempting bought and what it cost: the month's balance per pool, and its worst episodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from django.urls import reverse
from django.utils.translation import gettext as _

from billing.core.episodes import Episode
from billing.selectors.episodes import PoolBalance
from billing.services.preemption_records import record_id
from billing.views.month_tables import preemptions_url
from ledger.core.periods import to_datetime
from ledger.views.tables import COUNT, GPU_HOURS, GPUS, INSTANT, Column, Table, micro_in


def _unused_after_release() -> str:
    return _("From the release until anybody occupied the GPUs, at most up to where the books are computed.")


def balance_table(rows: Callable[[], Sequence[PoolBalance]], currency: str) -> Table:
    hours = _("GPU-hours")
    titles = {
        "gained": _("Run by preemptors"),
        "lost": _("Lost"),
        "recomputed": _("Computed again"),
        "drained": _("Drained"),
        "unused": _("Unused after release"),
        "undelivered": _("Undelivered"),
        "net": _("Balance"),
    }
    helps = {"unused": _unused_after_release()}
    parts = [
        Column(part, title, GPU_HOURS, of=f"balance.{part}", unit=hours, help=helps.get(part, ""))
        for part, title in titles.items()
    ]
    worth = Column("net_amount", _("Worth"), micro_in(currency), of="net_micro", unit=currency)
    return Table("balance", rows, [Column("pool", _("Pool")), *parts, worth], label=_("Preemption balance"))


def episodes_table(rows: Callable[[], Sequence[Episode]], month: str) -> Table:
    """An episode leads to its first preemption, and its count to all that its workload caused in the month."""
    return Table(
        "episodes",
        rows,
        [
            Column(
                "starts_at",
                _("From"),
                INSTANT,
                of=lambda row: to_datetime(row.starts_ms),
                link=lambda row: reverse("billing:preemption", args=[record_id(row.preemptions[0])]),
            ),
            Column(
                "preemptor", _("Preemptor"), html=lambda row: row.preemptor or _("unknown or the platform")
            ),
            Column("preemptor_workload", _("Workload")),
            Column(
                "count",
                _("Preemptions"),
                COUNT,
                of=lambda row: len(row.preemptions),
                link=lambda row: preemptions_url(month, preemptor_workload=row.preemptor_workload),
            ),
            Column("needed", _("Needed"), GPUS, of="needed_milli_gpus"),
            Column("taken", _("Taken"), GPUS, of="taken_milli_gpus"),
            Column("overshoot", _("Too many"), GPUS, of="overshoot_milli_gpus"),
            Column(
                "unused",
                _("Unused after release"),
                GPU_HOURS,
                of="unused_gpu_us",
                unit=_("GPU-hours"),
                help=_unused_after_release(),
            ),
            Column("ran", _("Ever ran"), of=lambda row: _("yes") if row.ran else _("no")),
            Column("victims", _("Victims"), COUNT, of=lambda row: len(row.hits)),
        ],
        label=_("Episodes, worst first"),
    )
