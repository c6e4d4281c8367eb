"""What a tenant may still use: limits and use of all layers put together (domain.md section 9)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

RESOURCES = ("tokens_per_month", "tokens_per_minute", "requests_per_minute", "concurrency", "gpus")


@dataclass(frozen=True, slots=True)
class Standing:
    """One quota as it stands; thousandths of the resource's unit. pool, service: its scope, '' = all of the tenant's.
    ends_ms: end of the period that `used` counts in, where there is one."""

    layer: str
    resource: str
    pool: str
    service: str
    limit_milli: int
    used_milli: int
    as_of_ms: int
    ends_ms: int | None = None

    def left_milli(self, now_ms: int) -> int:
        """Never below 0; all of it once the period that it was used in is over."""
        is_over = self.ends_ms is not None and now_ms >= self.ends_ms
        return self.limit_milli if is_over else max(self.limit_milli - self.used_milli, 0)


def remaining(standings: Iterable[Standing], now_ms: int) -> dict[str, int | None]:
    """resource -> what is left, in thousandths; None where no quota says.

    The tightest layer counts. In a layer the quotas of several scopes add up, and one without a scope bounds them.
    """
    found: dict[str, int | None] = dict.fromkeys(RESOURCES)
    layers: defaultdict[tuple[str, str], list[Standing]] = defaultdict(list)
    for standing in standings:
        layers[standing.resource, standing.layer].append(standing)
    for (resource, _), of_layer in layers.items():
        scoped = [one.left_milli(now_ms) for one in of_layer if one.pool or one.service]
        bounds = [one.left_milli(now_ms) for one in of_layer if not (one.pool or one.service)]
        left = min([*bounds, *([sum(scoped)] if scoped else [])])
        so_far = found.get(resource)
        found[resource] = left if so_far is None else min(so_far, left)
    return found
