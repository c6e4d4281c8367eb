"""How many queries every page and every list of the API makes, as a golden file: `query_counts.json` beside this.

A count may not grow, neither with the code nor with the ledger: everything is asked of a small demo month and of one
with more tenants, workloads, preemptions, disputes and the like. After a change that needs more (or fewer) queries:

    LEDGER_UPDATE_GOLDEN=1 .venv/bin/python -m pytest -n 0 tests/billing/test_query_counts.py

writes the file anew; its difference belongs into the commit, with the reason.
"""

from __future__ import annotations

import io
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection, transaction
from django.db.models import QuerySet
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import URLPattern, URLResolver, get_resolver, reverse
from pytest_django.plugin import DjangoDbBlocker

from billing.models import (
    Alert,
    AlertSubscription,
    Budget,
    Dispute,
    PreemptionRecord,
    ReconciliationLine,
    Statement,
    StatementLine,
)
from billing.services.credits import request_credit
from billing.services.disputes import open_dispute
from ingest.services.booking import book_batch
from ingest.services.inbox import Body, accept_batch
from ledger.api.views import ListView
from ledger.models import ApiToken, Event, Period, Role, Tenant, User
from ledger.services.audit import Actor
from ledger.services.tokens import create_api_token
from tests.billing.page_books import verification_run
from tests.billing.test_views_access import RULES
from tests.fixtures.demo_month import MONTH

pytestmark = [pytest.mark.django_db, pytest.mark.postgres, pytest.mark.slow]

ANEW = "LEDGER_UPDATE_GOLDEN=1 .venv/bin/python -m pytest -n 0 tests/billing/test_query_counts.py"
GOLDEN = Path(__file__).with_name("query_counts.json")
# Both have a contract over tokens, and a research that preempts and is preempted: they differ in number, not in kind.
SMALLER = {"tenants": 7, "gpus": 128, "requests": 100, "seed": 2}
LARGER = {"tenants": 9, "gpus": 192, "requests": 250, "seed": 2}
SOME_MONTH = "2026-01"  # in which no budget of the demo stands
# Few and more of what the demo month itself has none of.
FEW, MORE = 2, 5
ANNA = Actor("anna", "request-1")
# Files are read through cursors of their own; and this one is a page of JavaScript.
NO_PAGES = {"billing:month-file", "billing:statement-file", "billing:statement-pdf", "api-docs"}
# What a list needs besides its window.
NEEDS = {"quota/remaining/": "tenant=research", "plan/": "tenant=research&pool=bj-h100&reservation=4"}
# This computes a whole month anew, and that looks one event up: what they ask is not asked by a page.
NOT_ASKED = {"periods/<str:month>/as-of/", "events/"}

Counts = dict[str, dict[str, int]]
Arguments = dict[str, dict[str, Any]]


def test_no_page_and_no_list_asks_more_than_it_did_whatever_the_size(
    django_db_setup: None, django_db_blocker: DjangoDbBlocker
) -> None:
    small, large = counts_of(SMALLER, FEW), counts_of(LARGER, MORE)
    assert different(small, large) == {}, "the count of queries grows with the ledger"
    if os.environ.get("LEDGER_UPDATE_GOLDEN"):
        GOLDEN.write_text(json.dumps(large, indent=1, sort_keys=True) + "\n")
    golden = json.loads(GOLDEN.read_text())
    assert {who: sorted(counts) for who, counts in golden.items()} == {
        who: sorted(counts) for who, counts in large.items()
    }, f"a page or a list is new or gone; {ANEW} writes query_counts.json anew"
    grown = {
        f"{who} {name}": (golden[who][name], count)
        for who, counts in large.items()
        for name, count in counts.items()
        if count > golden[who][name]
    }
    assert grown == {}, (
        f"more queries (before, now); if they are needed, {ANEW} writes query_counts.json anew"
    )


def different(small: Counts, large: Counts) -> dict[str, tuple[int, int]]:
    return {
        f"{who} {name}": (count, large[who][name])
        for who, counts in small.items()
        for name, count in counts.items()
        if count != large[who][name]
    }


def counts_of(size: dict[str, int], rows: int) -> Counts:
    """Asked of a ledger that is gone again afterwards."""
    with transaction.atomic():
        call_command("load_demo_month", MONTH, **size, stdout=io.StringIO(), stderr=io.StringIO())
        add_rows(rows)
        known = arguments()
        counts = {
            "finance": queries_of("finance", [*pages(known), *lists()]),
            "viewer": queries_of("viewer", tenant_pages(known)),
        }
        transaction.set_rollback(True)
    return counts


def queries_of(username: str, paths: Iterable[tuple[str, str]]) -> dict[str, int]:
    client, found = Client(), {}
    client.force_login(User.objects.get(username=username))
    for name, path in paths:
        client.get(path)  # what is remembered between requests is remembered now
        with CaptureQueriesContext(connection) as captured:
            response = client.get(path)
        assert response.status_code == 200, (path, response.status_code)
        found[name] = len(captured)
    return found


