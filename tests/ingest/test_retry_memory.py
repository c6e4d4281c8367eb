"""A refused record that is tried again means what it meant among the others: imports and collectors remember them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.core.management import call_command

from ingest.collectors.contract import Harvest
from ingest.collectors.running import Claim, Plan, _keep
from ingest.models import AdapterMemory, Batch, QuarantinedEvent
from ingest.services.booking import book_batch
from ingest.services.memories import forget_memories
from ingest.services.retrying import dismiss_quarantine, retry_quarantine
from ingest.services.source_config import source_config
from ledger.models import Level, LevelKind, PreemptionReport, Source
from ledger.services.audit import SYSTEM, Actor
from tests.core.adapters.kueue_records import VICTIM, condition, workload
from tests.core.adapters.test_slurm import FIRST, HEADER, SECOND
from tests.ingest.feeding import small_world

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]


@pytest.fixture(autouse=True)
def world(db: None) -> None:
    small_world()


def configured(adapter: str, **config: Any) -> Source:
    return Source.objects.create(
        uri=f"/clusters/bj/{adapter}", name=adapter, adapter=adapter, config={"cluster": "bj"} | config
    )


def mended(source: Source, **config: Any) -> list[tuple[int, int]]:
    """(booked, quarantined) of each batch that a retry under another table gives."""
    source.refresh_from_db()
    source.config |= config
    source.save(update_fields=["config"])
    return [(one.booked, one.quarantined) for one in retry_quarantine(by="test")]


def levels(kind: LevelKind) -> list[tuple[str, int]]:
    rows = Level.objects.filter(kind=kind).order_by("starts_at", "subject", "pk")
    return [(f"{at:%d %H:%M}", milli) for at, milli in rows.values_list("starts_at", "milli_gpus")]


def imported(source: Source, tmp_path: Any, *lines: Any) -> None:
    file = tmp_path / "native"
    file.write_text("\n".join(one if isinstance(one, str) else json.dumps(one) for one in lines))
    call_command("import_events", str(file), source=source.name, verbosity=0)


def test_a_preempted_run_that_was_refused_came_back_all_the_same(tmp_path: Any) -> None:
    source = configured("slurm-sacct", pools={"gpu": "bj-h100"})
    imported(source, tmp_path, HEADER, FIRST.replace("|gpu|", "|scavenge|"), SECOND)
    assert QuarantinedEvent.objects.get().reason == "unmapped_pool"
    mended(source, pools={"gpu": "bj-h100", "scavenge": "bj-h100"})
    assert not QuarantinedEvent.objects.filter(resolved_at=None).exists()
    assert {one.disposition for one in PreemptionReport.objects.all()} == {None, "requeued"}


def node(name: str, resource: str) -> dict[str, Any]:
    ready = condition("Ready", "True", "KubeletReady", "2026-10-01T00:00:00Z")
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {}},
        "status": {"allocatable": {resource: "8"}, "conditions": [ready]},
    }


def test_a_node_that_was_refused_joins_the_others_of_its_pool(tmp_path: Any) -> None:
    source = configured("kube-pods", pool="bj-h100")
    imported(source, tmp_path, node("n1", "nvidia.com/gpu"), node("n2", "nvidia.com/gpu.shared"))
    assert levels(LevelKind.CAPACITY) == [("01 00:00", 8_000)]
    mended(source, options={"gpu_resources": {"nvidia.com/gpu.shared": 250}})
    assert [milli for _, milli in levels(LevelKind.CAPACITY)] == [8_000, 10_000]


def waiting() -> dict[str, Any]:
    pending = condition("QuotaReserved", "False", "Pending", "2026-09-01T08:59:00Z")
    return workload(VICTIM, [pending], admitted=False)


def stepped(source: Source, *lines: Any) -> list[tuple[int, int]]:
    """One step of a collector, an hour after what it saw."""
    source.refresh_from_db()
    source.state["claim"] = "mine"
    source.save(update_fields=["state"])
    config = source_config(source)
    plan = Plan(None, {}, source.state.get("adapter", {}), True)
    now_ms = 1_788_260_400_000  # 2026-09-01T11:00:00Z
    harvest = Harvest([json.dumps(one).encode() for one in lines], {}, now_ms, settled_ms=now_ms)
    step = _keep(source, config, Claim("mine", now_ms), plan, harvest, now_ms)
    receipts = [book_batch(batch) for batch in step.batches]
    return [(one.booked, one.quarantined) for one in receipts if one is not None]


def test_demand_that_was_refused_by_a_collector_ends_where_it_was_withdrawn() -> None:
    source = configured("kueue", pools={"h200": "bj-h100"})
    assert stepped(source, {"type": "ADDED", "object": waiting()}) == [(0, 1)]
    assert mended(source) == [(0, 1)], "what is still wrong stays"
    gone = {"type": "DELETED", "object": waiting(), "observed_at": "2026-09-01T10:00:00Z"}
    assert stepped(source, gone) == []
    assert mended(source, pools={"h200": "bj-h100", "lq-b": "bj-h100"}) == [(2, 0)]
    assert levels(LevelKind.PENDING) == [("01 08:59", 8_000), ("01 10:00", 0)]
    # The collector learns of it: what comes next is read with it, and what was booked is not booked again.
    source.refresh_from_db()
    assert len(source.state["retried"]) == 1
    stepped(source)
    source.refresh_from_db()
    assert source.state.get("retried") is None
    assert levels(LevelKind.PENDING) == [("01 08:59", 8_000), ("01 10:00", 0)]


def test_what_a_retry_read_is_in_the_collectors_memory_from_its_next_step_on() -> None:
    """A workload that was refused whole is preempted later: its preemption knows what it held, and since when."""
    from tests.core.adapters.kueue_records import evicting, released, running

    source = configured("kueue", pools={"other": "bj-h100"}, options={"pending": False})
    assert stepped(source, {"type": "ADDED", "object": running()}) == [(0, 1)]
    assert mended(source, pools={"h200": "bj-h100"}) == [(1, 0)]
    late = [{"type": "MODIFIED", "object": one} for one in (evicting(), released())]
    stepped(source)
    stepped(source, *late)
    reports = PreemptionReport.objects.exclude(admitted_at=None)
    told = {(f"{one.admitted_at:%H:%M}", one.milli_gpus) for one in reports}
    assert told == {("09:00", 8_000)}


def test_a_memory_goes_when_nothing_that_needs_it_waits(tmp_path: Any) -> None:
    source = configured("slurm-sacct", pools={"gpu": "bj-h100"})
    imported(source, tmp_path, HEADER, FIRST.replace("|gpu|", "|scavenge|"), SECOND)
    assert (AdapterMemory.objects.count(), forget_memories()) == (1, 0)
    mended(source)  # refused again, in a batch of its own that has the same memory
    assert (Batch.objects.filter(memory__isnull=False).count(), forget_memories()) == (2, 0)
    ids = list(QuarantinedEvent.objects.filter(resolved_at=None).values_list("pk", flat=True))
    dismiss_quarantine(Actor(SYSTEM), "a partition of a test", ids)
    assert (forget_memories(), AdapterMemory.objects.count()) == (1, 0)


def test_an_import_that_refuses_nothing_keeps_no_memory(tmp_path: Any) -> None:
    imported(configured("slurm-sacct", pools={"gpu": "bj-h100"}), tmp_path, HEADER, FIRST, SECOND)
    assert not AdapterMemory.objects.exists()
