"""TRUNCATE, which no trigger of rows sees, is refused wherever a change of rows is."""

from __future__ import annotations

from datetime import date

import pytest
from django.db import connection, transaction

from ingest.sql.requests import create_partition, partition_name
from ledger.checks import APPEND_ONLY, the_record_is_guarded

pytestmark = pytest.mark.django_db

DAY = date(2031, 1, 1)

# Tables on which the first function guards rows and that no trigger of the second kind guards.
UNGUARDED = r"""
SELECT DISTINCT tgrelid::regclass::text FROM pg_trigger JOIN pg_proc ON pg_proc.oid = tgfoid
WHERE proname ~ '_refuse_(change|reopening|issued|issued_line|decided)$' EXCEPT
SELECT tgrelid::regclass::text FROM pg_trigger JOIN pg_proc ON pg_proc.oid = tgfoid
WHERE proname = 'ledger_refuse_emptying' AND tgenabled = 'O' AND tgtype & 32 = 32
"""


@pytest.fixture
def partition() -> str:
    with connection.cursor() as cursor:
        for statement in create_partition(DAY):
            cursor.execute(statement)
    return partition_name(DAY)


def test_no_table_that_refuses_changes_can_be_emptied(partition: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_trigger WHERE tgname = 'append_only'")
        assert cursor.fetchone()[0] > len(APPEND_ONLY)
        cursor.execute(UNGUARDED)
        assert cursor.fetchall() == []


@pytest.mark.parametrize(
    ("tables", "named"),
    [
        ("ledger_transfer", "ledger_transfer"),
        ("ledger_event CASCADE", "ledger_event"),
        # What follows along is guarded too.
        ("ledger_account CASCADE", "ledger_(transfer|auditentry)"),
        ("ledger_request", "ledger_request"),
        (partition_name(DAY), partition_name(DAY)),
        ("ledger_period CASCADE", "ledger_period"),
        ("billing_statement CASCADE", "billing_statement"),
        ("billing_credit CASCADE", "billing_credit"),
    ],
)
def test_emptying_a_table_is_refused(partition: str, tables: str, named: str) -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL ledger.emptied_by_tests = 'no'")
        with (
            pytest.raises(Exception, match=rf"{named} is append-only: TRUNCATE refused"),
            transaction.atomic(),
        ):
            cursor.execute(f"TRUNCATE {tables}")


def test_a_guard_that_was_switched_off_is_found() -> None:
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE ledger_transfer DISABLE TRIGGER never_emptied")
    assert [finding.where for finding in the_record_is_guarded(None)] == ["ledger_transfer"]
