"""What the alert rules say about the facts: rows in, findings out (domain.md section 9; docs/alerts.md).

A rule either asks how long something has lasted (shortage, quota drift, lag, silence), or measures over the last
`lasting_s` (reservations, preemptions, rejections, conversion, unattributed time). The clock is an argument.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from billing.core.alert_episodes import ShortStretch, in_episodes, is_calm
from ledger.core.units import (
    GPU_US_PER_GPU_HOUR,
    MICRO_PER_UNIT,
    MILLI_PER_GPU,
    MS_PER_MINUTE,
    MS_PER_SECOND,
    gpu_hours_fixed,
    micro_text,
    milli_gpus_text,
    round_half_even,
)

Figure = dict[str, str]
Evidence = dict[str, Figure]


@dataclass(frozen=True, slots=True)
class Kind:
    """What the threshold of a kind counts, and what a rule of it is where nothing else is said.

    lasts: whether `lasting_s` is how long it must hold (else over how long it is measured).
    """

    unit: str
    threshold_micro: int
    lasting_s: int
    severity: str
    lasts: bool


MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86_400

KINDS: dict[str, Kind] = {
    "shortage": Kind("GPU", 0, 0, "critical", True),
    "unused_reservation": Kind("%", 50 * MICRO_PER_UNIT, 7 * DAY_S, "info", False),
    "quota_drift": Kind("GPU-hour", 0, 15 * MINUTE_S, "warning", True),
    "conversion_drift": Kind("%", 0, DAY_S, "warning", False),
    "preemption_spike": Kind("count", 20 * MICRO_PER_UNIT, HOUR_S, "warning", False),
    "rejections": Kind("count", 500 * MICRO_PER_UNIT, HOUR_S, "warning", False),
    "budget": Kind("%", 0, 0, "warning", False),
    "budget_forecast": Kind("%", 100 * MICRO_PER_UNIT, 0, "warning", False),
    "ingest_lag": Kind("min", 60 * MICRO_PER_UNIT, 0, "critical", True),
    "unattributed": Kind("GPU-hour", MICRO_PER_UNIT, DAY_S, "warning", False),
    "silent_source": Kind("min", 0, 0, "warning", True),
    "capacity_change": Kind("GPU", 0, 7 * DAY_S, "info", False),
}


@dataclass(frozen=True, slots=True)
class Rule:
    """pool, tenant: slugs that narrow it; None = any."""

    kind: str
    threshold_micro: int
    lasting_s: int
    pool: str | None = None
    tenant: str | None = None

    def covers(self, pool: str | None, tenant: str | None) -> bool:
        return self.pool in (None, pool) and self.tenant in (None, tenant)


@dataclass(frozen=True, slots=True)
class Finding:
    """started_ms: since when, by the facts. opens_ms: when that had lasted long enough. ended_ms: None = it holds.

    subject names what it is about within its rule; what stands behind '#' is for people. public: whether everybody
    who reserves in the pool may know.
    """

    subject: str
    started_ms: int
    opens_ms: int
    evidence: Evidence
    ended_ms: int | None = None
    pool: str | None = None
    tenant: str | None = None
    public: bool = False


# Figures: the value as decimal text, with its unit


def figure(value: str | int, unit: str) -> Figure:
    return {"value": str(value), "unit": unit}


def gpus(milli: int) -> Figure:
    return figure(milli_gpus_text(milli), "GPU")


def gpu_hours(gpu_us: int) -> Figure:
    return figure(gpu_hours_fixed(gpu_us), "GPU-hour")


def percent(part: int, whole: int) -> Figure:
    """Part of the whole in percent, one decimal place, half-even."""
    tenths = round_half_even(part * 1000, whole) if whole else 0
    return figure(str(Decimal(tenths).scaleb(-1)), "%")


def lapse(milliseconds: int) -> Figure:
    """A time in the largest of h, min, s that it is a whole of, rounded down to seconds."""
    seconds = milliseconds // MS_PER_SECOND
    for unit, size in (("h", HOUR_S), ("min", MINUTE_S)):
        if seconds and seconds % size == 0:
            return figure(seconds // size, unit)
    return figure(seconds, "s")


# Stretches: something lasts


def shortage(rule: Rule, stretches: Iterable[ShortStretch], now_ms: int) -> Iterator[Finding]:
    """Pools short of more than the threshold, for at least as long as the rule asks: one finding per pool and episode,
    which is over once the pool has been calm for an hour."""
    lasting_ms = rule.lasting_s * MS_PER_SECOND
    counting = [
        one
        for one in stretches
        if rule.covers(one.pool, None)
        and one.deficit * MICRO_PER_UNIT > rule.threshold_micro * MILLI_PER_GPU
        and (now_ms if one.ends_ms is None else one.ends_ms) - one.starts_ms >= lasting_ms
    ]
    for one in in_episodes(counting):
        evidence = {
            "missing": gpus(one.deficit),
            "gpu_hours": gpu_hours(one.deficit_gpu_us),
            "lasted": lapse((now_ms if one.ends_ms is None else one.ends_ms) - one.starts_ms),
        }
        opens_ms, ended_ms = one.starts_ms + lasting_ms, one.ends_ms if is_calm(one, now_ms) else None
        yield Finding(
            f"pool:{one.pool}", one.starts_ms, opens_ms, evidence, ended_ms, pool=one.pool, public=True
        )


@dataclass(frozen=True, slots=True)
class DriftStretch:
    """One quota layer is full while the other is free, for a tenant. gpu_us: what the other left unused meanwhile,
    None where no calibration says."""

    tenant: str
    full_layer: str
    starts_ms: int
    ends_ms: int | None
    gpu_us: int | None


def quota_drift(rule: Rule, stretches: Iterable[DriftStretch], now_ms: int) -> Iterator[Finding]:
    lasting_ms = rule.lasting_s * MS_PER_SECOND
    for one in stretches:
        until_ms = now_ms if one.ends_ms is None else one.ends_ms
        if not rule.covers(None, one.tenant) or until_ms - one.starts_ms < lasting_ms:
            continue
        if (one.gpu_us or 0) * MICRO_PER_UNIT < rule.threshold_micro * GPU_US_PER_GPU_HOUR:
            continue
        evidence = {
            "full_layer": figure(one.full_layer, "layer"),
            "lasted": lapse(until_ms - one.starts_ms),
        }
        if one.gpu_us is not None:
            evidence["unused"] = gpu_hours(one.gpu_us)
        subject = f"tenant:{one.tenant}#{one.full_layer}"
        opens_ms = one.starts_ms + lasting_ms
        yield Finding(subject, one.starts_ms, opens_ms, evidence, one.ends_ms, tenant=one.tenant)


@dataclass(frozen=True, slots=True)
class SourceClock:
    """heard_ms: time of its newest event. allowed_s: its own `silence_after`; None = the rule's threshold.

    is_new: set up, and nothing ever came; heard_ms is since when that is waited for.
    """

    name: str
    heard_ms: int
    allowed_s: int | None
    is_new: bool = False

    def silent(self, allowed_ms: int, now_ms: int) -> Iterator[Finding]:
        """What there is to say once it is silent for longer than it may be."""
        silent_ms = now_ms - self.heard_ms
        if silent_ms > allowed_ms:
            told = "never" if self.is_new else "silence"
            evidence = {told: lapse(silent_ms), "allowed": lapse(allowed_ms)}
            yield Finding(f"source#{self.name}", self.heard_ms, self.heard_ms + allowed_ms, evidence)


def ingest_lag(
    rule: Rule, newest_ms: int | None, sources: Iterable[SourceClock], now_ms: int
) -> Iterator[Finding]:
    """The newest event of any source is older than the threshold, or one that was set up that long ago never sent any.

    A source with a limit of its own is silent_source's. A ledger without either does not lag.
    """
    allowed_ms = rule.threshold_micro * MS_PER_MINUTE // MICRO_PER_UNIT
    if newest_ms is not None and now_ms - newest_ms > allowed_ms:
        evidence = {"lag": lapse(now_ms - newest_ms), "allowed": lapse(allowed_ms)}
        yield Finding("ledger", newest_ms, newest_ms + allowed_ms, evidence)
    for source in sources:
        if source.is_new and source.allowed_s is None:
            yield from source.silent(allowed_ms, now_ms)


def silent_source(rule: Rule, sources: Iterable[SourceClock], now_ms: int) -> Iterator[Finding]:
    """Sources that said nothing for longer than they may. With neither limit a source may be silent for ever."""
    of_rule_ms = rule.threshold_micro * MS_PER_MINUTE // MICRO_PER_UNIT
    for source in sources:
        allowed_ms = of_rule_ms if source.allowed_s is None else source.allowed_s * MS_PER_SECOND
        if allowed_ms:
            yield from source.silent(allowed_ms, now_ms)


# Measured over the last `lasting_s`


@dataclass(frozen=True, slots=True)
class ReservedUse:
    tenant: str
    pool: str
    reserved_gpu_us: int
    unused_gpu_us: int


def unused_reservation(rule: Rule, rows: Iterable[ReservedUse], now_ms: int) -> Iterator[Finding]:
    """Reservations of which at least the threshold, in percent, was used by nobody."""
    for row in rows:
        share = row.unused_gpu_us * 100 * MICRO_PER_UNIT
        if not row.unused_gpu_us or share < rule.threshold_micro * row.reserved_gpu_us:
            continue
        if rule.covers(row.pool, row.tenant):
            evidence = {
                "share": percent(row.unused_gpu_us, row.reserved_gpu_us),
                "unused": gpu_hours(row.unused_gpu_us),
                "reserved": gpu_hours(row.reserved_gpu_us),
                "over": _over(rule),
            }
            subject = f"tenant:{row.tenant} pool:{row.pool}"
            yield _measured(subject, evidence, now_ms, pool=row.pool, tenant=row.tenant)


@dataclass(frozen=True, slots=True)
class Preempted:
    pool: str
    count: int
    milli_gpus: int


def preemption_spike(rule: Rule, rows: Iterable[Preempted], now_ms: int) -> Iterator[Finding]:
    for row in rows:
        if row.count and row.count * MICRO_PER_UNIT >= rule.threshold_micro and rule.covers(row.pool, None):
            evidence = {
                "preemptions": figure(row.count, "count"),
                "gpus_taken": gpus(row.milli_gpus),
                "over": _over(rule),
            }
            yield _measured(f"pool:{row.pool}", evidence, now_ms, pool=row.pool)


@dataclass(frozen=True, slots=True)
class Rejected:
    """tenant None: demand of nobody known. explicit: those that said when to come again."""

    tenant: str | None
    count: int
    explicit: int


def rejections(rule: Rule, rows: Iterable[Rejected], now_ms: int) -> Iterator[Finding]:
    for row in rows:
        if row.count and row.count * MICRO_PER_UNIT >= rule.threshold_micro and rule.covers(None, row.tenant):
            evidence = {
                "rejections": figure(row.count, "count"),
                "explicit_share": percent(row.explicit, row.count),
                "over": _over(rule),
            }
            subject = f"tenant:{row.tenant}" if row.tenant else "#unattributed"
            yield _measured(subject, evidence, now_ms, tenant=row.tenant)


@dataclass(frozen=True, slots=True)
class Converted:
    """Measured GPU time of a model on a GPU model, and what its calibration predicts."""

    model: str
    gpu_model: str
    predicted_gpu_us: int
    measured_gpu_us: int
    tolerance_ppm: int


def conversion_drift(rule: Rule, rows: Iterable[Converted], now_ms: int) -> Iterator[Finding]:
    """Deviations beyond the threshold in percent; threshold 0: beyond the calibration's own tolerance."""
    for row in rows:
        if not row.predicted_gpu_us:
            continue
        off = row.measured_gpu_us - row.predicted_gpu_us
        allowed_ppm = rule.threshold_micro // 100 or row.tolerance_ppm
        if abs(off) * MICRO_PER_UNIT > allowed_ppm * row.predicted_gpu_us:
            evidence = {
                "deviation": percent(off, row.predicted_gpu_us),
                "tolerance": percent(allowed_ppm, MICRO_PER_UNIT),
                "predicted": gpu_hours(row.predicted_gpu_us),
                "measured": gpu_hours(row.measured_gpu_us),
                "over": _over(rule),
            }
            yield _measured(f"model#{row.model} · {row.gpu_model}", evidence, now_ms)


