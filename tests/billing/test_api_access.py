"""Every operation that the URL configuration serves under /api/v1/, asked for by everybody, by token and by session.

An operation without a rule fails. Answers of 401, 403 and 404 are refusals; what is wrong with a body is not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction
from django.urls import URLResolver, get_resolver
from django.utils import timezone
from rest_framework.test import APIClient

from billing.models import (
    AlertRule,
    AlertSubscription,
    Approval,
    ApprovalKind,
    Budget,
    CloseRun,
    EffectRun,
    RateCard,
)
from billing.services.disputes import open_dispute
from ledger.models import ApiToken, Membership, Period, Role, Source, Tenant, User
from ledger.services.audit import Actor
from ledger.services.tokens import create_api_token
from tests.billing.page_books import MONTH, Books, alert_of_acme, make_books
from tests.billing.test_api_conventions import needed
from tests.fixtures.made_once import made_once

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]

METHODS = ("get", "post", "put", "patch", "delete")
# Who asks: role, and the tenant of a tenant role.
ASKERS: dict[str, tuple[Role, str]] = {
    "finance": (Role.FINANCE, ""),
    "platform": (Role.PLATFORM, ""),
    "auditor": (Role.AUDITOR, ""),
    "admin": (Role.TENANT_ADMIN, "acme"),
    "viewer": (Role.TENANT_VIEWER, "acme"),
    "stranger": (Role.TENANT_ADMIN, "delta"),
    "ingest": (Role.INGEST, ""),
}
FINANCE = frozenset({"finance"})
FINANCE_AND_AUDIT = FINANCE | {"auditor"}
TENDERS = FINANCE | {"platform"}
RUNNERS = TENDERS | {"auditor"}
ACME = frozenset({"admin", "viewer"})
OF_ACME = RUNNERS | ACME
ADMINS = TENDERS | {"admin"}
SENDERS = frozenset({"platform", "ingest"})
EVERYBODY = OF_ACME | {"stranger"}

# Route -> method -> who gets an answer.
RULES: dict[str, dict[str, frozenset[str]]] = {
    "events": {"get": RUNNERS, "post": SENDERS},
    "": {"get": RUNNERS, "post": SENDERS},  # events without the slash
    "batches": {"get": RUNNERS | {"ingest"}},
    "batch-detail": {"get": RUNNERS},
    "facts": {"get": EVERYBODY},
    "sources": {"get": RUNNERS},
    "source-detail": {"get": RUNNERS},
    "source-complete-until": {"post": TENDERS},
    "source-waive-silence": {"post": TENDERS},
    "source-end-holders": {"post": TENDERS},
    "quarantine": {"get": RUNNERS},
    "quarantine-retry": {"post": TENDERS},
    "quarantine-dismiss": {"post": TENDERS},
    "identities": {"get": RUNNERS, "post": TENDERS},
    "identities-unmapped": {"get": RUNNERS},
    "api-allocations": {"get": EVERYBODY},
    "api-alerts": {"get": EVERYBODY},
    "api-alert": {"get": OF_ACME},
    "api-alert-acknowledge": {"post": TENDERS},
    "api-alert-resolve": {"post": TENDERS},
    "api-alert-rules": {"get": EVERYBODY, "post": TENDERS},
    "api-alert-rule": {"patch": TENDERS},
    "api-alert-subscriptions": {"get": EVERYBODY, "post": ADMINS | {"stranger"}},
    "api-alert-subscription": {"patch": ADMINS},
    "api-requeued": {"get": EVERYBODY},
    "api-preemptions": {"get": EVERYBODY},
    "api-preemption-matrix": {"get": EVERYBODY},
    "api-preemption-balance": {"get": RUNNERS},
    "api-episodes": {"get": RUNNERS},
    "api-preemption": {"get": OF_ACME},
    "api-statements": {"get": EVERYBODY},
    "api-statement": {"get": OF_ACME},
    "api-statement-lines": {"get": OF_ACME},
    "api-statement-preemptions": {"get": OF_ACME},
    "api-statement-changes": {"get": OF_ACME},
    "api-statement-proofs": {"get": OF_ACME},
    "api-statement-borne": {"get": OF_ACME},
    "api-bill-csv": {"get": OF_ACME},
    "api-usage-csv": {"get": OF_ACME},
    "api-preemptions-csv": {"get": OF_ACME},
    "api-focus-1-2-csv": {"get": OF_ACME},
    "api-focus-1-4-csv": {"get": OF_ACME},
    "api-focus-billing-period-csv": {"get": OF_ACME},
    "api-focus-invoice-detail-csv": {"get": OF_ACME},
    "api-statement-pdf": {"get": OF_ACME},
    "api-statement-sha256": {"get": OF_ACME},
    "api-headroom": {"get": EVERYBODY},
    "api-shortages": {"get": EVERYBODY},
    "api-reservations": {"get": EVERYBODY},
    "api-reservation-utilization": {"get": EVERYBODY},
    "api-lending": {"get": EVERYBODY},
    "api-demand": {"get": EVERYBODY},
    "api-rejections": {"get": EVERYBODY},
    "api-quota": {"get": EVERYBODY},
    "api-quota-drift": {"get": EVERYBODY},
    "api-quota-remaining": {"get": EVERYBODY},
    "api-budgets": {"get": EVERYBODY, "post": FINANCE | {"admin"}},
    "api-budget": {"delete": FINANCE | {"admin"}},
    "api-forecast": {"get": EVERYBODY},
    "api-plan": {"get": OF_ACME},
    "api-usage-tokens": {"get": EVERYBODY},
    "api-usage-residuals": {"get": RUNNERS},
    "api-period-reconciliation": {"get": RUNNERS},
    "api-period-explain": {"post": TENDERS},
    "api-period-quotas-sold": {"get": RUNNERS},
    "api-tenants": {"get": EVERYBODY, "post": FINANCE},
    "api-pools": {"get": EVERYBODY, "post": TENDERS},
    "api-services": {"get": EVERYBODY, "post": FINANCE},
    "api-periods": {"get": EVERYBODY},
    "api-period-review": {"post": FINANCE},
    "api-period-checklist": {"get": RUNNERS},
    "api-period-close": {"get": RUNNERS, "post": FINANCE},
    "api-period-as-of": {"get": EVERYBODY},
    "api-bills-zip": {"get": FINANCE_AND_AUDIT},
    "api-month-focus-1-2-csv": {"get": EVERYBODY},
    "api-month-focus-1-4-csv": {"get": EVERYBODY},
    "api-month-focus-billing-period-csv": {"get": EVERYBODY},
    "api-month-focus-invoice-detail-csv": {"get": EVERYBODY},
    "api-month-sha256": {"get": EVERYBODY},
    "api-journal-csv": {"get": RUNNERS},
    "api-journal-beancount": {"get": RUNNERS},
    "api-statement-approve": {"post": FINANCE},
    "api-statement-disputes": {"get": OF_ACME, "post": ACME},
    "api-disputes": {"get": EVERYBODY},
    "api-dispute-resolve": {"post": FINANCE},
    "api-adjustments": {"post": FINANCE},
    "api-approvals": {"get": FINANCE_AND_AUDIT},
    "api-approval-decide": {"post": FINANCE},
    "api-rate-cards": {"get": EVERYBODY, "post": FINANCE},
    "api-rate-cards-end": {"post": FINANCE},
    "api-pool-costs": {"get": RUNNERS, "post": FINANCE},
    "api-pool-costs-end": {"post": FINANCE},
    "api-contracts-end": {"post": FINANCE},
    "api-policies-end": {"post": FINANCE},
    "api-calibrations-end": {"post": FINANCE},
    "api-service-policies": {"get": EVERYBODY},
    "api-service-policies-end": {"post": FINANCE},
    "api-contracts": {"get": EVERYBODY, "post": FINANCE},
    "api-policies-compare": {"post": RUNNERS},
    "api-policies-comparison": {"get": RUNNERS},
    "api-policies": {"get": EVERYBODY, "post": FINANCE},
    "api-calibrations-deviation": {"get": RUNNERS},
    "api-calibrations-refits": {"get": RUNNERS},
    "api-calibrations-accept": {"post": FINANCE},
    "api-calibrations": {"get": EVERYBODY, "post": FINANCE},
}
# Where an empty body is judged before who sends it.
BODIES: dict[str, dict[str, str]] = {"api-budgets": {"tenant": "acme", "amount": "1"}}
REFUSALS = frozenset({401, 403, 404})


@dataclass(frozen=True)
class Operation:
    method: str
    pattern: str
    route: str
    view: Any


def operations(patterns: Any = None, prefix: str = "") -> Iterator[Operation]:
    for entry in get_resolver().url_patterns if patterns is None else patterns:
        pattern = prefix + str(entry.pattern)
        if isinstance(entry, URLResolver):
            yield from operations(entry.url_patterns, pattern)
        elif pattern.startswith("api/v1/") and entry.name != "schema":
            view = entry.callback.view_class
            for method in METHODS:
                if hasattr(view, method):
                    yield Operation(method, "/" + pattern, entry.name or "", view)


OPERATIONS = list(operations())


@made_once
def things() -> dict[str, str]:
    """Parts of paths -> something that is there, of acme where it is anybody's."""
    books: Books = make_books()
    acme = Tenant.objects.get(holder__slug="acme")
    statement = books.statement("acme")
    budget = Budget.objects.create(tenant=acme, month="", amount_micro=10**6)
    told = AlertSubscription.objects.create(
        name="acme's", tenant=acme, channel="email", addresses=["a@b.example"]
    )
    alert = alert_of_acme(books.pool)
    period = Period.objects.get(month=MONTH)
    CloseRun.objects.create(period=period, requested_by="finance", state="blocked")
    waiting = Approval.objects.create(
        kind=ApprovalKind.OVERRIDE, payload={"month": MONTH}, reason="late", requested_by="another"
    )
    compared = EffectRun.objects.create(period=period, asked={"policies": {}}, requested_by="finance")
    dispute = open_dispute(statement.lines.get(position=1), "too much", Actor("viewer", ""))
    return {
        "<uuid:statement_id>": str(statement.pk),
        "<uuid:preemption_id>": str(books.record.pk),
        "<uuid:alert_id>": str(alert.pk),
        "<uuid:dispute_id>": str(dispute.pk),
        "<uuid:budget_id>": str(budget.pk),
        "<uuid:subscription_id>": str(told.pk),
        "<uuid:approval_id>": str(waiting.pk),
        "<str:month>/<str:name>.csv": f"{MONTH}/focus-1.2.csv",
        "<str:month>": MONTH,
        "<int:batch_id>": str(books.batch.pk),
        "<int:comparison_id>": str(compared.pk),
        "<int:version_id>": str(RateCard.objects.values_list("pk", flat=True)[0]),
        "rules/<str:name>": f"rules/{AlertRule.objects.get().name}",
        "sources/<str:name>": f"sources/{Source.objects.order_by('pk').first().pk}",
        "<str:name>": "bill",
    }


