"""A tenant's bill told apart inside the tenant: by team, user, key, model or workload (interfaces.md, its page)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ledger.core.apportion import largest_remainder

Group = tuple[str, ...]
"""What lines and parts have in common: pool, service, class and category."""


@dataclass(frozen=True, slots=True)
class Held:
    """GPU time of one part (a team, a user; '' where none is known) in one group."""

    group: Group
    part: str
    gpu_us: int


@dataclass(frozen=True, slots=True)
class Part:
    """A part's month. amount_micro None: a line that it has a share of has no price."""

    name: str
    gpu_us: int
    amount_micro: int | None


def parts_of_bill(held: Iterable[Held], amounts: Mapping[Group, int | None]) -> list[Part]:
    """Largest first. Each group's amount (micro units, of its lines) is apportioned by GPU time, ties by name.

    The parts' amounts add up to those of the lines; what no time stands for goes to the part without a name.
    """
    time: defaultdict[Group, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
    for one in held:
        time[one.group][one.part] += one.gpu_us
    gpu_us: defaultdict[str, int] = defaultdict(int)
    micro: defaultdict[str, int] = defaultdict(int)
    unknown: set[str] = set()
    for group in sorted({*time, *amounts}):
        names = sorted(time[group]) or [""]
        weights = [time[group][name] for name in names]
        for name, weight in zip(names, weights, strict=True):
            gpu_us[name] += weight
        amount = amounts.get(group, 0)
        if amount is None:
            unknown.update(names)
            continue
        for name, part in zip(names, _shares(amount, weights), strict=True):
            micro[name] += part
    parts = [Part(name, gpu_us[name], None if name in unknown else micro[name]) for name in gpu_us]
    return sorted(parts, key=lambda part: (-part.gpu_us, part.name))


def _shares(amount: int, weights: list[int]) -> list[int]:
    """By weight, largest remainder; the first takes what nothing weighs."""
    if not sum(weights):
        return [amount, *[0] * (len(weights) - 1)]
    return largest_remainder(amount, weights)
