"""Booking requests against a bare COPY of the same rows, both measured in this run.

Inbox: 1 000 000 request events as they come from a gateway, committed as two batches of 500 000. Booking takes them
through everything: unpack, parse, hash, look for duplicates, resolve names, insert into the daily partition, roll up by
the hour, mark as dirty, commit. The baseline copies the rows that this leaves, from memory, in COPY's binary format
(which is faster than text), into an empty table with the same columns and the same primary key.

Runs in a database of its own, made beside the configured one and dropped at the end.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections.abc import Iterator
from functools import cache
from multiprocessing import get_context
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "ledger.config.settings")
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

LIMIT = 0.50
MEMORY_LIMIT_MIB = 400
BATCH_EVENTS = 500_000
SOURCE = "/gateways/edge-1"
KEYS, MODELS, RATE_MS = 400, 6, 80
NOON_MS = 1_790_985_600_000  # 2026-10-02T20:00:00Z


def event_lines(count: int, first: int = 0) -> Iterator[bytes]:
    """Requests of a busy gateway, in order of their finish; about a day's worth for a million."""
    chance = random.Random(20261003)
    for number in range(first, first + count):
        finish_ms = NOON_MS + number * RATE_MS
        start_ms = finish_ms - chance.randrange(200, 60_000)
        key = chance.randrange(KEYS)
        tokens = chance.randrange(50, 32_000)
        yield (
            b'{"specversion":"1.0","id":"req-%010d","source":"%s","type":"ledger.request.v1","time":"%s",'
            b'"data":{"request":"req-%010d","identity":{"kind":"api_key_hash","value":"%08x"},"pool":"bench-h100",'
            b'"service":"chat-%d","model":"model-%d","started_at":"%s","input_tokens":%d,"cached_input_tokens":%d,'
            b'"output_tokens":%d,"gpu_seconds":"%d.%06d","outcome":"%s"}}'
        ) % (
            number,
            SOURCE.encode(),
            instant(finish_ms),
            number,
            key * 2_654_435_761 % 2**32,
            key % MODELS,
            key % MODELS,
            instant(start_ms),
            tokens,
            tokens // 3,
            chance.randrange(1, 2000),
            chance.randrange(9),
            chance.randrange(1_000_000),
            b"ok" if chance.random() < 0.97 else b"error",
        )


def instant(ms: int) -> bytes:
    seconds, milli = divmod(ms, 1000)
    return b"%s.%03dZ" % (time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)).encode(), milli)


@cache
def database() -> str:
    """Beside the configured one, and named after it: two configurations may be measured at once."""
    from django.conf import settings

    return f"{settings.DATABASES['default']['NAME']}_bench_booking"


def prepare_database() -> None:
    """An empty, migrated database with the pool and services that the events name."""
    from django.conf import settings
    from django.core.management import call_command
    from django.db import connection

    connection.ensure_connection()
    with connection.cursor() as cursor:
        name = connection.ops.quote_name(database())
        cursor.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        cursor.execute(f"CREATE DATABASE {name}")
    connection.close()
    settings.DATABASES["default"]["NAME"] = connection.settings_dict["NAME"] = database()
    call_command("migrate", verbosity=0)
    from billing.services.configuration import apply_document

    apply_document(
        {
            "tenant": [{"slug": "acme"}],
            "pool": [{"slug": "bench-h100", "cluster": "bench", "gpu_model": "H100"}],
            "service": [{"slug": f"chat-{n}", "pool": "bench-h100", "owner": "acme"} for n in range(MODELS)],
        }
    )


def drop_database() -> None:
    from django.db import connection

    connection.close()
    connection.settings_dict["NAME"] = "postgres"
    with connection.cursor() as cursor:
        cursor.execute(f"DROP DATABASE IF EXISTS {connection.ops.quote_name(database())} WITH (FORCE)")
    connection.close()


def fill_inbox(count: int, key: str) -> list[int]:
    from ingest.services.inbox import Body, accept_batch
    from ledger.core import zstd

    batches = []
    for first in range(0, count, BATCH_EVENTS):
        body = b"\n".join(event_lines(min(BATCH_EVENTS, count - first), first))

        packed = zstd.compress(body, 3)
        batch, _ = accept_batch(
            Body(packed, "application/x-ndjson", "zstd"),
            door="bench",
            submitted_by="bench",
            idempotency_key=f"{key}{first}",
        )
        batches.append(batch.pk)
    return batches


def book_in_worker(batches: list[int], answer: Any) -> None:
    """A worker process of its own, as Celery would start it: connect, book, tell the time and the memory it took."""
    import django

    django.setup()
    from django.db import connection

    connection.settings_dict["NAME"] = database()
    from ingest.services.booking import book_batch

    connection.ensure_connection()
    began = time.perf_counter()
    receipts = [book_batch(batch) for batch in batches]
    took_s = time.perf_counter() - began
    counts = [(one.booked, one.duplicate, one.received) for one in receipts if one is not None]
    answer.send((took_s, counts, peak_memory_mib()))


