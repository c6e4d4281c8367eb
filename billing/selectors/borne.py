"""What a tenant of a shared service pays for the long tail of others, under basis `spread` (domain.md section 5)."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from django.db import connection

from billing.core.rating_lines import GPU_US
from billing.models import Statement
from billing.sql_borne import BORNE_FOR_OTHERS
from ledger.core.units import round_half_even

_OCCUPIED = ("reserved_used", "on_demand", "borrowed", "excess")


@dataclass(frozen=True, slots=True)
class Borne:
    """One service in one pool. charged_micro: the statement's lines for its occupied time; None: not all are priced.

    borne_gpu_us is what was charged beyond what measured time alone would have; negative where others bore it.
    """

    pool: str
    service: str
    charged_gpu_us: int
    measured_gpu_us: int
    charged_micro: int | None

    @property
    def borne_gpu_us(self) -> int:
        return self.charged_gpu_us - self.measured_gpu_us

    @property
    def borne_micro(self) -> int | None:
        """At what an hour of the service came to for this tenant."""
        if self.charged_micro is None or not self.charged_gpu_us:
            return None
        return round_half_even(self.charged_micro * self.borne_gpu_us, self.charged_gpu_us)


def borne_for_others(statement: Statement) -> list[Borne]:
    """By service and pool, as the month's slots stand. Two queries."""
    period = statement.period
    with connection.cursor() as cursor:
        cursor.execute(
            BORNE_FOR_OTHERS,
            {
                "account": statement.tenant.account.pk,
                "from": period.starts_at,
                "to": period.ends_at,
            },
        )
        rows = cursor.fetchall()
    charged = _charged(statement)
    return [
        Borne(pool, service, gpu_us, measured, charged.get((pool, service), 0))
        for pool, service, gpu_us, measured in rows
    ]


def _charged(statement: Statement) -> dict[tuple[str, str], int | None]:
    """(pool, service) -> amount; under a token contract the GPU lines' full amount, which conversion bears."""
    found: defaultdict[tuple[str, str], int | None] = defaultdict(int)
    lines = statement.lines.filter(
        kind="shared", unit=GPU_US, service_idle=False, category__in=_OCCUPIED
    ).exclude(service="")
    for line in lines:
        amount = line.full_amount_micro if line.full_amount_micro is not None else line.amount_micro
        before = found[line.pool, line.service]
        found[line.pool, line.service] = None if amount is None or before is None else before + amount
    return dict(found)