def add_rows(number: int) -> None:
    """Disputes, credits that wait, budgets, subscriptions, differences and quarantined events."""
    period = Period.objects.get(month=MONTH)
    statement = research()
    for line in disputable(statement)[:number]:
        open_dispute(line, "This was not ours.", ANNA)
    tenants = list(Tenant.objects.order_by("holder__slug")[:number])
    for place, tenant in enumerate(tenants):
        Budget.objects.create(tenant=tenant, month=SOME_MONTH, amount_micro=10**12)
        create_api_token(f"reads {place}", Role.TENANT_VIEWER, tenants=[tenant])
        request_credit(statement.tenant, period, 1_000_000 + place, "A gesture", ANNA)
        AlertSubscription.objects.create(
            name=f"pager {place}", channel="email", addresses=["a@example.com"], created_by="anna"
        )
        ReconciliationLine.objects.create(
            period=period, key=f"k{place}", kind="source_total", measure="preemptions", unit="count",
            source="kueue-bj", subject=f"wl-{place}", stated=3, booked=2, reconciled_at=period.ends_at,
        )  # fmt: skip
    for place in range(number):
        batch, _ = accept_batch(
            Body(b"{}\n" * (place + 1), "application/x-ndjson"), door="api", submitted_by="anna"
        )
        book_batch(batch.pk, wait=True)


def disputable(statement: Statement) -> QuerySet[StatementLine]:
    return statement.lines.filter(kind="usage", category="reserved_used").order_by("position")


def research() -> Statement:
    return Statement.objects.get(period=MONTH, tenant__holder__slug="research")


def pages(known: Arguments) -> Iterator[tuple[str, str]]:
    """Every page of the rules of access, as finance."""
    for name in sorted(set(RULES) - NO_PAGES - {"billing:home"}):
        yield name, reverse(name, kwargs=known.get(name, {})) + query(name)
    yield "billing:pool, by the minute", f"/pools/bj-h100/?zoom=day&at={MONTH}-10T00:00:00Z"


def query(name: str) -> str:
    """A page of a window is asked for the month, a form for an answer, the search for something that is there."""
    known = {
        **{f"billing:{page}": f"?window={MONTH}" for page in ("quota", "demand", "calibration")},
        "billing:budgets": f"?month={MONTH}",
        "billing:plan": "?tenant=research&pool=bj-h100&reservation=4",
        "billing:pool": f"?zoom=month&at={MONTH}-10T00:00:00Z",
        "billing:search": "?q=research",
    }
    return known.get(name, "")


def arguments() -> Arguments:
    statement = research()
    event = Event.objects.filter(event_id__contains="capacity").order_by("event_id")[0]
    of_statement = {"month": MONTH, "tenant": "research"}
    hit = PreemptionRecord.objects.filter(victim__slug="research", resumed_pool__isnull=False)
    # Of work that was hit once: other preemptions of the same work are one query more, however many.
    times = Counter(PreemptionRecord.objects.values_list("victim_workload", flat=True))
    first = next(one for one in hit.order_by("decided_at", "pk") if times[one.victim_workload] == 1)
    return {
        **{f"billing:month{page}": {"month": MONTH} for page in MONTH_PAGES},
        "billing:statement": of_statement,
        "billing:statement-line": {
            **of_statement,
            "position": disputable(statement)[0].position,
        },
        "billing:statement-dispute": {
            **of_statement,
            "dispute_id": Dispute.objects.filter(statement=statement).order_by("opened_at", "pk")[0].pk,
        },
        "billing:preemption": {"preemption_id": first.pk},
        "billing:workload": {"pool": first.pool.slug, "workload": first.victim_workload},
        "billing:alert": {"alert_id": Alert.objects.order_by("opened_at", "pk")[0].pk},
        "billing:pool": {"pool": "bj-h100"},
        "billing:verification": {"run_id": verification_run().pk},
        "billing:user": {"user_id": User.objects.get(username="viewer").pk},
        "billing:token": {"token_id": ApiToken.objects.order_by("pk")[0].pk},
        "ingest:batch": {"batch_id": event.booking.batch},
        "ingest:source": {"source_id": event.source_id},
        "ledger:event": {"source_id": event.source_id, "event_id": event.event_id},
    }


MONTH_PAGES = ("", "-closing", "-platform", "-lending", "-preemptions")


def tenant_pages(known: Arguments) -> Iterator[tuple[str, str]]:
    """What research looks at itself, with others under their aliases."""
    for name in (
        "months",
        "month-lending",
        "month-preemptions",
        "statement",
        "preemption",
        "quota",
        "demand",
    ):
        full = f"billing:{name}"
        yield full, reverse(full, kwargs=known.get(full, {})) + query(full)
    yield "billing:budgets", f"/budgets/?month={MONTH}"
    yield "billing:alerts", "/alerts/"
    yield "billing:rates", "/rates/"


def lists() -> Iterator[tuple[str, str]]:
    """Every list of the API that there is, found in the URL configuration."""
    statement = str(research().pk)
    for pattern, view in list_views():
        if pattern in NOT_ASKED:
            continue
        path = pattern.replace("<uuid:statement_id>", statement).replace("<str:month>", MONTH)
        assert "<" not in path, f"{pattern} takes an argument that this test has to learn"
        asked = [f"{name}={MONTH}" for name in ("window",) if name in view.parameters]
        yield (
            f"api/v1/{pattern}",
            f"/api/v1/{path}?" + "&".join([*asked, *filter(None, [NEEDS.get(pattern)])]),
        )


def list_views(
    patterns: list[URLPattern | URLResolver] | None = None, prefix: str = ""
) -> Iterator[tuple[str, type[ListView]]]:
    for entry in get_resolver().url_patterns if patterns is None else patterns:
        pattern = prefix + str(entry.pattern)
        if isinstance(entry, URLResolver):
            yield from list_views(entry.url_patterns, pattern)
            continue
        view = getattr(entry.callback, "cls", None)
        is_list = isinstance(view, type) and issubclass(view, ListView) and hasattr(view, "get")
        if is_list and pattern.endswith("/"):
            yield pattern.removeprefix("api/v1/"), view
