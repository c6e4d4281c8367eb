"""On a demo month: a shortage is an open alert before the first preemption that it causes (domain.md section 9)."""

from __future__ import annotations

import io
from datetime import datetime, timedelta

import pytest
from django.core.management import call_command

from billing.models import Alert, AlertRule, AlertState
from billing.selectors.alerts import alerts_for
from billing.selectors.shortages import PoolShortage, pools_named, shortages_of
from billing.services.alerts import evaluate_alerts
from ledger.access import Access
from ledger.core.periods import Month
from ledger.models import Ledger, Tenant

MONTH = "2026-02"
BEAT = timedelta(minutes=1)


def beat_after(instant: datetime) -> datetime:
    """Beat looks at every whole minute."""
    minute = instant.replace(second=0, microsecond=0)
    return minute if minute == instant else minute + BEAT


def beat_before(instant: datetime) -> datetime:
    return beat_after(instant) - BEAT


def causes() -> list[PoolShortage]:
    """Shortages of the month that preemptions were decided in, by their start."""
    window = Month.parse(MONTH).span(Ledger.objects.get().billing_time_zone)
    return [one for one in shortages_of(window, pools_named(None)) if one.first is not None]


@pytest.mark.slow
@pytest.mark.django_db
def test_the_alert_is_open_before_the_first_preemption() -> None:
    call_command(
        "load_demo_month",
        MONTH,
        tenants=6,
        gpus=128,
        requests=300,
        seed=5,
        stdout=io.StringIO(),
        stderr=io.StringIO(),
    )
    Alert.objects.all().delete()  # the command has looked at the whole month; here it is lived through
    AlertRule.objects.exclude(kind="shortage").update(enabled=False)
    found = causes()
    assert len(found) > 5
    seen_by_beat = 0
    beats = {beat_after(one.starts_at) for one in found} | {
        beat_before(one.first.decided_at) for one in found if one.first
    }
    open_at: dict[datetime, dict[str, datetime]] = {}
    for beat in sorted(beats):
        # As of a beat only facts up to it count: what came later cannot have opened anything.
        evaluate_alerts(beat)
        unresolved = Alert.objects.exclude(state=AlertState.RESOLVED)
        open_at[beat] = dict(unresolved.values_list("pool__slug", "opened_at"))
    for one in found:
        assert one.first is not None
        decided_at = one.first.decided_at
        if beat_after(one.starts_at) < decided_at:
            opened_at = open_at[beat_before(decided_at)].get(one.pool.slug)
            assert opened_at is not None, (one.pool.slug, one.starts_at, decided_at)
            assert opened_at < decided_at
            seen_by_beat += 1
        elif beat_after(one.starts_at) > decided_at:
            # Shorter than a beat: seen at the next one, with the instant at which it began.
            assert one.lead_time_ms is not None and one.lead_time_ms < 60_000
    assert seen_by_beat > 5
    alert = Alert.objects.order_by("opened_at").first()
    assert alert is not None and alert.audience.exists()
    reserving = frozenset(alert.audience.values_list("pk", flat=True))
    others = frozenset(Tenant.objects.exclude(pk__in=reserving).values_list("pk", flat=True))
    assert alerts_for(Access(tenant_ids=reserving)).filter(pk=alert.pk).exists()
    assert not alerts_for(Access(tenant_ids=others)).filter(pk=alert.pk).exists()
