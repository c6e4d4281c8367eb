"""A month to close, loaded into throwaway databases: 500 tenants and 20 pools as in `shapes`, and their requests.

Masters, terms, services, preemptions and requests come in by the doors that users have. Level changes, of which there
are up to a million, are written as booking leaves them. Databases are made beside the configured one, and copied, so
that every run begins with the same bytes.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
from django.conf import settings
from django.core.management import call_command
from django.db import connection, transaction

from billing.services.configuration import apply_document
from billing.sql.binary_copy import write_rows
from ingest.services.booking import book_batch
from ingest.services.inbox import Body, accept_batch
from ledger.core import zstd
from ledger.core.periods import to_datetime
from ledger.core.units import MS_PER_DAY, MS_PER_HOUR
from ledger.models import Booking, Identity, Pool, Source
from ledger.services.statistics import refresh_statistics
from tests.bench.shapes import HOLDERS, MONTH, POOLS, Shape, month_of_changes

SPAN = MONTH.span("UTC")
NOW = to_datetime(SPAN.end_ms) + timedelta(days=2, hours=1)
ALWAYS = datetime(2020, 1, 1, tzinfo=UTC)
PREEMPTIONS = 500
_MAINTENANCE = "postgres"
_BATCH_EVENTS = 250_000
_PRICES = {
    "reserved_used": "2",
    "reserved_idle": "1",
    "on_demand": "3",
    "borrowed": "1.5",
    "unreserved_idle": "1",
}


# Databases


def beside(name: str) -> str:
    """The name of a database of its own for this configuration: two of them may be measured at once."""
    return f"{settings.DATABASES['default']['NAME']}_{name}"


def use(name: str) -> None:
    """Let this process work in that database."""
    connection.close()
    settings.DATABASES["default"]["NAME"] = connection.settings_dict["NAME"] = name


def create(name: str, template: str = "") -> None:
    """A new database: a copy of `template`, else empty and migrated. Works in it from now on."""
    use(_MAINTENANCE)
    with connection.cursor() as cursor:
        quoted = connection.ops.quote_name
        cursor.execute(f"DROP DATABASE IF EXISTS {quoted(name)} WITH (FORCE)")
        cursor.execute(
            f"CREATE DATABASE {quoted(name)}" + (f" TEMPLATE {quoted(template)}" if template else "")
        )
        cursor.execute("CHECKPOINT")
    use(name)
    if not template:
        call_command("migrate", verbosity=0)


def drop(*names: str) -> None:
    use(_MAINTENANCE)
    with connection.cursor() as cursor:
        for name in names:
            cursor.execute(f"DROP DATABASE IF EXISTS {connection.ops.quote_name(name)} WITH (FORCE)")
    connection.close()


# Clocks


class Cost:
    """What a stretch of work took: seconds on the wall, and of processor time here and in the server's process (0 where
    the server runs elsewhere)."""

    def __init__(self) -> None:
        self.wall_s = self.cpu_s = 0.0

    @property
    def seconds(self) -> float:
        """Those that ratios are made of."""
        return self.cpu_s or self.wall_s


@contextmanager
def costed() -> Iterator[Cost]:
    connection.ensure_connection()
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        server = int(cursor.fetchone()[0])
    cost = Cost()
    wall_s, here_s, there_s = time.perf_counter(), time.process_time(), _cpu_of(server)
    yield cost
    cost.wall_s = time.perf_counter() - wall_s
    if there_s is not None:
        cost.cpu_s = time.process_time() - here_s + (_cpu_of(server) or 0.0) - there_s


def _cpu_of(process: int) -> float | None:
    """None where the server runs elsewhere, so that this machine has no such process, or another one by its number."""
    with suppress(OSError), open(f"/proc/{process}/stat") as stat:
        name, _, rest = stat.read().rpartition(") ")
        if "postgres" in name:
            fields = rest.split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return None


# The month


def load_month(changes: int) -> None:
    """So many level changes, services and preemptions beside the masters; nothing is computed yet."""
    shape = month_of_changes(changes)
    _load_levels(shape)
    deliver(_service_levels(), "services")
    deliver(_preemptions(shape), "preemptions")
    with connection.cursor() as cursor:
        cursor.execute(
            "ANALYZE ledger_event, ledger_level, ledger_subject, ledger_preemptionreport, ledger_identity"
        )


def sign_off() -> None:
    """Every source is complete, and planner statistics are fresh: the checklist and a month's use ask for it."""
    Source.objects.update(complete_until=NOW + timedelta(days=30))
    refresh_statistics()


