"""What is issued never changes, and is cached like it by those who may read it."""

from __future__ import annotations

import pytest
from django.utils.http import parse_http_date

from billing.models import Statement
from tests.billing.closed_months import closable_ledger, close
from tests.billing.level_facts import make_tenants
from tests.billing.page_books import MONTH
from tests.billing.test_api_access import by_token

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]


def test_an_issued_statement_is_cached_for_ever_and_tells_strangers_nothing_of_it() -> None:
    """ETag, Last-Modified and 304 for those who see it; no header of them, and no 304, for those who do not."""
    closable_ledger()
    close()
    make_tenants("delta")
    statement = Statement.objects.get(tenant__holder__slug="acme", period=MONTH)
    mine, stranger, finance = by_token("admin"), by_token("stranger"), by_token("finance")
    for name in ("", "bill.csv", "usage.csv", "preemptions.csv", "focus-1.2.csv", "statement.pdf"):
        path = f"/api/v1/statements/{statement.pk}/{name}"
        first = mine.get(path)
        assert (first.status_code, "ETag" in first.headers) == (200, True)
        assert parse_http_date(first.headers["Last-Modified"]) == int(statement.issued_at.timestamp())
        assert name == "" or "immutable" in first.headers["Cache-Control"]
        assert {"Authorization", "Cookie"} <= set(first.headers["Vary"].split(", "))
        # Files name others as their reader may see them: one reader's file is not another's.
        assert name == "" or first.headers["ETag"] != finance.get(path).headers["ETag"]
        if name.endswith(".csv"):
            sheets = [
                mine.get(path, {"excel": "1"}, headers={"Accept-Language": language}).headers["ETag"]
                for language in ("en", "zh-hans")
            ]
            assert len({first.headers["ETag"], *sheets}) == 3
        conditions = (
            {"If-None-Match": first.headers["ETag"]},
            {"If-Modified-Since": first.headers["Last-Modified"]},
        )
        for condition in conditions:
            assert mine.get(path, headers=condition).status_code == 304
            refused = stranger.get(path, headers=condition)
            assert refused.status_code == 404
            assert not {"Last-Modified", "Content-Disposition"} & set(refused.headers)
            assert "immutable" not in refused.headers.get("Cache-Control", "")