def unattributed(rule: Rule, rows: Mapping[str, int], now_ms: int) -> Iterator[Finding]:
    """rows: pool -> GPU time whose tenant is not known, gpu_us."""
    for pool, gpu_us in sorted(rows.items()):
        is_enough = gpu_us and gpu_us * MICRO_PER_UNIT >= rule.threshold_micro * GPU_US_PER_GPU_HOUR
        if is_enough and rule.covers(pool, None):
            evidence = {"gpu_hours": gpu_hours(gpu_us), "over": _over(rule)}
            yield _measured(f"pool:{pool}", evidence, now_ms, pool=pool)


# Money and plans


@dataclass(frozen=True, slots=True)
class BudgetMonth:
    """A budget in a month; unit is the currency (amounts in micro units) or 'GPU-hour' (gpu_us). spent: to date;
    expected: the whole month,
    None where nothing can be foreseen. thresholds: the budget's own, in percent."""

    tenant: str
    month: str
    unit: str
    limit: int
    spent: int
    expected: int | None
    thresholds: tuple[int, ...] = ()

    def figure(self, amount: int) -> Figure:
        return gpu_hours(amount) if self.unit == "GPU-hour" else figure(micro_text(amount), self.unit)


def budget(rule: Rule, rows: Iterable[BudgetMonth], now_ms: int) -> Iterator[Finding]:
    """Budgets of which the threshold is spent; with threshold 0 the highest of the budget's own that is passed."""
    for row in rows:
        yield from _of_budget(rule, row, "spent", row.spent, now_ms, row.thresholds)


