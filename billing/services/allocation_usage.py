"""What a pool's shared services served, slot by slot: the keys by which their time is divided (domain.md 5)."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from billing.models import Calibration, ServicePolicy
from billing.services.allocation_facts import HolderIndex, holder_at
from billing.sql import computing
from billing.sql.binary_copy import read_rows
from ledger.core.levels import HolderTimeline
from ledger.core.periods import to_datetime, to_ms
from ledger.core.units import MS_PER_DAY, MS_PER_HOUR
from ledger.models import HolderKind, Pool, PrunedDay
from ledger.selectors.corrections import void_facts

Int64s = NDArray[np.int64]


@dataclass(frozen=True)
class Terms:
    """Dated service policies and calibrations of one pool, looked up by instant."""

    policies: dict[int, list[tuple[int, int | None, ServicePolicy]]]
    calibrations: dict[int, list[tuple[int, int | None, Calibration]]]

    @classmethod
    def load(cls, pool: Pool) -> Terms:
        policies: dict[int, list[Any]] = defaultdict(list)
        for policy in ServicePolicy.objects.order_by("valid_from"):
            policies[policy.service_id].append((to_ms(policy.valid_from), _ms(policy.ended_at), policy))
        calibrations: dict[int, list[Any]] = defaultdict(list)
        for one in Calibration.objects.filter(gpu_model=pool.gpu_model).order_by("valid_from"):
            calibrations[one.model_id].append((to_ms(one.valid_from), _ms(one.ended_at), one))
        return cls(dict(policies), dict(calibrations))

    def cuts(self) -> list[int]:
        """Every start and end: boundaries of slots."""
        versions = [v for one in (self.policies, self.calibrations) for dated in one.values() for v in dated]
        return [t for start, end, _ in versions for t in (start, end) if t is not None]

    def policy(self, service_id: int, instant_ms: int) -> ServicePolicy | None:
        return _in_force(self.policies.get(service_id, []), instant_ms)

    def calibration(self, model_id: int, instant_ms: int) -> Calibration | None:
        return _in_force(self.calibrations.get(model_id, []), instant_ms)


def _in_force(versions: list[tuple[int, int | None, Any]], instant_ms: int) -> Any:
    place = bisect_right([start for start, _, _ in versions], instant_ms)
    if not place:
        return None
    _, ended, version = versions[place - 1]
    return version if ended is None or instant_ms < ended else None


def _ms(instant: datetime | None) -> int | None:
    return None if instant is None else to_ms(instant)


@dataclass
class SlotUsage:
    """What one service served in one slot: weights and measured gpu_us by holder index of the tenant."""

    weight: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    measured_gpu_us: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    unweighed_requests: int = 0
    uncalibrated: bool = False


def read_usage(pool: Pool, edges: Int64s) -> dict[str, Int64s]:
    """Usage rows with the start of the slot they count in as `time_ms`: whole hours from the roll-up, slots inside
    an hour from the requests themselves; where those were pruned, the hour in proportion to time (`pruned_slots`)."""
    params = {"pool": pool.pk, "from": to_datetime(int(edges[0])), "to": to_datetime(int(edges[-1]))}
    hours = read_rows(computing.USAGE_HOURS, computing.USAGE_COLUMNS, params)
    starts, ends = edges[:-1], edges[1:]
    partial = (starts % MS_PER_HOUR != 0) | (ends - starts != MS_PER_HOUR)
    # The running hour is whole up to the horizon only where the horizon is an hour, which it always is.
    parts = [{name: values[np.isin(hours["time_ms"], starts[~partial])] for name, values in hours.items()}]
    void = void_facts().parameters() if partial.any() else {}
    pruned = pruned_slots(edges)
    for start_ms, end_ms in zip(starts[partial].tolist(), ends[partial].tolist(), strict=True):
        if start_ms in pruned:
            parts.append(_by_time(hours, start_ms, end_ms))
            continue
        slot = {"pool": pool.pk, "from": to_datetime(start_ms), "to": to_datetime(end_ms), **void}
        parts.append(read_rows(computing.USAGE_OF_SLOT, computing.USAGE_COLUMNS, slot))
    return {name: np.concatenate([part[name] for part in parts]) for name in computing.USAGE_COLUMNS}


def pruned_slots(edges: Int64s) -> set[int]:
    """Starts of the slots inside an hour whose requests were pruned, so that only their hour's sums are left.

    Days of slots that were known when requests were pruned are kept; this is for terms and mappings that cut an hour
    of the past later on.
    """
    starts, ends = edges[:-1], edges[1:]
    partial = (starts % MS_PER_HOUR != 0) | (ends - starts != MS_PER_HOUR)
    if not partial.any():
        return set()
    gone = {
        to_ms(datetime(day.year, day.month, day.day, tzinfo=UTC))
        for day in PrunedDay.objects.values_list("day", flat=True)
    }
    return {
        start_ms
        for start_ms, end_ms in zip(starts[partial].tolist(), ends[partial].tolist(), strict=True)
        if any(
            day_ms in gone
            for day_ms in range(start_ms - start_ms % MS_PER_DAY, end_ms + MS_PER_DAY, MS_PER_DAY)
        )
    }


def _by_time(hours: dict[str, Int64s], start_ms: int, end_ms: int) -> dict[str, Int64s]:
    """A slot's part of its hour's sums, by cumulative floors: the parts of an hour add up to it."""
    hour_ms = start_ms - start_ms % MS_PER_HOUR
    of_hour = hours["time_ms"] == hour_ms
    part = {name: values[of_hour].copy() for name, values in hours.items()}
    for name in _SUMS:
        # Python's integers: sums times milliseconds may pass 64 bits.
        part[name] = np.array(
            [
                value * (end_ms - hour_ms) // MS_PER_HOUR - value * (start_ms - hour_ms) // MS_PER_HOUR
                for value in part[name].tolist()
            ],
            np.int64,
        )
    part["time_ms"][:] = start_ms
    return part


_SUMS = tuple(name for name in computing.USAGE_COLUMNS if name not in ("time_ms", "service", "who", "model"))


def usage_by_slot(
    usage: dict[str, Int64s], terms: Terms, timeline: HolderTimeline, index: HolderIndex
) -> dict[tuple[int, int], SlotUsage]:
    """{(slot start, service's holder id): what it served}, weights being the key of the policy in force.

    What names nobody is an engine's own total of a model: it counts the requests that others brought once more, so
    only what no request explains is left of it, for `unattributed`.
    """
    slots: dict[tuple[int, int], SlotUsage] = defaultdict(SlotUsage)
    engines: dict[tuple[int, int, int], list[int]] = {}
    explained: dict[tuple[int, int, int], list[int]] = defaultdict(lambda: [0, 0])
    for row in zip(*(usage[name].tolist() for name in computing.USAGE_COLUMNS), strict=True):
        values = dict(zip(computing.USAGE_COLUMNS, row, strict=True))
        place = values["time_ms"], values["service"], values["model"]
        slot = slots[place[:2]]
        if values["who"] < 0:
            # What an engine does not count is no request that lacks its measure.
            engines[place] = [_weight(values, terms, SlotUsage()), values["gpu_us"]]
            continue
        weight = _weight(values, terms, slot)
        explained[place][0] += weight
        explained[place][1] += values["gpu_us"]
        tenant = _tenant(values["who"], values["time_ms"], timeline, index)
        slot.measured_gpu_us[tenant] += values["gpu_us"]
        slot.weight[tenant] += weight
    for place, totals in engines.items():
        slot = slots[place[:2]]
        weight, gpu_us = (max(of - by, 0) for of, by in zip(totals, explained[place], strict=True))
        if weight:
            slot.weight[index.unattributed] += weight
        if gpu_us:
            slot.measured_gpu_us[index.unattributed] += gpu_us
    for (start_ms, service), slot in slots.items():
        policy = terms.policy(service, start_ms)
        if policy is not None and policy.key == "shares":
            slot.weight = _fixed_shares(policy, index)
    return slots


def fixed_shares(service_id: int, start_ms: int, terms: Terms, index: HolderIndex) -> SlotUsage | None:
    """Contract shares need no requests: what divides a slot in which nobody sent any."""
    policy = terms.policy(service_id, start_ms)
    if policy is None or policy.key != "shares":
        return None
    return SlotUsage(weight=_fixed_shares(policy, index))


def _tenant(identity: int, instant_ms: int, timeline: HolderTimeline, index: HolderIndex) -> int:
    holder = holder_at(timeline, identity, instant_ms)
    # A service cannot be charged: requests it sends in its own name have no tenant that is known.
    return index.unattributed if index.kinds[holder] == HolderKind.SERVICE else holder


def _weight(row: dict[str, int], terms: Terms, slot: SlotUsage) -> int:
    policy = terms.policy(row["service"], row["time_ms"])
    if policy is None:
        return 0
    if policy.key == "gpu_seconds":
        slot.unweighed_requests += row["gpu_missing"]
        return row["gpu_us"]
    if policy.key == "concurrency":
        return row["concurrency_us"]
    if policy.key == "tokens":
        slot.unweighed_requests += row["tokens_missing"]
        calibration = terms.calibration(row["model"], row["time_ms"])
        if calibration is None:
            slot.uncalibrated = True
            return 0
        return _calibrated(row, calibration)
    return 0


def _calibrated(row: dict[str, int], calibration: Calibration) -> int:
    """Predicted GPU time in thousandths of a gpu_us: an integer key needs no division."""
    uncached = row["input_tokens"] - row["cached_input_tokens"]
    return (
        uncached * calibration.input_gpu_us_per_1k
        + row["cached_input_tokens"] * calibration.cached_input_gpu_us_per_1k
        + row["output_tokens"] * calibration.output_gpu_us_per_1k
    )


def _fixed_shares(policy: ServicePolicy, index: HolderIndex) -> dict[int, int]:
    slugs = {slug: i for i, slug in enumerate(index.holders.slugs)}
    return {slugs[slug]: int(share) for slug, share in policy.shares.items() if slug in slugs}
