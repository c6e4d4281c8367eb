"""Two ledgers whose months are computed by hand, and what their computing gave."""

from __future__ import annotations

from django.db.models import Sum

from billing.core.allocation import HOLDER_CATEGORIES
from billing.models import (
    Allocation,
    Calibration,
    LendingDay,
    PoolSlot,
    ServicePolicy,
    WorkloadDay,
)
from billing.services.allocation import compute_allocation
from ledger.core.periods import Month
from ledger.core.units import GPU_US_PER_GPU_HOUR
from ledger.models import (
    ModelName,
    Outcome,
    Pool,
    Service,
    UsageHour,
)
from tests.billing.level_facts import (
    MONTH,
    capacity,
    hour,
    identity,
    make_pool,
    make_service,
    make_tenants,
    occupancy,
    reservation,
)

OCTOBER = Month.parse(MONTH)


def compute(hours: float = 10, **options):
    return compute_allocation(OCTOBER, horizon=hour(hours), **options)


def hours_of(*keys: str) -> dict:
    """{(slug, category) or (slug, *keys, category): GPU-hours} over the month, zeros left out."""
    sums = {name: Sum(f"{name}_gpu_us") for name in HOLDER_CATEGORIES}
    result = {}
    for row in Allocation.objects.values("holder__slug", *keys).annotate(**sums).order_by():
        for name in HOLDER_CATEGORIES:
            if row[name]:
                result[(row["holder__slug"], *(row[key] for key in keys), name)] = (
                    row[name] / GPU_US_PER_GPU_HOUR
                )
    return result


def table(model) -> list[tuple]:
    return sorted(model.objects.values_list(*(field.attname for field in model._meta.concrete_fields)))


def tables() -> list:
    return [table(model) for model in (PoolSlot, Allocation, LendingDay, WorkloadDay)]


def make_worked_example() -> Pool:
    """Section 4: 16 GPUs, 10 hours, acme reserves 8 and beta 4; gamma's waiting is a preemption's."""
    pool = make_pool()
    make_tenants("acme", "beta", "gamma")
    acme, beta, gamma = identity("acme"), identity("beta"), identity("gamma")
    capacity(pool, hour(-5), 16_000)
    reservation(pool, "acme", hour(-2), 8_000)
    reservation(pool, "beta", hour(0), 4_000)
    occupancy(pool, "wl-1", acme, hour(0), 2_000)
    occupancy(pool, "wl-2", beta, hour(0), 4_000)
    occupancy(pool, "wl-3", gamma, hour(2), 8_000)
    occupancy(pool, "wl-4", acme, hour(4), 6_000)
    occupancy(pool, "wl-3", gamma, hour(4), 4_000)
    occupancy(pool, "wl-4", acme, hour(7), 2_000)
    occupancy(pool, "wl-3", gamma, hour(7), 8_000)
    return pool


def make_chat() -> tuple[Pool, Service]:
    """A service of 4 GPUs on 8, serving two tenants by calibrated tokens in hour 0, nobody in hour 1."""
    pool = make_pool()
    make_tenants("acme", "beta")
    service = make_service("chat")
    capacity(pool, hour(0), 8_000)
    occupancy(pool, "replica", identity("chat", "service"), hour(0), 4_000)
    model = ModelName.objects.create(name="qwen")
    Calibration.objects.create(
        model=model, gpu_model="H100", valid_from=hour(-9), input_gpu_us_per_1k=100,
        cached_input_gpu_us_per_1k=10, output_gpu_us_per_1k=1_000,
    )  # fmt: skip
    ServicePolicy.objects.create(service=service, valid_from=hour(-9), key="tokens")
    for who, tokens, cached, output, gpu_us in (
        ("acme", 1_000, 500, 100, 6 * 10**9),
        ("beta", 3_500, 0, 205, 0),
    ):
        UsageHour.objects.create(
            pool=pool, hour=hour(0), identity=identity(who), service=service, model=model, outcome=Outcome.OK,
            requests=1, input_tokens=tokens, cached_input_tokens=cached, output_tokens=output, gpu_us=gpu_us,
        )  # fmt: skip
    return pool, service