def budget_forecast(rule: Rule, rows: Iterable[BudgetMonth], now_ms: int) -> Iterator[Finding]:
    """Budgets that the month is expected to spend to the threshold."""
    for row in rows:
        yield from _of_budget(rule, row, "forecast", row.expected or 0, now_ms, ())


def _of_budget(
    rule: Rule, row: BudgetMonth, name: str, amount: int, now_ms: int, own: tuple[int, ...]
) -> Iterator[Finding]:
    limits = [rule.threshold_micro] if rule.threshold_micro else [one * MICRO_PER_UNIT for one in own]
    passed = [limit for limit in limits if amount * 100 * MICRO_PER_UNIT >= limit * row.limit]
    if not row.limit or not amount or not passed or not rule.covers(None, row.tenant):
        return
    reached = figure(micro_text(max(passed)), "%")
    evidence = {
        "share": percent(amount, row.limit),
        "threshold": reached,
        name: row.figure(amount),
        "budget": row.figure(row.limit),
    }
    # Each threshold is news of its own.
    subject = f"tenant:{row.tenant}#{row.month} · {row.unit} · {reached['value']} %"
    yield _measured(subject, evidence, now_ms, tenant=row.tenant)


@dataclass(frozen=True, slots=True)
class PlannedCapacity:
    """A capacity fact of the future; before and after in milli-GPU. announced_ms: when it was booked."""

    pool: str
    at_ms: int
    announced_ms: int
    before: int
    after: int
    label: str


