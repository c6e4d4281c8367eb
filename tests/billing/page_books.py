"""Books for the tests of pages: the worked example of section 4 with prices, its preemption, and a user per role."""

from __future__ import annotations

from dataclasses import dataclass

from django.contrib.auth.models import AnonymousUser
from django.db import connection
from django.test import Client

from billing.models import (
    Alert,
    AlertRule,
    Dispute,
    GpuPrice,
    Policy,
    PreemptionRecord,
    RateCard,
    Statement,
    VerificationRun,
)
from billing.services.disputes import open_dispute
from billing.services.months import compute_month
from billing.services.verification import run_verification, start_verification
from ingest.models import Batch
from ledger.core.periods import Month
from ledger.core.units import MICRO_PER_UNIT
from ledger.models import ApiToken, Booking, Event, Membership, Pool, Role, Source, Tenant, User
from ledger.services.audit import Actor
from ledger.services.tokens import create_api_token
from tests.billing.level_facts import (
    MONTH,
    capacity,
    hour,
    identity,
    make_pool,
    make_tenants,
    occupancy,
    reservation,
)
from tests.billing.preemption_facts import preemption, resume

PRICES = {"reserved_used": 2, "reserved_idle": 1, "on_demand": 3, "borrowed": 1, "unreserved_idle": 1}
PASSWORD = "correct-horse"
NEXT_MONTH = "2026-11"
HOURS_OF_OCTOBER = 31 * 24

# Who looks: user name -> role and tenant. `nobody` is signed in without a role.
PEOPLE: dict[str, tuple[Role, str] | None] = {
    "finance": (Role.FINANCE, ""),
    "platform": (Role.PLATFORM, ""),
    "auditor": (Role.AUDITOR, ""),
    "admin-of-acme": (Role.TENANT_ADMIN, "acme"),
    "viewer-of-acme": (Role.TENANT_VIEWER, "acme"),
    "viewer-of-gamma": (Role.TENANT_VIEWER, "gamma"),
    "viewer-of-delta": (Role.TENANT_VIEWER, "delta"),
    "nobody": None,
}


@dataclass(frozen=True)
class Books:
    """acme preempts gamma; delta has nothing to do with either."""

    pool: Pool
    batch: Batch
    record: PreemptionRecord

    def statement(self, tenant: str, month: str = MONTH) -> Statement:
        return Statement.objects.get(tenant__holder__slug=tenant, period=month)

    def event(self, event_id: str) -> Event:
        return Event.objects.get(event_id=event_id)

    def read_again(self) -> Books:
        """The same rows, with nothing of what a test changed in memory."""
        return Books(
            Pool.objects.get(pk=self.pool.pk),
            Batch.objects.get(pk=self.batch.pk),
            PreemptionRecord.objects.get(pk=self.record.pk),
        )


