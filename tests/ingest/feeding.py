"""Small worlds and events for tests of ingest."""

from __future__ import annotations

import itertools
import json
from datetime import UTC, datetime
from typing import Any

from django.db import connection

from billing.services.configuration import apply_document
from ingest.services.booking import Receipt, book_batch
from ingest.services.inbox import Body, accept_batch

NDJSON = "application/x-ndjson"
SOURCE = "/clusters/bj-1/kueue"
_number = itertools.count(1)


def small_world() -> None:
    """Tenants acme and beta, pool bj-h100 of cluster bj, service chat of acme's."""
    apply_document(
        {
            "tenant": [{"slug": "acme"}, {"slug": "beta"}],
            "pool": [{"slug": "bj-h100", "cluster": "bj", "gpu_model": "H100"}],
            "service": [{"slug": "chat", "pool": "bj-h100", "owner": "acme"}],
            "policy": [{"valid_from": datetime(2020, 1, 1, tzinfo=UTC)}],
        },
        retroactive=True,
    )


def forget_days() -> None:
    """Drops the partitions that tests left which commit: empty days of months that this one's world does not have."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'ledger_request'::regclass"
        )
        for (name,) in cursor.fetchall():
            cursor.execute(f"DROP TABLE {name}")


def event(kind: str, event_id: str, time: str, **data: Any) -> dict[str, Any]:
    return {
        "specversion": "1.0",
        "id": event_id,
        "source": SOURCE,
        "type": f"ledger.{kind}.v1",
        "time": time,
        "data": data,
    }


def occupancy(event_id: str, time: str, gpus: Any, workload: str = "wl-1", **data: Any) -> dict[str, Any]:
    who = {} if {"tenant", "identity", "service"} & data.keys() else {"tenant": "acme"}
    return event("occupancy", event_id, time, workload=workload, pool="bj-h100", gpus=gpus, **who, **data)


def request(event_id: str, time: str, started_at: str, **data: Any) -> dict[str, Any]:
    needed = {
        "request": event_id,
        "pool": "bj-h100",
        "model": "qwen",
        "outcome": "ok",
        "started_at": started_at,
    }
    who = {} if {"tenant", "identity"} & data.keys() else {"tenant": "acme"}
    return event("request", event_id, time, **(needed | who | data))


def lines(*events: Any) -> bytes:
    """One per line; bytes stand for themselves."""
    return b"\n".join(one if isinstance(one, bytes) else json.dumps(one).encode() for one in events)


def deliver(*events: Any, content_type: str = NDJSON, encoding: str = "") -> Receipt:
    """Through the inbox and booked, as a delivery of its own even if the bytes came before."""
    return deliver_bytes(lines(*events), content_type, encoding)


def accepted(*events: Any) -> int:
    """In the inbox, as a delivery of its own, and not booked yet."""
    batch, _ = accept_batch(
        Body(lines(*events), NDJSON), door="test", submitted_by="test", idempotency_key=f"n{next(_number)}"
    )
    return int(batch.pk)


def deliver_bytes(content: bytes, content_type: str = NDJSON, encoding: str = "") -> Receipt:
    body = Body(content, content_type, encoding)
    batch, _ = accept_batch(body, door="test", submitted_by="test", idempotency_key=f"n{next(_number)}")
    receipt = book_batch(batch.pk)
    assert receipt is not None
    return receipt


# Tables of facts, with the columns that a delivery's place in a batch does not decide.
_FACTS = {
    "ledger_event": "e.type, e.occurred_at, e.content_hash, e.body",
    "ledger_level": (
        "pool_id, t.kind, t.subject, t.attempt, t.starts_at, t.ends_at, t.milli_gpus, t.requests, i.value, t.lendable,"
        " t.service_class, t.purpose, t.workload_kind, t.last_checkpoint_at, t.attributes"
    ),
    "ledger_subject": "pool_id, kind, subject, attempt, first_at, last_at, last_milli_gpus",
    "ledger_request": (
        "t.day, s.uri, t.event_id, t.content_hash, t.type, t.starts_at, t.ends_at, i.value, m.name, t.input_tokens,"
        " t.output_tokens, t.gpu_us, t.requests, t.attributes"
    ),
    "ledger_usagehour": (
        "t.hour, i.value, m.name, t.service_class, t.outcome, t.requests, t.input_tokens, t.input_missing,"
        " t.cached_input_tokens, t.output_tokens, t.output_missing, t.gpu_us, t.gpu_missing, t.concurrency_us"
    ),
    "ledger_preemptionreport": "t.cluster, t.preemption, t.decided_at, t.milli_gpus, t.cause, i.value",
    "ledger_resumereport": "t.cluster, t.preemption, t.resumed_at",
    "ledger_rejection": "t.occurred_at, i.value, t.layer, t.reason, t.status, t.count, t.pool_id",
    "ledger_quotalevel": (
        "t.starts_at, i.value, t.layer, t.resource, t.limit_milli, t.used_milli, t.pool_id, t.service_id"
    ),
    "ledger_quotastanding": "t.tenant_id, t.layer, t.resource, t.pool_id, t.limit_milli, t.used_milli, t.as_of",
    "ledger_correction": "t.corrected_at, t.supersedes_source, t.supersedes_event_id, t.reason",
    "ledger_source": "uri, watermark_at",
}
_JOINS = {
    "ledger_event": "ledger_event e",
    "ledger_level": "ledger_level t LEFT JOIN ledger_identity i ON i.id = t.identity_id",
    "ledger_request": (
        "ledger_request t JOIN ledger_source s ON s.id = t.source_id JOIN ledger_modelname m ON m.id = t.model_id"
        " LEFT JOIN ledger_identity i ON i.id = t.identity_id"
    ),
    "ledger_usagehour": (
        "ledger_usagehour t JOIN ledger_modelname m ON m.id = t.model_id"
        " LEFT JOIN ledger_identity i ON i.id = t.identity_id"
    ),
    "ledger_preemptionreport": (
        "ledger_preemptionreport t JOIN ledger_identity i ON i.id = t.victim_identity_id"
    ),
    "ledger_resumereport": "ledger_resumereport t",
    "ledger_rejection": "ledger_rejection t JOIN ledger_identity i ON i.id = t.identity_id",
    "ledger_quotalevel": "ledger_quotalevel t JOIN ledger_identity i ON i.id = t.identity_id",
    "ledger_quotastanding": "ledger_quotastanding t",
    "ledger_correction": "ledger_correction t",
}


def all_facts() -> dict[str, list[tuple[Any, ...]]]:
    """Every row of every table of facts, in an order of its own."""
    found = {}
    with connection.cursor() as cursor:
        for table, columns in _FACTS.items():
            cursor.execute(f"SELECT {columns} FROM {_JOINS.get(table, table)}")
            found[table] = sorted(cursor.fetchall(), key=repr)
    return found
