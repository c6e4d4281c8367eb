"""`statement.pdf`: a document that never changes once issued, in both languages, and of nobody else's."""

from __future__ import annotations

import re

import pytest
from django.utils.translation import override
from rest_framework.test import APIClient

from billing.exports.statement_pdf import _document, statement_pdf
from billing.models import Statement
from ledger.access import Access
from ledger.models import Pool, Role, Tenant
from ledger.services.tokens import create_api_token
from tests.billing.closed_months import close
from tests.billing.level_facts import MONTH
from tests.billing.test_focus import AUDITOR, books, late_facts, october

__all__ = ["books", "october"]
pytestmark = [pytest.mark.django_db, pytest.mark.postgres]


def statement(slug: str) -> Statement:
    return Statement.objects.select_related("tenant__holder", "period").get(
        tenant__holder__slug=slug, period=MONTH
    )


def test_an_issued_statement_is_the_same_bytes_in_each_language_whatever_comes_later(books: Pool) -> None:
    close()
    before = {}
    for language in ("en", "zh-hans"):
        with override(language):
            before[language] = statement_pdf(statement("beta"), AUDITOR)
    assert before["en"] != before["zh-hans"]
    late_facts(books)
    Tenant.objects.update(name="Renamed", cost_center="9")
    for language, document in before.items():
        with override(language):
            assert statement_pdf(statement("beta"), AUDITOR) == document
        assert document.startswith(b"%PDF-")
        # Embedded, subset of the font of the package; nothing is left to the reader's machine.
        fonts = re.findall(rb"/BaseFont ?/[A-Z]{6}\+([A-Za-z-]+)", document)
        assert fonts
        assert all(font.startswith(b"NotoSansSC-Regular") for font in fonts)


def test_a_draft_has_one_too(books: Pool) -> None:
    assert statement_pdf(statement("gamma"), AUDITOR).startswith(b"%PDF-")


def test_it_says_what_the_bill_says(books: Pool) -> None:
    close()
    one = statement("beta")
    said = _document(one, AUDITOR)
    assert (said["total"], said["number"], said["issuer"]) == (
        f"{one.total_minor / 100:.2f}".replace("-", "−"),
        f"{MONTH}-beta",
        "Example Corp",
    )
    printed = [line for group in said["groups"] for line in group["lines"]]
    assert sorted(int(line["number"]) for line in printed) == sorted(
        one.lines.values_list("position", flat=True)
    )
    victim, cause = said["preemptions"]
    assert [row[1:4] for row in victim["rows"]] == [["bj-h100", "3", "acme · reclaimed its own reservation"]]
    assert cause["rows"] == []
    assert one.sha256 in [fact["value"] for fact in said["facts"]]
    assert "Not proved" not in said["proof"]


def test_another_tenant_is_no_name_on_it(books: Pool) -> None:
    close()
    beta = Access(name="beta", tenant_ids=frozenset({statement("beta").tenant_id}))
    victim, _cause = _document(statement("beta"), beta)["preemptions"]
    assert victim["rows"][0][3].startswith("another tenant")


def test_text_of_clusters_is_text(books: Pool) -> None:
    """A name that is markup to the typesetter is printed as it is."""
    Tenant.objects.filter(holder__slug="beta").update(name='#panic("x") $ * _ \\ "quoted" <b>')
    close()
    assert statement_pdf(statement("beta"), AUDITOR).startswith(b"%PDF-")


def test_the_door_of_the_api(books: Pool) -> None:
    close()
    client = APIClient()
    token = create_api_token("b", Role.TENANT_VIEWER, tenants=[statement("beta").tenant])
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {token[1]}")
    path = f"/api/v1/statements/{statement('beta').pk}/statement.pdf"
    english, chinese = (client.get(path, {"language": language}) for language in ("en", "zh-hans"))
    assert english["Content-Type"] == "application/pdf"
    assert english["ETag"] != chinese["ETag"]
    assert english.content != chinese.content
    assert client.get(path, {"language": "tlh"}).status_code == 400
    others = client.get(f"/api/v1/statements/{statement('acme').pk}/statement.pdf")
    assert others.status_code == 404
