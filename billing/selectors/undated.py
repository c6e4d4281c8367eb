"""What has no date but enters figures: the mode, and who owns a service (domain.md sections 5 and 8).

A change of it counts in every month that is not closed, and there for all of it. A closed month keeps what it was
closed with: later facts about it are rated as it was, and so its adjustments are what the facts changed, nothing else.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from ledger.core.periods import to_ms
from ledger.models import Ledger, Period, Service
from ledger.selectors.settings import ledger_settings

COST_RECOVERY = "cost_recovery"


@dataclass(frozen=True)
class Undated:
    """owners: slug of every service -> slug of the tenant that owns it, "" for the platform."""

    mode: str
    currency: str
    showback: bool
    owners: Mapping[str, str]

    @property
    def recovers_cost(self) -> bool:
        return self.mode == COST_RECOVERY

    @property
    def owned(self) -> dict[str, str]:
        """Services that a tenant owns -> that tenant."""
        return {service: owner for service, owner in self.owners.items() if owner}

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class UndatedTerms:
    """What holds now, and during which closed months [start, end) in ms something that they were closed with."""

    ledger: Ledger
    closed: tuple[tuple[int, int, Mapping[str, Any]], ...]

    @property
    def zone(self) -> str:
        return self.ledger.billing_time_zone

    @cached_property
    def now(self) -> Undated:
        """One query."""
        services = Service.objects.select_related("holder", "owner__holder").order_by("holder__slug")
        owners = {one.slug: one.owner.slug if one.owner else "" for one in services}
        options = self.ledger.options
        return Undated(self.ledger.mode, self.ledger.currency, bool(options.get("showback")), owners)

    def at(self, instant_ms: int) -> Undated:
        """What the month of an instant is computed with. Services that came after its close are as they are now."""
        kept = self._kept_at(instant_ms)
        if kept is None:
            return self.now
        return Undated(**{**kept, "owners": {**self.now.owners, **kept["owners"]}})

    def recovers_cost_at(self, instant_ms: int) -> bool:
        """As `at` says; asks for nothing."""
        kept = self._kept_at(instant_ms)
        return bool((self.ledger.mode if kept is None else kept["mode"]) == COST_RECOVERY)

    def by_owners(self, instants: Iterable[int]) -> list[tuple[Undated, list[int]]]:
        """The instants, put together where services have the same owners."""
        found: defaultdict[tuple[tuple[str, str], ...], list[int]] = defaultdict(list)
        of: dict[tuple[tuple[str, str], ...], Undated] = {}
        for at_ms in instants:
            undated = self.at(at_ms)
            key = tuple(sorted(undated.owners.items()))
            of[key] = undated
            found[key].append(at_ms)
        return [(of[key], at) for key, at in found.items()]

    def _kept_at(self, instant_ms: int) -> Mapping[str, Any] | None:
        return next((kept for start, end, kept in self.closed if start <= instant_ms < end), None)


def undated_terms(ledger: Ledger | None = None) -> UndatedTerms:
    """One query, or two where the ledger is not given."""
    rows = Period.objects.filter(closed_with__isnull=False).order_by("starts_at")
    closed = rows.values_list("starts_at", "ends_at", "closed_with")
    return UndatedTerms(
        ledger or ledger_settings(),
        tuple((to_ms(starts_at), to_ms(ends_at), dict(kept or {})) for starts_at, ends_at, kept in closed),
    )
