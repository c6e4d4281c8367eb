"""Identities whose facts belong to nobody yet, and what a mapping moves."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import connection
from django.db.models import QuerySet

from ingest.sql import identities as sql
from ledger.models import Identity, IdentityMapping


@dataclass(frozen=True, slots=True)
class Unmapped:
    """Facts of an identity that no mapping covers: how many, and when they happened."""

    kind: str
    value: str
    first_seen_at: datetime
    pools: list[str]
    levels: int
    requests: int
    preemptions: int
    first_fact_at: datetime
    last_fact_at: datetime


@dataclass(frozen=True, slots=True)
class Attributed:
    """What of one pool a mapping covers."""

    pool: str
    levels: int
    requests: int
    preemptions: int
    first_fact_at: datetime
    last_fact_at: datetime


def unmapped_identities(offset: int = 0, limit: int = 100) -> list[Unmapped]:
    """Newest facts first. One query over levels, roll-ups and reports."""
    return [Unmapped(*row) for row in _rows(sql.UNMAPPED, {"offset": offset, "limit": limit})]


def count_unmapped() -> int:
    return int(_rows(sql.COUNT_UNMAPPED, {})[0][0])


def attributed_facts(
    kind: str, value: str, valid_from: datetime | None, valid_to: datetime | None
) -> list[Attributed]:
    """By pool, the facts of an identity that begin in [valid_from, valid_to); open bounds are for ever."""
    identity = Identity.objects.filter(kind=kind, value=value).values_list("pk", flat=True).first()
    parameters = {"identity": identity, "lower": valid_from, "upper": valid_to}
    return [Attributed(*row) for row in _rows(sql.FACTS_OF_IDENTITY, parameters)]


def mappings() -> QuerySet[IdentityMapping]:
    """Who maps to whom, and when; by identity and time."""
    rows = IdentityMapping.objects.select_related("identity", "tenant__holder")
    return rows.order_by("identity__kind", "identity__value", "validity", "pk")


def _rows(statement: str, parameters: dict[str, Any]) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)
        return list(cursor.fetchall())