def address(pattern: str, things: dict[str, str]) -> str:
    for part, value in things.items():
        pattern = pattern.replace(part, value)
    assert "<" not in pattern, f"{pattern}: name a thing that is there"
    return pattern


def by_token(name: str, **options: Any) -> APIClient:
    role, slug = ASKERS[name]
    _, secret = create_api_token(
        name, role, tenants=list(Tenant.objects.filter(holder__slug=slug)), **options
    )
    api = APIClient()
    api.credentials(HTTP_AUTHORIZATION=f"Bearer {secret}")
    return api


def by_session(name: str) -> APIClient:
    user = User.objects.create_user(f"user-{name}", password="x")
    role, slug = ASKERS[name]
    Membership.objects.create(user=user, role=role, tenant=Tenant.objects.filter(holder__slug=slug).first())
    api = APIClient()
    api.force_login(user)
    return api


def answer(api: APIClient, operation: Operation, path: str) -> int:
    """The status; what was written is taken back."""
    asked: Any = needed(operation.view) if operation.method == "get" else BODIES.get(operation.route, {})
    form = {} if operation.method == "get" else {"format": "json"}
    with transaction.atomic():
        status = getattr(api, operation.method)(path, asked, **form).status_code
        transaction.set_rollback(True)
    return int(status)


