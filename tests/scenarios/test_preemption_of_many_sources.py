"""One preemption told by everybody who knows of it is one record with all references (events.md,
"preemption"): Kueue's two events on the victim, the one on the preemptor, the job's copy, and the conditions of the
object at each look. From the native records to the books, in any order and cut into deliveries at will.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import transaction

from billing.models import PreemptionRecord
from billing.services.months import compute_month
from ledger.core.periods import Month
from tests.core.adapters.kueue_records import (
    DECIDED,
    MESSAGE,
    MESSAGES,
    PREEMPTOR,
    RELEASED,
    RESUMED,
    VICTIM,
    VICTIM_JOB,
    evicting,
    new_event,
    preemptor,
    released,
    resumed,
    reverse_event,
    running,
)
from tests.core.adapters.running import events_of, run
from tests.ingest.feeding import deliver
from tests.scenarios.golden import policy, terms

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]

MONTH = Month(2026, 9)
RECORDS = [
    preemptor(),
    running(),
    evicting(),
    released(),
    resumed(),
    new_event("EvictedDueToPreempted", MESSAGE, uid="e0"),
    new_event("Preempted", MESSAGES["0.17"], uid="e1"),
    reverse_event(),
    new_event(
        "Stopped", MESSAGE, uid="e4", regarding={"kind": "Job", "uid": VICTIM_JOB, "namespace": "team-b"}
    ),
]


@pytest.fixture
def cluster() -> None:
    terms(
        tenant=[
            {"slug": slug, "identities": [{"kind": "k8s_namespace", "value": namespace}]}
            for slug, namespace in (("acme", "team-a"), ("beta", "team-b"))
        ],
        pool=[{"slug": "p1", "cluster": "c1", "gpu_model": "H200"}],
    )
    policy()


def books(records: Sequence[Any], cuts: int) -> list[dict[str, Any]]:
    """Every record of the month after these deliveries, without what tells how often something was told."""
    events = events_of(run("kueue", records))
    deliver(*events[:cuts])
    deliver(*events[cuts:])
    deliver(*events)
    compute_month(MONTH, horizon=datetime(2026, 9, 2, tzinfo=UTC))
    rows = list(PreemptionRecord.objects.values())
    told = {event["id"] for event in events if event["type"] in ("ledger.preemption.v1", "ledger.resume.v1")}
    for row in rows:
        assert {ref_id for _, ref_id in row["events"]} == told
    return [
        {name: value for name, value in row.items() if name not in ("events", "computed_at")} for row in rows
    ]


def test_whatever_the_order_it_is_one_record_with_all_references(cluster: None) -> None:
    orders = [
        RECORDS,
        RECORDS[::-1],
        *(random.Random(seed).sample(RECORDS, len(RECORDS)) for seed in range(8)),
    ]
    expected: list[dict[str, Any]] = []
    for number, order in enumerate(orders):
        with transaction.atomic():
            found = books(order, number)
            transaction.set_rollback(True)
        expected = expected or found
        assert found == expected
    (record,) = expected
    assert (record["preemption"], record["cluster"]) == (f"{VICTIM}/{DECIDED}", "c1")
    assert (record["victim_workload"], record["preemptor_workload"]) == (VICTIM, PREEMPTOR)
    assert (record["cause"], record["milli_gpus"]) == ("reclaim_own_reservation", 8000)
    instants = [record[name].strftime("%FT%TZ") for name in ("decided_at", "released_at", "resumed_at")]
    assert instants == [DECIDED, RELEASED, RESUMED]
