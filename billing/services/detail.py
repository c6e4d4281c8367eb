"""Keeps what statements issued without all of their files were made of, before their month is computed again.

domain.md section 10; those issued today carry it among their files (billing.services.annexes).
"""

from __future__ import annotations

import hashlib

from billing.models import AnnexName, Statement, StatementDetail, StatementState
from billing.selectors.detail import hits, packed, slices
from billing.selectors.focus_lines import billed_lines
from ledger.models import Period


def keep_detail(period: Period) -> int:
    """Keep slots and preemptions of every issued statement of a closed month; returns how many were new.

    Belongs into the transaction that computes the month again, ahead of it. Doing it twice keeps the first.
    """
    missing = Statement.objects.filter(period=period, state=StatementState.ISSUED, detail__isnull=True)
    missing = missing.exclude(annexes__name=AnnexName.SLOTS)
    statements = missing.select_related("tenant__holder", "tenant__account", "period").defer("content")
    kept = 0
    for statement in statements.order_by("pk"):
        lines = billed_lines(statement)
        content = packed((*slices(statement, lines), *hits(statement)))
        sha256 = hashlib.sha256(content).hexdigest()
        StatementDetail.objects.create(statement=statement, content=content, sha256=sha256)
        kept += 1
    return kept