def test_every_operation_has_a_rule_and_every_rule_an_operation() -> None:
    served = {(one.route, one.method) for one in OPERATIONS}
    assert served == {(route, method) for route, methods in RULES.items() for method in methods}
    assert len(served) > 100


@pytest.mark.slow
def test_everybody_gets_what_the_rule_says_by_token_and_by_session(things: dict[str, str]) -> None:
    clients = [(name, by_token(name)) for name in ASKERS]
    clients += [(name, by_session(name)) for name in ("finance", "auditor", "viewer", "stranger")]
    wrong = []
    for one in OPERATIONS:
        for name, api in clients:
            status = answer(api, one, address(one.pattern, things))
            if (status not in REFUSALS) != (name in RULES[one.route][one.method]) or status >= 500:
                wrong.append((one.method, one.pattern, name, status))
    assert wrong == []


def test_who_is_nobody_gets_nothing(things: dict[str, str]) -> None:
    """Unknown, a token that ended in whatever way, one of no tenant any more, and a user without a role."""
    expired = by_token("finance", expires_at=timezone.now() - timedelta(seconds=1))
    revoked = by_token("finance")
    ApiToken.objects.filter(pk=ApiToken.objects.order_by("-pk").values("pk")[:1]).update(
        revoked_at=timezone.now()
    )
    forged = APIClient()
    forged.credentials(HTTP_AUTHORIZATION="Bearer gl_0000")
    inactive = by_session("finance")
    User.objects.filter(username="user-finance").update(is_active=False)
    for who, api in {
        "unknown": APIClient(),
        "expired": expired,
        "revoked": revoked,
        "forged": forged,
        "inactive": inactive,
    }.items():
        wrong = [
            (who, one.method, one.pattern)
            for one in OPERATIONS
            if answer(api, one, address(one.pattern, things)) != 401
        ]
        assert wrong == []
    without_role = APIClient()
    without_role.force_login(User.objects.create_user("nobody", password="x"))
    of_no_tenant = by_token("viewer")
    ApiToken.objects.get(name="viewer").tenants.clear()
    for api in (without_role, of_no_tenant):
        wrong = [
            (one.method, one.pattern, status)
            for one in OPERATIONS
            if (status := answer(api, one, address(one.pattern, things))) != 403
        ]
        assert wrong == []
