"""A preemption as a story in one line: who took what from whom, what it cost, and whether it could be avoided."""

from __future__ import annotations

from django.utils import timezone
from django.utils.translation import gettext as _

from billing.selectors.pages_preemptions import ShownPreemption
from ledger.core.figures import set_digits
from ledger.core.units import gpu_hours_fixed, seconds_text
from ledger.templatetags.figures import duration, gpus_in_words

LONG_GPU_US = 3_600_000_000  # from a GPU-hour on, GPU-seconds are hard to read


def story(side: ShownPreemption, work: str) -> str:
    """`work`: the victim workload's name, or '' where it stays unnamed."""
    parts = [_what_happened(side, work), _what_it_cost(side), _was_it_needed(side)]
    return _("; ").join(part for part in parts if part) + _(".")


def _victim(side: ShownPreemption, work: str) -> str:
    if not work:
        return side.victim
    return _("%(victim)s's %(work)s") % {"victim": side.victim, "work": work}


def _what_happened(side: ShownPreemption, work: str) -> str:
    record = side.record
    values = {
        "preemptor": side.preemptor,
        "victim": _victim(side, work),
        "gpus": gpus_in_words(record.milli_gpus),
        "time": f"{timezone.localtime(record.decided_at):%Y-%m-%d %H:%M:%S}",
    }
    if record.queued_only:
        return _("%(victim)s was pushed back in the queue at %(time)s, before it ran") % values
    if not record.milli_gpus:
        return _("A request of %(victim)s was preempted inside its engine at %(time)s") % values
    if record.cause == "maintenance":
        return _("%(victim)s lost %(gpus)s to maintenance at %(time)s") % values
    if record.cause == "capacity_lost":
        return _("%(victim)s lost %(gpus)s at %(time)s, because capacity was lost") % values
    if not side.preemptor:
        return _("%(victim)s lost %(gpus)s at %(time)s; to whom is not known") % values
    if record.cause == "reclaim_own_reservation":
        return _("%(preemptor)s reclaimed %(gpus)s from %(victim)s at %(time)s") % values
    if record.cause == "priority":
        return (
            _("%(preemptor)s took %(gpus)s from %(victim)s at %(time)s, having the higher priority") % values
        )
    if record.cause == "fair_share":
        return _("%(preemptor)s took %(gpus)s from %(victim)s at %(time)s, for a fair share") % values
    return _("%(preemptor)s took %(gpus)s from %(victim)s at %(time)s") % values


def _time(gpu_us: int) -> str:
    if gpu_us >= LONG_GPU_US:
        return _("%(hours)s GPU-hours") % {"hours": set_digits(gpu_hours_fixed(gpu_us))}
    return _("%(seconds)s GPU-seconds") % {"seconds": set_digits(seconds_text(gpu_us))}


def _what_it_cost(side: ShownPreemption) -> str:
    record = side.record
    if record.queued_only:
        return ""
    found = []
    if record.disposition == "stopped":
        found.append(_("it was stopped for good"))
    elif record.resumed_at is not None and side.lasted_ms is not None:
        found.append(_("it waited %(duration)s") % {"duration": duration(side.lasted_ms)})
    elif record.disposition == "requeued" and record.waits_until is None and record.milli_gpus:
        found.append(_("it is still waiting"))
    if side.lost_gpu_us:
        found.append(_("lost %(time)s of work") % {"time": _time(side.lost_gpu_us)})
    if side.recompute_gpu_us:
        found.append(_("redid %(time)s") % {"time": _time(side.recompute_gpu_us)})
    if len(found) < 2:
        return "".join(found)
    return _("%(first)s and %(last)s") % {"first": _(", ").join(found[:-1]), "last": found[-1]}


def _was_it_needed(side: ShownPreemption) -> str:
    record = side.record
    if record.idle_elsewhere_milli_gpus is None or not record.milli_gpus:
        return ""
    if record.idle_elsewhere_milli_gpus == 0:
        return _("no other pool could have given %(gpus)s of the same model") % {
            "gpus": gpus_in_words(record.milli_gpus)
        }
    pools = [pool for pool, milli in record.idle_elsewhere.items() if milli]
    values = {"gpus": gpus_in_words(record.idle_elsewhere_milli_gpus), "pools": _(", ").join(pools)}
    if not pools:
        return _("%(gpus)s of the same model were idle elsewhere") % values
    return _("%(gpus)s of the same model were idle in %(pools)s") % values