def tidy() -> None:
    """Leave the database as the server's own maintenance would by and by: it gets to a database that was loaded long
    ago, and not to one that was loaded just now, and half of a close is reading what was written."""
    with connection.cursor() as cursor:
        cursor.execute("VACUUM (ANALYZE)")


def deliver(lines: Iterator[bytes], key: str) -> None:
    """Send events through the inbox and book them; each has to be new and without fault."""
    number = 0
    while block := [line for line, _ in zip(lines, range(_BATCH_EVENTS), strict=False)]:
        packed = zstd.compress(b"\n".join(block), 1)
        batch, _ = accept_batch(
            Body(packed, "application/x-ndjson", "zstd"),
            door="bench",
            submitted_by="bench",
            idempotency_key=f"{key}-{number}",
        )
        receipt = book_batch(batch.pk)
        if receipt is None or receipt.booked != len(block):
            raise SystemExit(f"{key}: {receipt} instead of {len(block)} booked events")
        number += 1


def event(kind: str, event_id: str, at_ms: int, **data: Any) -> bytes:
    body = {
        "specversion": "1.0",
        "id": event_id,
        "source": "/bench",
        "type": f"ledger.{kind}.v1",
        "time": instant(at_ms),
        "data": data,
    }
    return json.dumps(body).encode()


def instant(ms: int) -> str:
    return to_datetime(ms).isoformat()


def tenant(number: int) -> str:
    return f"t{number:03d}"


def pool(number: int) -> str:
    return f"p{number:02d}"


def key_of(number: int) -> str:
    """Of an API key; it maps to the tenant of that number."""
    return f"{number * 2_654_435_761 % 2**32:08x}"


def load_masters() -> None:
    """500 tenants with a key each, 20 pools with a service each, prices and policies."""
    keys = [{"kind": "api_key_hash", "value": key_of(number)} for number in range(HOLDERS)]
    apply_document(
        {
            "tenant": [{"slug": tenant(number), "identities": [keys[number]]} for number in range(HOLDERS)],
            "pool": [{"slug": pool(n), "cluster": "bench", "gpu_model": "H100"} for n in range(POOLS)],
            "service": [{"slug": f"chat-{n}", "pool": pool(n), "valid_from": ALWAYS} for n in range(POOLS)],
            "rate_card": [
                {"name": "bench", "valid_from": ALWAYS, "gpu_hour": [{"gpu_model": "H100", **_PRICES}]}
            ],
            "policy": [{"valid_from": ALWAYS}],
        },
        retroactive=True,
    )


def _load_levels(shape: Shape) -> None:
    """Levels, events and subjects, as booking leaves them."""
    rows = np.flatnonzero(shape.time_ms < SPAN.end_ms)
    count = np.arange(1, len(rows) + 1)
    pools = dict(Pool.objects.values_list("slug", "pk"))
    pool_ids = np.array([pools[pool(number)] for number in range(POOLS)])
    identities = dict(Identity.objects.filter(kind="tenant").values_list("value", "pk"))
    identity_ids = np.array([*(identities[tenant(number)] for number in range(HOLDERS)), 0])
    booking = Booking.objects.create(batch=0, sequence=0, received=len(rows), booked=len(rows)).pk
    source = Source.objects.create(uri="/bench/levels", watermark_at=NOW).pk
    with transaction.atomic(), connection.cursor() as cursor:
        # Referential triggers are left out while filling: it is not what is measured.
        cursor.execute("SET LOCAL session_replication_role = replica")
        cursor.execute(_CHANGES)
        write_rows("change", {
            "id": ("bigint", count), "pool": ("bigint", pool_ids[shape.pool[rows]]),
            "kind": ("smallint", shape.kind[rows]), "subject": ("bigint", shape.subject[rows]),
            "starts_at": ("timestamptz", shape.time_ms[rows]), "milli": ("bigint", shape.milli[rows]),
            "identity": ("bigint", identity_ids[shape.holder[rows]]), "lendable": ("boolean", shape.lendable[rows]),
        })  # fmt: skip
        for statement in _FILL:
            cursor.execute(statement, {"source": source, "booking": booking})
        cursor.execute("SELECT setval(pg_get_serial_sequence('ledger_event', 'id'), %s)", [len(rows)])
        cursor.execute(
            "INSERT INTO ledger_dirtyspan (pool_id, span) SELECT id, tstzrange(%s, NULL) FROM ledger_pool",
            [to_datetime(SPAN.start_ms)],
        )