def capacity_change(rule: Rule, rows: Iterable[PlannedCapacity], now_ms: int) -> Iterator[Finding]:
    """Changes of more than the threshold within the next `lasting_s`."""
    ahead_ms = rule.lasting_s * MS_PER_SECOND
    for row in rows:
        is_enough = abs(row.after - row.before) * MICRO_PER_UNIT > rule.threshold_micro * MILLI_PER_GPU
        if is_enough and now_ms < row.at_ms <= now_ms + ahead_ms and rule.covers(row.pool, None):
            evidence = {
                "capacity_now": gpus(row.before),
                "capacity_then": gpus(row.after),
                "changes_in": lapse((row.at_ms - now_ms) // MS_PER_MINUTE * MS_PER_MINUTE),
            }
            announced_ms = min(max(row.announced_ms, row.at_ms - ahead_ms), now_ms)
            subject = f"pool:{row.pool}#{row.label}"
            yield Finding(subject, announced_ms, announced_ms, evidence, pool=row.pool, public=True)


def _over(rule: Rule) -> Figure:
    """Over how long it was measured: whole days and hours read as hours."""
    return lapse(rule.lasting_s * MS_PER_SECOND)


def _measured(
    subject: str, evidence: Evidence, now_ms: int, *, pool: str | None = None, tenant: str | None = None
) -> Finding:
    """Found now: when within the measured time it began is not known."""
    return Finding(subject, now_ms, now_ms, evidence, pool=pool, tenant=tenant)


# What becomes of the alerts of a rule


@dataclass(frozen=True, slots=True)
class Known:
    """An alert as it stands: at most one of a subject is not resolved. by_person: resolved although it held."""

    key: object
    subject: str
    started_ms: int
    ended_ms: int | None
    is_resolved: bool
    holds: bool


@dataclass(slots=True)
class Plan:
    """seen: alerts whose condition holds on. ended: (alert, instant). opened: new ones, also in hindsight."""

    seen: list[tuple[object, Finding]] = field(default_factory=list)
    ended: list[tuple[object, int]] = field(default_factory=list)
    opened: list[Finding] = field(default_factory=list)


def plan(findings: Sequence[Finding], known: Sequence[Known], now_ms: int) -> Plan:
    """Match what was found with the alerts there are: the latest of each subject, and those of the time looked at.

    What a person resolved while it held stays resolved until it has once not held.
    """
    found = Plan()
    latest = _latest(known)
    holding: dict[str, Finding] = {}
    for one in findings:
        if one.ended_ms is None:
            holding.setdefault(one.subject, one)  # of several about one subject the first stands for all
    goes_on = set()
    for subject, alert in latest.items():
        if alert.holds and subject in holding and not _is_over(alert, holding[subject], findings, now_ms):
            goes_on.add(subject)
        elif alert.holds:
            found.ended.append((alert.key, _ended_ms(alert, findings, now_ms)))
    for finding in findings:
        is_known = any(_is_same(finding, alert, now_ms) for alert in known)
        if finding.ended_ms is not None and not is_known:
            found.opened.append(finding)
    for subject, finding in holding.items():
        if subject in goes_on:
            found.seen.append((latest[subject].key, finding))
        else:
            found.opened.append(finding)
    return found


def _latest(known: Iterable[Known]) -> dict[str, Known]:
    """Of each subject the one that holds, if one does, else the newest."""
    latest: dict[str, Known] = {}
    for one in sorted(known, key=lambda one: (one.holds, not one.is_resolved, one.started_ms)):
        latest[one.subject] = one
    return latest


def _is_over(one: Known, holding: Finding, findings: Iterable[Finding], now_ms: int) -> bool:
    """Whether the facts say that what an alert is about ended, and what holds now began later."""
    return any(
        other.ended_ms is not None and other.ended_ms <= holding.started_ms and _is_same(other, one, now_ms)
        for other in findings
    )


def _ended_ms(one: Known, findings: Iterable[Finding], now_ms: int) -> int:
    """When the facts say that it ended, else now."""
    ends = [
        other.ended_ms
        for other in findings
        if other.subject == one.subject and other.ended_ms is not None and other.ended_ms > one.started_ms
    ]
    return min(ends, default=now_ms)


def _is_same(finding: Finding, one: Known, now_ms: int) -> bool:
    """Whether a stretch that is over is the one an alert was about: they overlap."""
    ended_ms = now_ms if one.ended_ms is None else one.ended_ms
    until_ms = now_ms if finding.ended_ms is None else finding.ended_ms
    return one.subject == finding.subject and one.started_ms < until_ms and finding.started_ms < ended_ms
