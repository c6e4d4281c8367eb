"""Under basis `spread` a tenant bears the long tail of others; its statement says how much."""

from __future__ import annotations

from typing import Any

import pytest

from billing.models import GpuPrice, RateCard, Statement
from billing.services.months import compute_month
from ledger.core.periods import Month
from tests.billing.level_facts import MONTH, hour
from tests.billing.test_periods_api import client, get

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]


def test_the_charge_beyond_what_was_measured(chat: Any) -> None:
    """4 GPU-hours by tokens 155 : 555 (test_allocation_services); acme measured 6000 s of them, beta nothing."""
    pool, _ = chat
    card = RateCard.objects.create(name="2026", valid_from=hour(-1000))
    GpuPrice.objects.create(rate_card=card, pool=pool, category="on_demand", price_micro=3_600_000)
    compute_month(Month.parse(MONTH), horizon=hour(2))
    statements = {one.tenant.slug: one for one in Statement.objects.all()}
    rows = {}
    for slug, statement in statements.items():
        (rows[slug],) = get(client("tenant_viewer", slug), f"statements/{statement.pk}/borne-for-others/")[
            "results"
        ]
    charged = {slug: int(row["charged_gpu_us"]) for slug, row in rows.items()}
    assert sum(charged.values()) == 4 * 3_600 * 10**6
    assert abs(charged["acme"] - 4 * 3_600 * 10**6 * 155 // 710) <= 1
    assert {slug: row["measured_gpu_us"] for slug, row in rows.items()} == {
        "acme": str(6 * 10**9),
        "beta": "0",
    }
    borne = {slug: int(row["borne_gpu_us"]) for slug, row in rows.items()}
    assert borne == {"acme": charged["acme"] - 6 * 10**9, "beta": charged["beta"]}
    # A GPU-second costs 0.001: what a tenant bears for others is worth its GPU-seconds, either way.
    assert float(rows["acme"]["borne_amount"]) == pytest.approx(borne["acme"] / 10**9, abs=2e-6)
    assert float(rows["beta"]["borne_amount"]) == pytest.approx(borne["beta"] / 10**9, abs=2e-6)
    get(client("tenant_viewer", "acme"), f"statements/{statements['beta'].pk}/borne-for-others/", 404)
