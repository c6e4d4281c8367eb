"""Ending what a silent source left open, by a person's word (events.md, Sources).

Silence itself never ends or shortens a level. A person's word is a fact like any other: an event of the source
`/ledger/by-hand`, with a batch, a line and an entry in the audit trail, which a correction can withdraw.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import uuid4

from django.db import transaction
from django.utils import timezone

from ingest.core.unpack import NDJSON
from ingest.services.booking import Receipt, book_batch
from ingest.services.inbox import Body, accept_batch
from ledger.models import Source
from ledger.selectors.silence import OpenHolder, open_holders, silent_sources
from ledger.services.audit import Actor, record
from ledger.services.sources import SourceProblem, waive_silence

BY_HAND = "/ledger/by-hand"
DOOR = "by_hand"


@transaction.atomic
def end_holders(
    source_id: int,
    keys: Sequence[str] | None,
    ends_at: datetime,
    reason: str,
    by: Actor,
    *,
    now: datetime | None = None,
) -> Receipt:
    """Book that workloads (`pool/workload`; None: all of them) of a silent source hold nothing from `ends_at` on.

    When none of the source's holders is left open, its silence is answered for up to now.

    Raises:
        SourceProblem: `no_reason`; `not_silent`; `no_holders`; `unknown_holder`; `bad_instant`: in the future, or
            not after the level that it would end.
    """
    now = now or timezone.now()
    if not reason.strip():
        raise SourceProblem("no_reason", "give a reason")
    source = Source.objects.select_for_update(no_key=True).get(pk=source_id)
    if source.pk not in {silent.source.pk for silent in silent_sources(now)}:
        raise SourceProblem("not_silent", "this source is not silent: its own events end what it holds")
    chosen = _chosen(open_holders([source.pk], now).get(source.pk, []), keys)
    _check(chosen, ends_at, now)
    receipt = _book(chosen, ends_at, by)
    record(
        by,
        "end_holders",
        "source",
        str(source)[:200],
        before={"holders": [f"{one.key}: {one.milli_gpus} mGPU since {one.starts_at}" for one in chosen]},
        after={"ends_at": ends_at.isoformat(), "batch": receipt.batch},
        reason=reason.strip(),
    )
    if not open_holders([source.pk], now).get(source.pk):
        waive_silence(source.pk, now, reason, by)
    return receipt


def _chosen(holders: Sequence[OpenHolder], keys: Sequence[str] | None) -> list[OpenHolder]:
    if not holders:
        raise SourceProblem("no_holders", "nothing is held by the word of this source")
    by_key = {holder.key: holder for holder in holders}
    missing = [] if keys is None else [key for key in keys if key not in by_key]
    if missing or (keys is not None and not keys):
        raise SourceProblem("unknown_holder", f"it does not hold {', '.join(missing) or 'nothing'}")
    return list(holders) if keys is None else [by_key[key] for key in dict.fromkeys(keys)]


def _check(holders: Sequence[OpenHolder], ends_at: datetime, now: datetime) -> None:
    if ends_at > now:
        raise SourceProblem("bad_instant", "the end is in the future")
    for holder in holders:
        if ends_at <= holder.starts_at:
            raise SourceProblem(
                "bad_instant", f"{holder.key} holds its GPUs since {holder.starts_at.isoformat()} only"
            )


def _book(holders: Sequence[OpenHolder], ends_at: datetime, by: Actor) -> Receipt:
    # Retired from the start: nobody waits for the next word of a person.
    Source.objects.get_or_create(uri=BY_HAND, defaults={"retired_at": timezone.now()})
    deed = uuid4().hex
    lines = [_release(holder, ends_at, f"{deed}-{n}") for n, holder in enumerate(holders, 1)]
    content = "\n".join(json.dumps(line) for line in lines).encode()
    batch, _ = accept_batch(
        Body(content, NDJSON), door=DOOR, submitted_by=by.name[:150], idempotency_key=f"{DOOR}:{deed}"
    )
    receipt = book_batch(batch.pk)
    if receipt is None or receipt.booked != len(holders):
        raise SourceProblem("not_booked", f"batch {batch.pk} could not be booked")
    return receipt


def _release(holder: OpenHolder, ends_at: datetime, event_id: str) -> dict[str, Any]:
    kind, value = holder.identity_kind, holder.identity_value
    who = {kind: value} if kind in ("tenant", "service") else {"identity": {"kind": kind, "value": value}}
    data = {"workload": holder.workload, "pool": holder.pool, "gpus": 0, "attempt": holder.attempt, **who}
    return {
        "specversion": "1.0",
        "id": event_id,
        "source": BY_HAND,
        "type": "ledger.occupancy.v1",
        "time": ends_at.isoformat(),
        "data": data,
    }