def peak_memory_mib() -> float:
    """Of this process image only: getrusage also counts what its parent had when it forked."""
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def booked(batches: list[int]) -> tuple[float, list[tuple[int, int, int]], float]:
    context = get_context("spawn")
    receiving, sending = context.Pipe(duplex=False)
    worker = context.Process(target=book_in_worker, args=(batches, sending))
    worker.start()
    sending.close()
    result: tuple[float, list[tuple[int, int, int]], float] = receiving.recv()
    worker.join()
    return result


def rows_in_memory() -> tuple[list[bytes], str]:
    """The booked rows in COPY's binary format, and the columns they have."""
    from ingest.services.raw_cursor import raw_cursor

    with raw_cursor() as cursor:
        cursor.execute(
            "SELECT attname FROM pg_attribute WHERE attrelid = 'ledger_request'::regclass AND attnum > 0"
        )
        columns = ", ".join(name for (name,) in cursor.fetchall())
        query = f"COPY (SELECT {columns} FROM ledger_request ORDER BY ends_at) TO STDOUT (FORMAT binary)"
        pieces: list[bytes] = []
        gathered = bytearray()
        with cursor.copy(query) as copy:
            for row in copy:
                gathered += row
                if len(gathered) > 1 << 20:
                    pieces.append(bytes(gathered))
                    gathered.clear()
        pieces.append(bytes(gathered))
    return pieces, columns


def bare_copy(pieces: list[bytes], columns: str) -> float:
    """Seconds to copy the rows into an empty table with the same columns and primary key, committed."""
    from ingest.services.raw_cursor import raw_cursor

    with raw_cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS bare_request")
        cursor.execute("CREATE TABLE bare_request (LIKE ledger_request INCLUDING DEFAULTS)")
        cursor.execute("ALTER TABLE bare_request ADD PRIMARY KEY (day, source_id, event_id)")
        cursor.execute("CHECKPOINT")
        began = time.perf_counter()
        with cursor.copy(f"COPY bare_request ({columns}) FROM STDIN (FORMAT binary)") as copy:
            for piece in pieces:
                copy.write(piece)
        return time.perf_counter() - began


def empty_books() -> None:
    """Back to an empty ledger with its inbox full: partitions go, roll-ups and receipts too."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("SET ledger.emptied_by_tests = 'yes'")
        cursor.execute("TRUNCATE ledger_request, ledger_usagehour, ledger_dirtyspan, ledger_booking CASCADE")
        cursor.execute("UPDATE ingest_batch SET state = 'received', booked_at = NULL")
        cursor.execute("VACUUM (ANALYZE) ledger_usagehour")
        cursor.execute("CHECKPOINT")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    import django

    django.setup()
    prepare_database()
    try:
        return measure(options.events, options.runs)
    finally:
        drop_database()


def measure(events: int, runs: int) -> int:
    first = fill_inbox(events, "first-")
    booking_s, copy_s, repeat_s, memory_mib = [], [], [], 0.0
    for run in range(runs):
        if run:
            empty_books()
        took_s, counts, memory = booked(first)
        if sum(count[0] for count in counts) != events:
            print(f"booking: {counts} instead of {events} new events")
            return 1
        booking_s.append(took_s)
        memory_mib = max(memory_mib, memory)
        pieces, columns = rows_in_memory()
        copy_s.append(bare_copy(pieces, columns))
        del pieces
        again = fill_inbox(events, f"again-{run}-")
        took_s, counts, memory = booked(again)
        if sum(count[1] for count in counts) != events:
            print(f"booking: {counts} instead of {events} repeats")
            return 1
        repeat_s.append(took_s)
        memory_mib = max(memory_mib, memory)
        forget(again)
    return report(events, booking_s, copy_s, repeat_s, memory_mib)


def forget(batches: list[int]) -> None:
    from ingest.models import Batch

    Batch.objects.filter(pk__in=batches).delete()


def report(
    events: int, booking_s: list[float], copy_s: list[float], repeat_s: list[float], memory_mib: float
) -> int:
    """Each run's booking is held against the copy of that run; the median run counts."""
    ratios = sorted(copy / booking for copy, booking in zip(copy_s, booking_s, strict=True))
    repeats = sorted(booking / repeat for booking, repeat in zip(booking_s, repeat_s, strict=True))
    ratio, repeat = ratios[len(ratios) // 2], repeats[len(repeats) // 2]
    print(
        f"booking {events:,} requests: {_times(booking_s)} s, bare COPY {_times(copy_s)} s; "
        f"{ratio:.2f} of its speed, at least {LIMIT:.2f}"
    )
    print(f"repeats: {_times(repeat_s)} s; {repeat:.2f} of booking's speed, at least 1.00")
    print(f"worker: {memory_mib:.0f} MiB, at most {MEMORY_LIMIT_MIB} MiB")
    return 0 if ratio >= LIMIT and repeat >= 1 and memory_mib <= MEMORY_LIMIT_MIB else 1


def _times(seconds: list[float]) -> str:
    return " / ".join(f"{one:.1f}" for one in seconds)


if __name__ == "__main__":
    sys.exit(main())
