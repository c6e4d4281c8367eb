"""What a tenant of a shared service pays for the long tail of others, under basis `spread` (domain.md section 5)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db import connection

from billing.core.rating_lines import GPU_US
from billing.models import Statement, StatementLine, StatementState
from billing.sql.borne import BORNE_FOR_OTHERS
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


BORNE = "borne_for_others"
"""What the sealed content of an issued statement calls it."""


def borne_for_others(statement: Statement) -> list[Borne]:
    """By service and pool: as an issued statement says it, else as the month's slots stand."""
    if says(statement, BORNE):
        return [_borne_of_content(said) for said in statement.content[BORNE]]
    return borne_of([statement])[statement.pk]


def says(statement: Statement, name: str) -> bool:
    """Whether a statement was issued with the figure; earlier ones were not."""
    return statement.state == StatementState.ISSUED and name in statement.content


def borne_of(statements: Sequence[Statement]) -> dict[UUID, list[Borne]]:
    """Of statements of one month, from its slots and their lines. Two queries, however many they are."""
    of_account = {statement.tenant.account.pk: statement.pk for statement in statements}
    found: dict[UUID, list[Borne]] = {statement.pk: [] for statement in statements}
    if not statements:
        return found
    period = statements[0].period
    with connection.cursor() as cursor:
        cursor.execute(
            BORNE_FOR_OTHERS,
            {"accounts": list(of_account), "from": period.starts_at, "to": period.ends_at},
        )
        rows = cursor.fetchall()
    charged = _charged(statements)
    for account, pool, service, gpu_us, measured in rows:
        pk = of_account[account]
        found[pk].append(Borne(pool, service, gpu_us, measured, charged.get((pk, pool, service), 0)))
    return found


def _charged(statements: Sequence[Statement]) -> dict[tuple[UUID, str, str], int | None]:
    """(statement, pool, service) -> amount; under a token contract the GPU lines' full amount, which conversion
    bears."""
    found: defaultdict[tuple[UUID, str, str], int | None] = defaultdict(int)
    lines = StatementLine.objects.filter(
        statement__in=[one.pk for one in statements],
        kind="shared",
        unit=GPU_US,
        service_idle=False,
        category__in=_OCCUPIED,
    ).exclude(service="")
    for line in lines:
        amount = line.full_amount_micro if line.full_amount_micro is not None else line.amount_micro
        key = (line.statement_id, line.pool, line.service)
        before = found[key]
        found[key] = None if amount is None or before is None else before + amount
    return dict(found)


def said_of_borne(one: Borne) -> dict[str, str | None]:
    """As the sealed content says it: strings, so that no number can be misread; what it comes to as well."""
    return {
        "pool": one.pool,
        "service": one.service,
        "charged_gpu_us": str(one.charged_gpu_us),
        "measured_gpu_us": str(one.measured_gpu_us),
        "charged_micro": None if one.charged_micro is None else str(one.charged_micro),
        "borne_gpu_us": str(one.borne_gpu_us),
        "borne_micro": None if one.borne_micro is None else str(one.borne_micro),
    }


def _borne_of_content(said: Mapping[str, Any]) -> Borne:
    charged = said["charged_micro"]
    return Borne(
        said["pool"],
        said["service"],
        int(said["charged_gpu_us"]),
        int(said["measured_gpu_us"]),
        None if charged is None else int(charged),
    )
