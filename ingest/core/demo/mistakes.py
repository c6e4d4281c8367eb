"""Events that no ledger can book as they come: somebody forgot a service, and an upgrade brought a field of its own.

They wait in quarantine for a person, next to neighbours that were booked (docs/demo.md says how each is settled).
"""

from __future__ import annotations

from ingest.core.demo.calendar import Calendar
from ingest.core.demo.cast import Company
from ingest.core.demo.journal import GATEWAY, Journal, Json, rfc3339
from ingest.core.demo.traffic import called_by
from ledger.core.units import MS_PER_HOUR

# A pilot that runs on code's own replicas; the configuration does not know it yet.
PILOT, PILOT_TENANT, PILOT_POOL = "qwen3-coder", "code", "bj-h200"
PILOT_DAY, PILOT_HOURS = 27, (14, 15, 16, 17)


def write_mistakes(journal: Journal, company: Company, calendar: Calendar) -> None:
    tenant = next((one.slug for one in company.tenants if one.slug == PILOT_TENANT), company.tenants[0].slug)
    for place, hour in enumerate(PILOT_HOURS):
        starts_ms = calendar.at(PILOT_DAY, hour)
        starts_ms -= starts_ms % MS_PER_HOUR  # in zones off the hour, too
        journal.write(GATEWAY, "usage", starts_ms + MS_PER_HOUR, _usage(tenant, starts_ms, 310 + 90 * place))
    refused: Json = {
        **called_by(tenant),
        "layer": "rate_limit",
        "reason": "tokens per minute",
        "status": 429,
        "count": 1,
        "retry_after_ms": 15_000,  # what events.md calls retry_after_seconds
    }
    journal.write(GATEWAY, "rejection", calendar.at(PILOT_DAY, 9, 12), refused)


def _usage(tenant: str, starts_ms: int, requests: int) -> Json:
    return {
        "usage": f"{PILOT}/{tenant}/{rfc3339(starts_ms)}",
        **called_by(tenant),
        "pool": PILOT_POOL,
        "service": PILOT,
        "model": PILOT,
        "starts_at": rfc3339(starts_ms),
        "ends_at": rfc3339(starts_ms + MS_PER_HOUR),
        "requests": requests,
        "input_tokens": requests * 6200,
        "cached_input_tokens": requests * 3900,
        "output_tokens": requests * 410,
    }
