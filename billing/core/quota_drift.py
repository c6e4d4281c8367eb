"""Do a tenant's two quota layers agree? Episodes in which one is full while the other is not (domain.md section 9).

A layer's used share is that of its tightest resource, summed over the resource's scopes (pools, services): in GPUs
where a calibration converts all of them, else in the resource's own unit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import groupby

from ledger.core.periods import Span
from ledger.core.units import MILLI_PER_GPU, MS_PER_MINUTE

CLUSTER, SERVING = "cluster", "serving"
PPM = 1_000_000
# A month's tokens only grow: how far they are is no sign of how much runs now.
_NO_RATE = frozenset({"tokens_per_month"})


@dataclass(frozen=True, slots=True)
class Thresholds:
    """A layer is full from full_ppm of its limit on, and loose up to loose_ppm."""

    full_ppm: int = 950_000
    loose_ppm: int = 700_000


@dataclass(frozen=True, slots=True)
class QuotaFact:
    """One layer's limit and use of a resource in a scope from an instant on; thousandths of the resource's unit.

    milli_gpus_per_milli: what a thousandth of the unit takes in milli-GPU, None where no calibration says.
    """

    time_ms: int
    layer: str
    resource: str
    scope: str
    limit_milli: int
    used_milli: int
    milli_gpus_per_milli: Fraction | None = None

    @property
    def key(self) -> tuple[str, str, str]:
        return self.layer, self.resource, self.scope


def milli_gpus_per_milli(
    resource: str, input_gpu_us_per_1k: int, concurrency_per_gpu_milli: int | None
) -> Fraction | None:
    """What a thousandth of a resource's unit takes in milli-GPU by a calibration; None where it does not say.

    Tokens per minute are taken as uncached input: what they take at least.
    """
    if resource == "gpus":
        return Fraction(1)
    if resource == "concurrency" and concurrency_per_gpu_milli:
        return Fraction(MILLI_PER_GPU, concurrency_per_gpu_milli)
    if resource == "tokens_per_minute":
        # gpu_us per token, over the milliseconds of a minute: milli-GPU per token a minute.
        return Fraction(input_gpu_us_per_1k, 1000 * MS_PER_MINUTE * 1000)
    return None


@dataclass(frozen=True, slots=True)
class Drift:
    """full_layer: which layer held the tenant back. gpu_us: what the other layer left unused meanwhile, None where it
    cannot be converted. reaction_ms: until somebody changed a limit of either layer, None if nobody did."""

    starts_ms: int
    ends_ms: int | None
    full_layer: str
    gpu_us: int | None
    reaction_ms: int | None

    @property
    def loose_layer(self) -> str:
        return CLUSTER if self.full_layer == SERVING else SERVING


def used_ppm(facts: Iterable[QuotaFact]) -> int | None:
    """The used share of a layer, in millionths, rounded down; None without a limit above 0."""
    shares = []
    of_resource: defaultdict[str, list[QuotaFact]] = defaultdict(list)
    for fact in facts:
        if fact.resource not in _NO_RATE:
            of_resource[fact.resource].append(fact)
    for group in of_resource.values():
        in_gpus = all(fact.milli_gpus_per_milli is not None for fact in group)
        factor = [(fact.milli_gpus_per_milli or Fraction(1)) if in_gpus else Fraction(1) for fact in group]
        limit = sum((fact.limit_milli * by for fact, by in zip(group, factor, strict=True)), Fraction(0))
        used = sum((fact.used_milli * by for fact, by in zip(group, factor, strict=True)), Fraction(0))
        if limit > 0:
            shares.append(int(used * PPM / limit))
    return max(shares, default=None)


def unused_milli_gpus(facts: Iterable[QuotaFact]) -> int | None:
    """What a layer leaves unused, in milli-GPU: of the resource that leaves least; None where none converts."""
    of_resource: defaultdict[str, list[QuotaFact]] = defaultdict(list)
    for fact in facts:
        of_resource[fact.resource].append(fact)
    unused = []
    for group in of_resource.values():
        if all(fact.milli_gpus_per_milli is not None for fact in group):
            left = sum(
                (
                    max(fact.limit_milli - fact.used_milli, 0) * (fact.milli_gpus_per_milli or 0)
                    for fact in group
                ),
                Fraction(0),
            )
            unused.append(int(left))
    return min(unused, default=None)


@dataclass(slots=True)
class _Open:
    starts_ms: int
    full_layer: str
    counted_ms: int
    unused: int | None
    gpu_us: int | None = 0
    reaction_ms: int | None = None

    def count(self, until_ms: int, span: Span) -> None:
        inside = Span(self.counted_ms, until_ms).overlap(span)
        if inside and self.gpu_us is not None:
            self.gpu_us = None if self.unused is None else self.gpu_us + self.unused * inside.length_ms
        self.counted_ms = until_ms

    def closed(self, ends_ms: int | None) -> Drift:
        return Drift(self.starts_ms, ends_ms, self.full_layer, self.gpu_us, self.reaction_ms)


@dataclass(slots=True)
class _Layers:
    facts: dict[tuple[str, str, str], QuotaFact] = field(default_factory=dict)

    def of(self, layer: str) -> list[QuotaFact]:
        return [fact for fact in self.facts.values() if fact.layer == layer]

    def full_layer(self, thresholds: Thresholds) -> str:
        """The layer that is full while the other is loose, or ''."""
        shares = {layer: used_ppm(self.of(layer)) for layer in (CLUSTER, SERVING)}
        for full, loose in ((CLUSTER, SERVING), (SERVING, CLUSTER)):
            tight, slack = shares[full], shares[loose]
            if tight is None or slack is None:
                continue
            if tight >= thresholds.full_ppm and slack <= thresholds.loose_ppm:
                return full
        return ""


def full_layer(facts: Iterable[QuotaFact], thresholds: Thresholds) -> str:
    """Of one tenant's facts of one instant: the layer that is full while the other is loose, or ''."""
    return _Layers({fact.key: fact for fact in facts}).full_layer(thresholds)


def drift_episodes(
    facts: Sequence[QuotaFact],
    span: Span,
    thresholds: Thresholds = Thresholds(),  # frozen
) -> list[Drift]:
    """Episodes of one tenant that touch `span`, in order. facts: of both layers, also from before the span; of several
    for one key and instant the last given holds. An episode that still lasts at the span's end has no end."""
    layers = _Layers()
    running: _Open | None = None
    found: list[Drift] = []
    for time_ms, group in groupby(
        sorted(facts, key=lambda fact: fact.time_ms), key=lambda fact: fact.time_ms
    ):
        if time_ms >= span.end_ms:
            break
        if running:
            running.count(time_ms, span)
        for fact in group:
            before = layers.facts.get(fact.key)
            if running and running.reaction_ms is None and before and before.limit_milli != fact.limit_milli:
                running.reaction_ms = time_ms - running.starts_ms
            layers.facts[fact.key] = fact
        full = layers.full_layer(thresholds)
        if running and running.full_layer != full:
            found.append(running.closed(time_ms))
            running = None
        if full:
            running = running or _Open(time_ms, full, time_ms, None)
            running.unused = unused_milli_gpus(layers.of(CLUSTER if full == SERVING else SERVING))
    if running:
        running.count(span.end_ms, span)
        found.append(running.closed(None))
    return [one for one in found if one.ends_ms is None or one.ends_ms > span.start_ms]
