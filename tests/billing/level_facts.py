"""Level facts put straight into the record, as booking would leave them, for tests of what is computed from them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

from django.db import connection
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange

from ingest.sql.requests import create_partition, partition_name
from ledger.models import (
    Booking,
    DirtySpan,
    Event,
    EventType,
    Holder,
    HolderKind,
    Identity,
    Level,
    LevelKind,
    Pool,
    Request,
    Service,
    Source,
    Subject,
    Tenant,
    UsageHour,
)
from ledger.services.masters import ensure_books, ensure_pool_books, ensure_tenant_books

MONTH = "2026-10"
START = datetime(2026, 10, 1, tzinfo=UTC)
_numbers = count(1)


def hour(number: float) -> datetime:
    """An instant so many hours after the month's start."""
    return START + timedelta(hours=number)


def make_pool(slug: str = "bj-h100") -> Pool:
    ensure_books()
    pool = Pool.objects.create(slug=slug, cluster="bj-1", gpu_model="H100")
    ensure_pool_books(pool)
    return pool


def make_tenants(*slugs: str) -> list[Tenant]:
    tenants = []
    for slug in slugs:
        holder = Holder.objects.create(kind=HolderKind.TENANT, slug=slug)
        tenants.append(Tenant.objects.create(holder=holder, name=slug.title()))
        ensure_tenant_books(tenants[-1])
    return tenants


def make_service(slug: str, owner: Tenant | None = None) -> Service:
    holder = Holder.objects.create(kind=HolderKind.SERVICE, slug=slug)
    Identity.objects.create(kind="service", value=slug)
    return Service.objects.create(holder=holder, owner=owner)


def identity(value: str, kind: str = "tenant") -> Identity:
    return Identity.objects.get_or_create(kind=kind, value=value)[0]


def book(pool: Pool, kind: LevelKind, subject: str, starts_at: datetime, milli: int, **fields) -> Level:
    """One level fact, its event, its subject row and the dirty time it leaves."""
    number = next(_numbers)
    source, _ = Source.objects.get_or_create(uri="/tests")
    batch = fields.pop("batch", 1)
    booking, _ = Booking.objects.get_or_create(batch=batch, defaults={"sequence": batch})
    event = Event.objects.create(
        source=source,
        event_id=fields.pop("event_id", f"e{number}"),
        type=EventType(int(kind)),
        occurred_at=starts_at,
        content_hash=number.to_bytes(16, "big"),
        booking=booking,
        line=number,
        body={},
    )
    attempt = fields.setdefault("attempt", 1 if kind == LevelKind.OCCUPANCY else 0)
    level = Level.objects.create(
        pool=pool, kind=kind, subject=subject, starts_at=starts_at, milli_gpus=milli, event=event, **fields
    )
    known, created = Subject.objects.get_or_create(
        pool=pool,
        kind=kind,
        subject=subject,
        attempt=attempt,
        defaults={"first_at": starts_at, "last_at": starts_at, "last_milli_gpus": milli},
    )
    if not created:
        known.first_at = min(known.first_at, starts_at)
        if starts_at >= known.last_at:
            known.last_at, known.last_milli_gpus = starts_at, milli
        known.save()
    DirtySpan.objects.create(pool=pool, span=DateTimeTZRange(starts_at, None, "[)"))
    return level


def capacity(pool: Pool, starts_at: datetime, milli: int) -> Level:
    return book(pool, LevelKind.CAPACITY, "", starts_at, milli)


def reservation(pool: Pool, who: str, starts_at: datetime, milli: int, **fields) -> Level:
    return book(pool, LevelKind.RESERVATION, f"r-{who}", starts_at, milli, identity=identity(who), **fields)


def occupancy(pool: Pool, workload: str, who: Identity, starts_at: datetime, milli: int, **fields) -> Level:
    return book(pool, LevelKind.OCCUPANCY, workload, starts_at, milli, identity=who, **fields)


def served(number: int, **fields: Any) -> None:
    """A request that ended in so manyth an hour, and the hour that booking adds it to."""
    ended_at = hour(number + 0.5)
    UsageHour.objects.create(hour=hour(number), **fields)
    with connection.cursor() as cursor:
        cursor.execute("SELECT to_regclass(%s) IS NULL", [partition_name(ended_at.date())])
        if cursor.fetchone()[0]:
            for statement in create_partition(ended_at.date()):
                cursor.execute(statement)
    source, _ = Source.objects.get_or_create(uri="/tests")
    booking, _ = Booking.objects.get_or_create(batch=0)
    name = f"r-{next(_numbers)}"
    counts = {"input_tokens": 0, "cached_input_tokens": 0, "output_tokens": 0, "gpu_us": 0}
    Request.objects.create(
        day=ended_at.date(), source=source, event_id=name, request=name, content_hash=b"r" * 16, booking=booking,
        line=1, starts_at=ended_at, ends_at=ended_at, **{**counts, **fields},
    )  # fmt: skip
