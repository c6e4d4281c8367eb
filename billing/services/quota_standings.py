"""Quotas as they stand, put right from facts, contracts and usage (domain.md section 9).

Bookings move them as facts arrive; corrections, new mappings, contracts and a new month are put right here.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db import connection, transaction

from billing.selectors.terms import contracts_of
from billing.services.allocation_facts import void_events
from billing.sql.quota import (
    FORGET_CONTRACTS,
    FORGET_STANDINGS,
    LOCK_STANDINGS,
    REFRESH_CONTRACTS,
    REFRESH_STANDINGS,
)
from ledger.core.periods import Month, to_datetime, to_ms
from ledger.selectors.settings import ledger_settings


@transaction.atomic
def refresh_quota_standings(now: datetime) -> None:
    """Make every standing what the newest facts and the running month's contracts and usage say."""
    ledger = ledger_settings()
    month = Month.containing(to_ms(now), ledger.billing_time_zone)
    span = month.span(ledger.billing_time_zone)
    quotas = {
        contract.tenant_id: contract.token_quota
        for contract in contracts_of(month, ledger.billing_time_zone).values()
        if contract.token_quota is not None
    }
    parameters: dict[str, Any] = {
        "at": now,
        "void": void_events(),
        "from": to_datetime(span.start_ms),
        "to": to_datetime(span.end_ms),
        "tenants": list(quotas),
        "quotas": list(quotas.values()),
    }
    with connection.cursor() as cursor:
        cursor.execute(LOCK_STANDINGS)
        for statement in (FORGET_STANDINGS, REFRESH_STANDINGS, FORGET_CONTRACTS, REFRESH_CONTRACTS):
            cursor.execute(statement, parameters)
