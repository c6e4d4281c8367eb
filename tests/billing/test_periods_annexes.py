"""The files of a closed month are the ones it was closed with, whatever becomes known later (domain.md section 10)."""

from __future__ import annotations

import csv
import hashlib
import io

import pytest
from django.db import IntegrityError, OperationalError, ProgrammingError, connection, transaction
from django.db.utils import InternalError
from rest_framework.test import APIClient

from billing.exports.files import FORMATS, statement_file
from billing.models import Policy, Statement, StatementAnnex
from billing.services.adjustments import adjust_closed_months
from billing.services.months import compute_month
from ledger.access import Access
from ledger.models import Pool, Role, Tenant
from ledger.services.tokens import create_api_token
from tests.billing.closed_months import NOVEMBER_5, OCTOBER, booked, closable_ledger, close, findings, hold
from tests.billing.level_facts import hour, identity
from tests.billing.preemption_facts import preemption
from tests.billing.tampering import unguarded

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]

REFUSED = (IntegrityError, InternalError, OperationalError, ProgrammingError)
FINANCE = Access(roles=frozenset({Role.FINANCE}))


@pytest.fixture
def pool() -> Pool:
    """beta loses a GPU to acme at hour 4."""
    pool = closable_ledger()
    hold(pool, "=wl-3", "beta", 2, 4, 1_000)
    preemption(
        pool,
        hour(4),
        "=wl-3",
        identity("beta"),
        1_000,
        preemptor_identity=identity("acme"),
        preemptor_source="structured",
    )
    return pool


def own(tenant: str) -> Access:
    return Access(tenant_ids=frozenset({Tenant.objects.get(holder__slug=tenant).pk}))


def files() -> dict[tuple[str, str, bool, bool], bytes]:
    """Every file of October, as finance and as the tenant read it, plain and for spreadsheets."""
    return {
        (statement.number, name, access is FINANCE, excel): b"".join(
            statement_file(statement, name, access, excel=excel)
        )
        for statement in Statement.objects.filter(period="2026-10").select_related("tenant", "period")
        for name in FORMATS
        for access in (FINANCE, own(statement.tenant.slug))
        for excel in (False, True)
    }


def test_files_stay_what_they_were_after_adjustments(pool: Pool) -> None:
    close()
    before = files()
    assert before["2026-10-beta", "usage", True, False].count(b"\r\n") == 1 + 10
    assert before["2026-10-beta", "preemptions", True, False].count(b"\r\n") == 2
    booked(2)
    # One more GPU, another preemption, another name, and names for everybody from the start of the month on.
    hold(pool, "wl-9", "beta", 1, 3, 1_000)
    preemption(pool, hour(3), "wl-9", identity("beta"), 1_000, preemptor_identity=identity("acme"))
    Tenant.objects.update(display_alias="somebody")
    Policy.objects.create(valid_from=hour(-10), names_visible=True)
    adjust_closed_months(NOVEMBER_5)
    assert files() == before
    assert findings() == []


def test_the_sealed_content_names_each_file_by_its_hash(pool: Pool) -> None:
    close()
    found = files()
    for statement in Statement.objects.filter(period="2026-10"):
        said = statement.content["annexes"]
        for name, access in (("usage", True), ("preemptions", False), ("preemptions_named", True)):
            content = found[statement.number, name.removesuffix("_named"), access, False]
            assert said[name] == {
                "sha256": hashlib.sha256(content).hexdigest(),
                "size_bytes": str(len(content)),
            }


def test_a_closed_file_is_the_draft_s_file(pool: Pool) -> None:
    compute_month(OCTOBER, horizon=NOVEMBER_5)
    drafts = files()
    close()
    issued = files()
    for key, content in drafts.items():
        if key[1] in ("usage", "preemptions"):  # the others print the statement's hash
            assert issued[key] == content, key


def test_rows_over_the_api_are_those_of_the_file(pool: Pool) -> None:
    close()
    statement = Statement.objects.get(number="2026-10-beta")
    preemption(pool, hour(3), "wl-9", identity("beta"), 1_000, preemptor_identity=identity("acme"))
    adjust_closed_months(NOVEMBER_5)
    api = APIClient()
    api.credentials(HTTP_AUTHORIZATION=f"Bearer {create_api_token('f', 'finance')[1]}")
    (row,) = api.get(f"/api/v1/statements/{statement.pk}/preemptions/").json()["results"]
    text = b"".join(statement_file(statement, "preemptions", FINANCE)).decode()
    (printed,) = csv.DictReader(io.StringIO(text, newline=""))
    # Only a spreadsheet has to be kept from running what begins like a formula.
    assert (row["preemption"], printed["preemption"]) == (
        "=wl-3/2026-10-01T04:00",
        "'=wl-3/2026-10-01T04:00",
    )
    assert {**row, "preemption": ""} == {**printed, "preemption": ""}


def test_the_database_keeps_files_and_verify_finds_what_gets_past_it(pool: Pool) -> None:
    close()
    annex = StatementAnnex.objects.get(statement__number="2026-10-beta", name="usage")
    for attack in (
        lambda: StatementAnnex.objects.filter(pk=annex.pk).update(compressed=b""),
        lambda: StatementAnnex.objects.filter(pk=annex.pk).delete(),
        lambda: StatementAnnex.objects.create(
            statement=annex.statement, name="other", sha256="", size_bytes=0, compressed=b""
        ),
    ):
        with pytest.raises(REFUSED), transaction.atomic():
            attack()
    for change, problem in (
        ("compressed = 'x'", "file usage does not give its hash"),
        (f"size_bytes = {annex.size_bytes + 1}", "file usage does not give its hash"),
        ("name = 'other'", "rows differ from the sealed content"),
    ):
        with transaction.atomic():
            with unguarded("billing_statementannex"), connection.cursor() as cursor:
                cursor.execute(f"UPDATE billing_statementannex SET {change} WHERE id = %s", [annex.pk])
            assert any(problem in finding for finding in findings()), change
            transaction.set_rollback(True)
