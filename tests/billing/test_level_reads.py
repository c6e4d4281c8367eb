"""Levels as computing reads them: nothing changes on the way from PostgreSQL, and a long history costs nothing."""

import json
from itertools import product

import pytest
from django.db import connection

from billing.services.allocation_facts import read_levels
from billing.sql import computing
from billing.sql.binary_copy import read_tables
from ledger.core.periods import Span, to_datetime, to_ms
from ledger.models import Level, Subject
from tests.billing.level_facts import (
    capacity,
    hour,
    identity,
    make_pool,
    make_tenants,
    occupancy,
    reservation,
)

pytestmark = pytest.mark.django_db
SPAN = Span(to_ms(hour(0)), to_ms(hour(24)))
WINDOW = {"from": to_datetime(SPAN.start_ms), "to": to_datetime(SPAN.end_ms), "void": []}
GREATEST_ATTEMPT = 2**31 - 1


def test_every_column_of_a_level_comes_as_it_was_booked():
    """Also the greatest values of each: what is small is packed into one number."""
    make_tenants("acme", "globex")
    pool, acme = make_pool(), identity("acme")
    capacity(pool, hour(-1), 64_000)
    reservation(pool, "acme", hour(1), 8_000, lendable=False, ends_at=hour(9))
    reservation(pool, "globex", hour(2), 2**53 + 1)
    for number, (service_class, purpose) in enumerate(product(range(4), range(8))):
        occupancy(
            pool, f"höher-{number}", acme, hour(3), 1_000 + number, attempt=GREATEST_ATTEMPT - number,
            lendable=number % 2 == 0, service_class=service_class, purpose=purpose,
            attributes={"name": "x"} if number % 3 else None,
        )  # fmt: skip
    booked = {
        (
            one.event_id, one.kind, one.attempt, to_ms(one.starts_at), one.milli_gpus, one.identity_id or -1,
            one.lendable, one.service_class * 8 + one.purpose,
            Subject.objects.get(pool=pool, subject=one.subject, kind=one.kind).pk,
        )
        for one in Level.objects.all()
    }  # fmt: skip

    found = read_levels(pool.pk, SPAN, [])
    levels = found.effective.levels
    (_, facts) = read_tables(computing.LEVELS, [computing.LIVE, computing.FACTS], {"pool": pool.pk, **WINDOW})
    event_at = {
        (int(time_ms), int(milli)): int(event)
        for time_ms, milli, event in zip(facts["time_ms"], facts["milli"], facts["event"], strict=True)
    }
    subjects = found.subjects.row_ids(levels.subject, levels.attempt)
    columns = (
        levels.kind,
        levels.attempt,
        levels.time_ms,
        levels.milli,
        levels.who,
        levels.lendable,
        levels.group,
    )
    read = {
        (event_at[row[2], row[3]], *row, subject)
        for *row, subject in zip(*(column.tolist() for column in columns), subjects.tolist(), strict=True)
        if (row[2], row[3]) in event_at
    }
    assert read == booked
    described = found.subjects.described_by(levels.subject, levels.attempt, levels.time_ms + 1)
    with_attributes = set(Level.objects.filter(attributes__isnull=False).values_list("event_id", flat=True))
    assert set(described.tolist()) == with_attributes | {0}
    # The reservation that ends by itself.
    ended = (levels.kind == 2) & (levels.time_ms == to_ms(hour(9)))
    assert levels.milli[ended].tolist() == [0]


def rows_looked_at(statement: str, params: dict) -> int:
    """Rows of subjects that a statement touches, those that it throws away included."""
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", params)
        (answer,) = cursor.fetchone()
    (plan,) = json.loads(answer) if isinstance(answer, str) else answer
    return sum(_rows(plan["Plan"]))


def _rows(node: dict):
    if node.get("Relation Name") == "ledger_subject":
        yield (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
    for part in node.get("Plans", ()):
        yield from _rows(part)


def test_what_ended_long_ago_is_not_looked_at_however_much_there_is():
    """Of 20 000 workloads before the span 20 still run."""
    make_tenants("acme")
    pool = make_pool()
    capacity(pool, hour(-9_000), 64_000)
    with connection.cursor() as cursor:
        cursor.execute(
            """INSERT INTO ledger_subject (pool_id, kind, subject, attempt, first_at, last_at, last_milli_gpus)
               SELECT %(pool)s, 3, 'wl-' || n, 1, %(start)s - n * interval '1 hour', %(start)s - interval '1 hour',
                      (n %% 1000 = 0)::int
               FROM generate_series(1, 20000) n""",
            {"pool": pool.pk, "start": hour(0)},
        )
        cursor.execute("ANALYZE ledger_subject")
    assert 20 <= rows_looked_at(f"{computing.LEVELS} SELECT * FROM live", {"pool": pool.pk, **WINDOW}) <= 100
