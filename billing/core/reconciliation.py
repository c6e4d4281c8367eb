"""The books against what others counted: each difference with its amount, its unit and its cause (domain.md 9).

A cause here is one that follows from the numbers and from what is known of the source. What has none waits for a
person; a month does not close over it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ledger.core.units import gpu_hours_text, round_half_even

PPM = 1_000_000

ABORTED = "unattributed_abort"
"""Engines counted tokens that no request states: clients that went away (inference.md C1)."""
COUNTER_GAPS = "counter_gaps"
"""The engine's own count has holes in this time: restarts, missed samples."""
OVERSOLD = "oversold"
"""More was sold than there is."""


@dataclass(frozen=True, slots=True, order=True)
class Quantity:
    """What was counted, in the unit it is kept in; `text` and `shown_unit` are how it leaves the ledger.

    GPU time is kept in gpu_us and told in GPU-hours, everywhere alike; everything else is told as it was counted.
    """

    amount: int
    unit: str

    @property
    def text(self) -> str:
        return gpu_hours_text(self.amount) if self.unit == "gpu_us" else str(self.amount)

    @property
    def shown_unit(self) -> str:
        return "gpu_hours" if self.unit == "gpu_us" else self.unit


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One comparison. `stated`: by the other side; `booked`: by the ledger. Both in `unit`."""

    kind: str
    measure: str
    unit: str
    stated: int
    booked: int
    source: str = ""
    pool: str = ""
    tenant: str = ""
    subject: str = ""
    cause: str = ""

    @property
    def difference(self) -> int:
        return self.stated - self.booked

    @property
    def key(self) -> str:
        """Names the comparison within its month, for ever."""
        parts = (self.kind, self.measure, self.source, self.pool, self.tenant, self.subject)
        return "|".join(part.replace("\\", "\\\\").replace("|", "\\|") for part in parts)


def engine_against_requests(
    *, pool: str, model: str, kind: str, unit: str, engine: int, explained: int, has_gaps: bool
) -> Compared:
    """What engines counted against what requests explain. More is a client that went away; less is explained only by
    holes in the engine's own count."""
    difference = engine - explained
    cause = ABORTED if difference > 0 else COUNTER_GAPS if difference < 0 and has_gaps else ""
    return Compared(
        kind="engine",
        measure=kind,
        unit=unit,
        stated=engine,
        booked=explained,
        pool=pool,
        subject=model,
        cause=cause,
    )


def tokens_against_bill(
    tenant: str, billed: Mapping[str, int], counted: Mapping[str, Mapping[str, int]]
) -> list[Compared]:
    """A tenant's tokens as billed against what each side counted. counted: `gateway` or `engine` -> kind -> tokens;
    a side that counted nothing at all for the tenant is no side."""
    return [
        Compared(
            kind="tokens",
            measure=kind,
            unit="tokens",
            stated=kinds[kind],
            booked=billed.get(kind, 0),
            tenant=tenant,
            subject=side,
        )
        for side, kinds in sorted(counted.items())
        if any(kinds.values())
        for kind in sorted(kinds)
    ]


@dataclass(frozen=True, slots=True)
class Sold:
    """What was sold of a pool in a month. oversold_ppm: sold / capacity in millionths; None without any."""

    pool: str
    capacity_gpu_us: int
    reserved_gpu_us: int
    quota_gpu_us: int
    guardrail_gpu_us: int
    oversold_ppm: int | None

    @property
    def sold_gpu_us(self) -> int:
        """Reservations are sold; a cluster quota that is larger was sold as well."""
        return max(self.reserved_gpu_us, self.quota_gpu_us)


def sold_of_pool(
    pool: str, capacity_gpu_us: int, reserved_gpu_us: int, quota_gpu_us: int, guardrail_ppm: int = PPM
) -> Sold:
    """guardrail_ppm: how much may be sold, in millionths of the capacity."""
    sold = max(reserved_gpu_us, quota_gpu_us)
    ratio = round_half_even(sold * PPM, capacity_gpu_us) if capacity_gpu_us else None
    guardrail = round_half_even(capacity_gpu_us * guardrail_ppm, PPM)
    return Sold(pool, capacity_gpu_us, reserved_gpu_us, quota_gpu_us, guardrail, ratio)


def sold_lines(sold: Sold) -> list[Compared]:
    """Quotas sold against the guardrail; above it the difference has its cause in itself."""
    excess = sold.sold_gpu_us - sold.guardrail_gpu_us
    if excess <= 0:
        return []
    return [
        Compared(
            kind="quota",
            measure="sold",
            unit="gpu_us",
            stated=sold.sold_gpu_us,
            booked=sold.guardrail_gpu_us,
            pool=sold.pool,
            cause=OVERSOLD,
        )
    ]


def as_ratio(ppm: int | None) -> str | None:
    """1250000 -> "1.250000"."""
    if ppm is None:
        return None
    return f"{ppm // PPM}.{ppm % PPM:06d}"
