"""Raw requests and batch bodies past their retention (domain.md section 10): archived, then dropped. Roll-ups stay."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import connection, transaction
from django.utils.module_loading import import_string
from psycopg import Cursor, sql

from ingest.models import Batch, BatchState, QuarantinedEvent
from ingest.services.raw_cursor import raw_cursor
from ingest.sql import pruning as statements
from ingest.sql import requests as request_sql
from ledger.core import zstd
from ledger.locks import Lock, acquire
from ledger.models import Ledger, Period, PeriodState, PrunedDay, PrunedRows
from ledger.selectors.settings import ledger_settings

MANIFEST = "manifest.json"
RETENTION_DAYS = 400
DISPUTE_DAYS = 60
BODY_RETENTION_DAYS = 400
PARTITIONS_AHEAD = 7


@dataclass(frozen=True, slots=True)
class Kept:
    """Why the oldest day that is left is not pruned."""

    day: date
    why: str


@dataclass(frozen=True, slots=True)
class Pruned:
    day: date
    rows: int
    archive: str
    sha256: str


class ArchiveBroken(RuntimeError):
    """What was written is not what can be read back: nothing was dropped."""


def prunable_days(now: datetime) -> tuple[list[date], Kept | None]:
    """Days from the oldest on that may go, and what keeps the first that has to wait.

    A day may go when its retention is over, every month it touches is closed, each of them for longer than the
    dispute window, and none of them has an open dispute. Days with a slot cut inside an hour are left out for good:
    late facts would have to divide that hour by its requests again.
    """
    options = _options()
    retention = int(options.get("request_retention_days", RETENTION_DAYS))
    window = timedelta(days=int(options.get("dispute_window_days", DISPUTE_DAYS)))
    disputed: set[str] = import_string(settings.MONTHS_IN_DISPUTE)()
    periods = list(Period.objects.order_by("starts_at"))
    found: list[date] = []
    needed: set[date] = import_string(settings.DAYS_OF_CUT_SLOTS)()
    for day in _days():
        if day in needed:
            continue
        why = _reason_to_keep(day, now, retention, window, periods, disputed)
        if why:
            return found, Kept(day, why)
        found.append(day)
    return found, None


def _days() -> list[date]:
    with connection.cursor() as cursor:
        cursor.execute(statements.DAYS)
        return [day for (day,) in cursor.fetchall()]


def _options() -> dict[str, Any]:
    return ledger_settings().options


def _reason_to_keep(
    day: date, now: datetime, retention: int, window: timedelta, periods: list[Period], disputed: set[str]
) -> str:
    starts = datetime(day.year, day.month, day.day, tzinfo=UTC)
    ends = starts + timedelta(days=1)
    if ends + timedelta(days=retention) > now:
        return f"kept for {retention} days"
    months = [period for period in periods if period.starts_at < ends and period.ends_at > starts]
    if not months or months[0].starts_at > starts or months[-1].ends_at < ends:
        return "its month is not closed"
    for period in months:
        if period.state != PeriodState.CLOSED or period.closed_at is None:
            return f"{period.month} is not closed"
        if period.closed_at + window > now:
            return f"{period.month} can be disputed until {(period.closed_at + window).date().isoformat()}"
        if period.month in disputed:
            return f"{period.month} has an open dispute"
    return ""


def prune_requests(days: list[date], archive: Path) -> Iterator[Pruned]:
    """Archive and drop these days, oldest first, each in a transaction of its own.

    Interrupted anywhere, a second run goes on: a file without its drop is written again.

    Raises:
        ArchiveBroken: a file could not be read back as it was written.
        OSError: the archive cannot be written.
    """
    archive.mkdir(parents=True, exist_ok=True)
    for day in sorted(days):
        with transaction.atomic():
            yield _prune(day, archive)


def _prune(day: date, archive: Path) -> Pruned:
    acquire(Lock.PARTITIONS)
    with raw_cursor() as cursor:
        cursor.execute(statements.lock_partition(day))
        by_booking = cursor.execute(statements.BY_BOOKING, {"day": day}).fetchall()
        rows = sum(count for _, count in by_booking)
        name = f"requests-{day.isoformat()}.csv.zst"
        _write(cursor, day, archive / name)
        sha256 = _checked(archive / name, rows)
        _add_to_manifest(archive, name, {"day": day.isoformat(), "rows": rows, "sha256": sha256})
        pruned = PrunedDay.objects.create(day=day, rows=rows, archive=name, sha256=sha256)
        PrunedRows.objects.bulk_create(
            PrunedRows(day=pruned, booking_id=booking, rows=count) for booking, count in by_booking
        )
        for statement in statements.drop_partition(day):
            cursor.execute(statement)
    ledger = Ledger.objects.select_for_update().get(id=1)
    ledger.options = {**ledger.options, "requests_kept_from": (day + timedelta(days=1)).isoformat()}
    ledger.save(update_fields=["options"])
    return Pruned(day, rows, name, sha256)


def _write(cursor: Cursor[Any], day: date, path: Path) -> None:
    copy = sql.SQL(statements.ARCHIVE.replace("%(day)s", "{day}")).format(day=sql.Literal(day.isoformat()))
    temporary = path.with_suffix(".part")
    with temporary.open("wb") as file:
        with zstd.ZstdFile(file, "w", level=9) as packed, cursor.copy(copy) as rows:
            for data in rows:
                packed.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _checked(path: Path, rows: int) -> str:
    """SHA-256 of the file, after reading back from it as many rows as the partition has."""
    found = sum(1 for _ in archived_rows(path))
    if found != rows:
        raise ArchiveBroken(f"{path.name} gives back {found} rows of {rows}")
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def archived_rows(path: Path) -> Iterator[dict[str, str]]:
    """The rows of an archive file, by the names of its header."""
    with zstd.ZstdFile(path) as unpacked:
        yield from csv.DictReader(io.TextIOWrapper(unpacked, encoding="utf-8", newline=""))


def _add_to_manifest(archive: Path, name: str, entry: dict[str, Any]) -> None:
    """One file names every archive file with its day, rows and hash; it is replaced as a whole."""
    path = archive / MANIFEST
    files = json.loads(path.read_text())["files"] if path.exists() else {}
    files[name] = entry
    temporary = path.with_suffix(".part")
    with temporary.open("w") as file:
        json.dump({"files": dict(sorted(files.items()))}, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


# --- batches, partitions to come ------------------------------------------------------------------------------


def forget_bodies(now: datetime) -> int:
    """Let go of the raw bytes of batches that were booked longer ago than their retention and have nothing left in
    quarantine. Their hash, counts and events stay; returns how many."""
    days = int(_options().get("batch_body_retention_days", BODY_RETENTION_DAYS))
    waiting = QuarantinedEvent.objects.filter(resolved_at__isnull=True).values("batch")
    old = Batch.objects.filter(
        state=BatchState.BOOKED, booked_at__lt=now - timedelta(days=days), body__isnull=False
    )
    return old.exclude(pk__in=waiting).update(body=None)


@transaction.atomic
def make_partitions(now: datetime) -> list[date]:
    """The partitions of today and the days to come, so that no booking has to stop and make one; returns new ones."""
    acquire(Lock.PARTITIONS)
    today = now.astimezone(UTC).date()
    known = set(_days())
    kept_from = _options().get("requests_kept_from", "")
    missing = [
        day
        for day in (today + timedelta(days=ahead) for ahead in range(PARTITIONS_AHEAD + 1))
        if day not in known and day.isoformat() >= kept_from
    ]
    with raw_cursor() as cursor:
        for day in missing:
            for statement in request_sql.create_partition(day):
                cursor.execute(statement)
    return missing
