"""A month's evidence as one archive that anybody can check without the ledger (domain.md section 11)."""

from __future__ import annotations

import gzip
import hashlib
import json
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from django.core.serializers.json import DjangoJSONEncoder
from django.db import connection
from django.db.models import QuerySet

from billing import models as billing
from billing.core.checklist import Item
from billing.exports.zip_stream import ZipStream
from billing.models import AnnexName, Statement, StatementAnnex, StatementState
from billing.selectors.annexes import annex_pieces, annex_rows
from billing.selectors.checklist import month_checklist
from billing.selectors.undated import undated_terms
from billing.selectors.usage_rows import COLUMNS as USAGE
from billing.sql.exports import LEVELS_IN_A_SLOT
from ledger.core.periods import to_ms
from ledger.core.sentences import spelled_out
from ledger.inbox import RawBatch, raw_batches
from ledger.models import AuditEntry, Period

SAMPLE_LINES = 20
CHECKER = Path(__file__).with_name("check_evidence.py")
_POLICIES = (billing.Policy, billing.ServicePolicy, billing.Contract, billing.Calibration)
_RATES = (billing.RateCard, billing.GpuPrice, billing.TokenPrice, billing.PoolCost)


def evidence_zip(period: Period, seed: int, lines: int = SAMPLE_LINES) -> Iterator[bytes]:
    """The archive, piece by piece; the same bytes for the same books and seed. `period` is closed."""
    stream = ZipStream()
    sums: dict[str, str] = {}
    for path, pieces in _files(period, seed, lines):
        digest = hashlib.sha256()
        yield from stream.file(path, _hashed(pieces, digest))
        sums[path] = digest.hexdigest()
    listed = "".join(f"{sha256}  {path}\n" for path, sha256 in sums.items())
    yield from stream.file("SHA256SUMS", iter([listed.encode()]))
    yield stream.end()


def _hashed(pieces: Iterable[bytes], digest: Any) -> Iterator[bytes]:
    for piece in pieces:
        digest.update(piece)
        yield piece


def _files(period: Period, seed: int, lines: int) -> Iterator[tuple[str, Iterable[bytes]]]:
    yield "check.py", [CHECKER.read_bytes()]
    yield "month.json", [_json(_month(period, seed))]
    for statement in _statements(period):
        folder = f"statements/{statement.tenant.slug}"
        yield f"{folder}/statement.json", [_json(_sealed(statement) | {"content": statement.content})]
        for annex in StatementAnnex.objects.filter(statement=statement).order_by("name"):
            yield f"{folder}/{annex.name}.csv", annex_pieces(annex)
    issued = Statement.objects.filter(state=StatementState.ISSUED, period__lte=period.month).defer("content")
    ordered = issued.select_related("tenant__holder").order_by("period", "tenant__holder__slug")
    yield "chain.json", [_json([_sealed(one) | {"month": one.period_id} for one in ordered])]
    yield "policies.json", [_json({model.__name__: _rows(model.objects.all()) for model in _POLICIES})]
    yield "rates.json", [_json({model.__name__: _rows(model.objects.all()) for model in _RATES})]
    yield "checklist.json", [_json(_checklist(period))]
    yield "approvals.json", [_json(_approvals(period))]
    yield "audit.json", [_json(_rows(AuditEntry.objects.order_by("pk")))]
    yield from _sample_files(period, seed, lines)


def _statements(period: Period) -> Iterator[Statement]:
    rows = Statement.objects.filter(period=period, state=StatementState.ISSUED).select_related(
        "tenant__holder"
    )
    return rows.order_by("tenant__holder__slug").iterator(chunk_size=20)


def _sealed(statement: Statement) -> dict[str, str]:
    return {
        "number": statement.number,
        "tenant": statement.tenant.slug,
        "sha256": statement.sha256,
        "previous_of_tenant": statement.previous_of_tenant,
        "previous_of_ledger": statement.previous_of_ledger,
    }