_CHANGES = """
CREATE TEMP TABLE change (
    id bigint, pool bigint, kind smallint, subject bigint, starts_at timestamptz, milli bigint, identity bigint,
    lendable boolean
) ON COMMIT DROP
"""
# Of the few facts that name one subject and instant the last stays, so that none contradicts another.
_FILL = (
    """DELETE FROM change earlier USING change later
       WHERE (later.pool, later.kind, later.subject, later.starts_at)
           = (earlier.pool, earlier.kind, earlier.subject, earlier.starts_at) AND later.id > earlier.id""",
    """INSERT INTO ledger_event (id, source_id, event_id, type, occurred_at, content_hash, booking_id, line, body)
       SELECT id, %(source)s, 'e' || id, kind, starts_at, '', %(booking)s, id, '{}' FROM change""",
    """INSERT INTO ledger_level (kind, pool_id, subject, attempt, starts_at, milli_gpus, identity_id, lendable,
                                 service_class, purpose, workload_kind, event_id)
       SELECT kind, pool, CASE kind WHEN 1 THEN '' ELSE 'workload-' || subject END, (kind = 3)::int, starts_at, milli,
              nullif(identity, 0), lendable, 0, 0, 0, id FROM change""",
    """INSERT INTO ledger_subject (pool_id, kind, subject, attempt, first_at, last_at, last_milli_gpus)
       SELECT pool_id, kind, subject, attempt, min(starts_at), max(starts_at),
              (array_agg(milli_gpus ORDER BY starts_at DESC))[1]
       FROM ledger_level GROUP BY pool_id, kind, subject, attempt""",
)


def _service_levels() -> Iterator[bytes]:
    """One deployment for everybody in each pool, resized every six hours."""
    for number in range(POOLS):
        for at_ms in range(SPAN.start_ms, SPAN.end_ms, 6 * MS_PER_HOUR):
            gpus = 16 + 8 * (at_ms // (6 * MS_PER_HOUR) % 4)
            yield event(
                "occupancy", f"replica-{number}-{at_ms}", at_ms, pool=pool(number), workload=f"replica-{number}",
                service=f"chat-{number}", gpus=gpus,
            )  # fmt: skip


def _preemptions(shape: Shape) -> Iterator[bytes]:
    """Workloads that lose a GPU to a neighbour of the same pool and go on an hour later."""
    started = np.flatnonzero(
        (shape.kind == 3) & (shape.time_ms < SPAN.end_ms - MS_PER_DAY) & (shape.milli > 0)
    )
    chosen = started[:: max(len(started) // PREEMPTIONS, 1)][:PREEMPTIONS].tolist()
    for number, row in enumerate(chosen):
        at_ms, place, holder = (int(column[row]) for column in (shape.time_ms, shape.pool, shape.holder))
        named = f"preemption-{number}"
        yield event(
            "preemption", named, at_ms + 60_000, preemption=named, pool=pool(place), gpus=1,
            victim={"workload": f"workload-{shape.subject[row]}", "tenant": tenant(holder)},
            preemptor={"workload": f"preemptor-{number}", "tenant": tenant((holder + POOLS) % HOLDERS)},
            preemptor_source="structured", cause="priority", lost_gpu_seconds=300,
        )  # fmt: skip
        yield event(
            "resume", f"resume-{number}", at_ms + MS_PER_HOUR, preemption=named, pool=pool(place),
            workload=f"workload-{shape.subject[row]}", recompute_gpu_seconds=30,
        )  # fmt: skip


def request(number: int, holder: int, finish_ms: int, chance: random.Random) -> bytes:
    tokens = chance.randrange(50, 32_000)
    return (
        b'{"specversion":"1.0","id":"req-%010d","source":"/gateways/edge-1","type":"ledger.request.v1","time":"%s",'
        b'"data":{"request":"req-%010d","identity":{"kind":"api_key_hash","value":"%s"},"pool":"%s",'
        b'"service":"chat-%d","model":"model-%d","started_at":"%s","input_tokens":%d,"cached_input_tokens":%d,'
        b'"output_tokens":%d,"gpu_seconds":"%d.%06d","outcome":"ok"}}'
    ) % (
        number,
        instant(finish_ms).encode(),
        number,
        key_of(holder).encode(),
        pool(holder % POOLS).encode(),
        holder % POOLS,
        holder % POOLS,
        instant(finish_ms - chance.randrange(200, 60_000)).encode(),
        tokens,
        tokens // 3,
        chance.randrange(1, 2000),
        chance.randrange(9),
        chance.randrange(1_000_000),
    )