def make_books() -> Books:
    """October with 10 hours of the example, and the first 5 of November, in which everything is held on."""
    pool = make_pool()
    tenants = make_tenants("acme", "beta", "delta", "gamma")
    for tenant, alias in zip(tenants, ["Alpha customer", "", "Omega customer", ""], strict=True):
        tenant.display_alias = alias
        tenant.save()
    acme, beta, gamma = identity("acme"), identity("beta"), identity("gamma")
    capacity(pool, hour(-5), 16_000)
    capacity(pool, hour(10), 0)
    reservation(pool, "acme", hour(0), 8_000)
    reservation(pool, "acme", hour(10), 0)
    reservation(pool, "beta", hour(0), 4_000)
    reservation(pool, "beta", hour(10), 0)
    occupancy(pool, "wl-1", acme, hour(0), 2_000, event_id="acme-holds-2", attributes={"name": "qwen-train"})
    occupancy(pool, "wl-2", beta, hour(0), 4_000)
    occupancy(pool, "wl-3", gamma, hour(2), 8_000, event_id="gamma-holds-8")
    occupancy(pool, "wl-4/a", acme, hour(4), 6_000)
    occupancy(pool, "wl-3", gamma, hour(4), 4_000)
    occupancy(pool, "wl-4/a", acme, hour(7), 2_000)
    occupancy(pool, "wl-3", gamma, hour(7), 8_000)
    for workload, who in (("wl-1", acme), ("wl-2", beta), ("wl-4/a", acme), ("wl-3", gamma)):
        occupancy(pool, workload, who, hour(10), 0)
    preemption(
        pool,
        hour(4),
        "wl-3",
        gamma,
        4_000,
        event_id="report-1",
        preemption="wl-3/4",
        preemptor_workload="wl-4/a",
        preemptor_identity=acme,
        preemptor_source="structured",
        admitted_at=hour(2),
        released_at=hour(4),
        lost_gpu_us=8 * 3_600_000_000,
    )
    resume(pool, "wl-3/4", hour(7), recompute_gpu_us=640_500_000)
    _prices(pool)
    Source.objects.update(watermark_at=hour(10))
    with connection.cursor() as cursor:
        # The batch takes a number by hand: the next one that the inbox gives must be another, whatever ran before.
        cursor.execute("SELECT nextval(pg_get_serial_sequence('ingest_batch', 'id'))")
    batch = Batch.objects.create(
        id=Booking.objects.get().batch,
        door="api",
        content_type="application/x-ndjson",
        idempotency_key="k",
        body_sha256="0" * 64,
        body=b'{"id":"acme-holds-2"}\n',
        body_bytes=22,
        state="booked",
        received=1,
        booked=1,
        duplicate=0,
        conflict=0,
        quarantined=0,
    )
    compute_month(Month.parse(MONTH), horizon=hour(HOURS_OF_OCTOBER))
    compute_month(Month.parse(NEXT_MONTH), horizon=hour(HOURS_OF_OCTOBER + 5))
    return Books(pool, batch, PreemptionRecord.objects.get())


def _prices(pool: Pool) -> None:
    card = RateCard.objects.create(name="2026", valid_from=hour(-1000))
    for category, price in PRICES.items():
        GpuPrice.objects.create(
            rate_card=card, pool=pool, category=category, price_micro=price * MICRO_PER_UNIT
        )
    Policy.objects.create(valid_from=hour(-1000))


def make_people() -> dict[str, User]:
    people = {}
    for name, membership in PEOPLE.items():
        people[name] = User.objects.create_user(name, password=PASSWORD)
        if membership is not None:
            role, slug = membership
            tenant = Tenant.objects.get(holder__slug=slug) if slug else None
            Membership.objects.create(user=people[name], role=role, tenant=tenant)
    return people


def client_of(user: User | AnonymousUser) -> Client:
    client = Client()
    if isinstance(user, User):
        client.force_login(user)
    return client


def verification_run() -> VerificationRun:
    """What a verification of the books found; carried out once."""
    found = VerificationRun.objects.first()
    return found or run_verification(start_verification(Actor("finance"))[0].pk)


def token_of_acme(name: str) -> ApiToken:
    """A token that reads acme's bills; made once."""
    found = ApiToken.objects.filter(name=name).first()
    if found is not None:
        return found
    return create_api_token(name, Role.TENANT_VIEWER, tenants=[Tenant.objects.get(holder__slug="acme")])[0]


def alert_of_acme(pool: Pool) -> Alert:
    """An open shortage of the pool that acme, who reserves there, is told of; made once."""
    rule, _ = AlertRule.objects.get_or_create(
        name="shortage", defaults={"kind": "shortage", "threshold_micro": 0, "severity": "critical"}
    )
    alert, _ = Alert.objects.get_or_create(
        rule=rule,
        subject=f"pool:{pool.slug}",
        defaults={
            "kind": "shortage",
            "severity": "critical",
            "pool": pool,
            "started_at": hour(1),
            "opened_at": hour(1),
            "last_seen_at": hour(2),
            "evidence": {"missing": {"value": "12", "unit": "GPU"}},
        },
    )
    alert.audience.set([Tenant.objects.get(holder__slug="acme")])
    return alert


def dispute_of_acme(books: Books) -> Dispute:
    """Of its first line; opened once."""
    found = Dispute.objects.first()
    return found or open_dispute(books.statement("acme").lines.get(position=1), "too much", Actor("viewer"))


def line_position(statement: Statement, category: str, kind: str = "usage") -> int:
    return statement.lines.get(category=category, kind=kind).position