def _month(period: Period, seed: int) -> dict[str, Any]:
    undated = undated_terms()
    closed_with = undated.at(to_ms(period.starts_at))
    return {
        "month": period.month,
        "starts_at": period.starts_at,
        "ends_at": period.ends_at,
        "closed_at": period.closed_at,
        "cut_sequence": period.cut_sequence,
        "time_zone": undated.zone,
        "currency": closed_with.currency,
        "mode": closed_with.mode,
        "seed_of_the_sample": seed,
    }


def _checklist(period: Period) -> dict[str, Any]:
    """As it is now, and how the closes of the month went."""
    runs = billing.CloseRun.objects.filter(period=period).order_by("pk")
    return {"items": [_item(item) for item in month_checklist(period)], "closes": _rows(runs)}


def _item(item: Item) -> dict[str, Any]:
    evidence = [one.kept() for one in item.evidence]
    return {**asdict(item), "title": str(item.title), **spelled_out({"evidence": evidence})}


def _approvals(period: Period) -> dict[str, Any]:
    return {
        "statements": _rows(
            billing.StatementApproval.objects.filter(statement__period=period).order_by("pk")
        ),
        "overrides": _rows(billing.ChecklistWaiver.objects.filter(period=period).order_by("pk")),
        "second_person": _rows(billing.Approval.objects.order_by("requested_at", "pk")),
    }


def _rows(rows: QuerySet[Any]) -> list[dict[str, Any]]:
    ordered = rows if rows.query.order_by else rows.order_by("pk")
    return [spelled_out(row) for row in ordered.values()]


def _json(value: Any) -> bytes:
    return json.dumps(value, cls=DjangoJSONEncoder, ensure_ascii=False, indent=1).encode()


# A random sample of what bills rest on, from the slot down to the bytes that came in.


def _sample_files(period: Period, seed: int, lines: int) -> Iterator[tuple[str, Iterable[bytes]]]:
    sample: list[Any] = [{"usage": row, "events": _events_of(row)} for row in _chosen(period, seed, lines)]
    ids = {event["batch"] for row in sample for event in row["events"]}
    batches: list[dict[str, Any]] = []
    said: set[tuple[int, str]] = set()
    for batch in raw_batches(ids):
        kept = batch.body is not None
        batches.append({"id": batch.id, "sha256": batch.sha256, "adapter": batch.adapter, "kept": kept})
        plain = _plain(batch)
        for row in sample:
            for event in row["events"]:
                if event["batch"] == batch.id and json.dumps(event["id"]).encode() in plain:
                    said.add((batch.id, event["id"]))
        if batch.body is not None:
            yield f"raw/{batch.id}", [batch.body]
    for row in sample:
        for event in row["events"]:
            event["said"] = (event["batch"], event["id"]) in said
    yield "batches.json", [_json(batches)]
    yield "sample.json", [_json(sample)]


def _plain(batch: RawBatch) -> bytes:
    body = batch.body or b""
    return gzip.decompress(body) if body.startswith(b"\x1f\x8b") else body


def _chosen(period: Period, seed: int, count: int) -> list[dict[str, str]]:
    """`count` rows of the month's usage files, each as likely as any other; read once, in order."""
    chance = random.Random(seed)
    kept: list[dict[str, str]] = []
    annexes = StatementAnnex.objects.filter(statement__period=period, name=AnnexName.USAGE)
    number = 0
    for annex in annexes.order_by("statement__number").iterator(chunk_size=1):
        for row in annex_rows(annex):
            number += 1
            place = number - 1 if number <= count else chance.randrange(number)
            if place < count:
                kept[place : place + 1] = [dict(zip(USAGE, row, strict=True))]
    return sorted(kept, key=lambda row: tuple(row.values()))


def _events_of(row: Mapping[str, str]) -> list[dict[str, Any]]:
    """The levels in force or set in the slot: the pool's capacity, and what its holder reserved and held."""
    with connection.cursor() as cursor:
        cursor.execute(
            LEVELS_IN_A_SLOT,
            {"at": row["hour"], "pool": row["pool"], "holder": row["service"] or row["tenant"]},
        )
        names = ("source", "id", "batch", "line", "kind", "subject", "starts_at", "milli_gpus", "event")
        return [dict(zip(names, found, strict=True)) for found in cursor.fetchall()]
