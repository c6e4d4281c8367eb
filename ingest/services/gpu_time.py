"""GPU time of requests that state none, from their engines' busy time (inference.md section 6, formula B).

Where an engine source's options ask for it (`attribute_gpu_time`), each of its totals is divided over the requests of
its pool and model by calibrated tokens, and the shares are booked through the ordinary door as usage that names whose
they are. Their ids begin with `gpu-time/`: that is the evidence, and requests themselves stay as they were reported.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import msgspec
from django.db import connection, transaction

from ingest.core.gpu_time import Served, TokenWeights, window_shares
from ingest.core.unpack import NDJSON
from ingest.services.inbox import Body, accept_batch
from ingest.sql.gpu_time import ENGINE_WINDOWS, SERVED
from ledger.core import zstd
from ledger.core.periods import to_datetime, to_ms
from ledger.core.units import seconds_text
from ledger.models import Source
from ledger.selectors.corrections import void_facts

OPTION = "attribute_gpu_time"
DOOR = "gpu_time"
SETTLES_AFTER = timedelta(hours=1)
"""Requests of a window may come that much later; after it the window is divided once and for all."""


def sources_that_ask() -> list[Source]:
    rows = Source.objects.filter(retired_at__isnull=True).order_by("pk")
    return [source for source in rows if _table(source)]


def _table(source: Source) -> dict[str, Any]:
    """`attribute_gpu_time = {input = 1, output = 4}`, the weights of an uncached input and of an output token."""
    table = (source.config.get("options") or {}).get(OPTION)
    return table if isinstance(table, dict) else {}


@transaction.atomic
def attribute_gpu_time(source: Source, now: datetime) -> int | None:
    """Divide what the source's engines counted since the last time; the id of the batch, None if there was nothing.

    The place where it goes on is kept with the batch, both or neither, so that no window is divided twice. What no
    request of a window explains is left to the residual.
    """
    locked = Source.objects.select_for_update(no_key=True).get(pk=source.pk)
    table = _table(locked)
    weights = TokenWeights(int(table.get("input", 1)), int(table.get("output", 1)))
    until = now - SETTLES_AFTER
    since = to_datetime(locked.state.get("gpu_time_until_ms", to_ms(until - timedelta(days=31))))
    events = list(_events(locked, since, until, weights)) if since < until else []
    locked.state |= {"gpu_time_until_ms": max(to_ms(until), to_ms(since))}
    locked.save(update_fields=["state"])
    if not events:
        return None
    content = b"\n".join(msgspec.json.encode(event) for event in events)
    packed = zstd.compress(content, 3)
    batch, _ = accept_batch(
        Body(packed, NDJSON, "zstd"), door=DOOR, submitted_by=DOOR, origin=locked.name or locked.uri
    )
    return int(batch.pk)


def _events(
    source: Source, since: datetime, until: datetime, weights: TokenWeights
) -> Iterator[dict[str, Any]]:
    void = void_facts().parameters()
    windows = _rows(ENGINE_WINDOWS, {"source": source.pk, "since": since, "until": until, **void})
    stated_left: dict[tuple[Any, ...], int] = {}
    for event_id, starts_at, ends_at, pool_id, pool, model_id, model, service_id, gpu_us in windows:
        span = {"from": starts_at, "to": ends_at, "pool": pool_id, "model": model_id, "service": service_id}
        found = _rows(SERVED, {**span, **void})
        # What requests state themselves was counted by the engines too: it is taken off once, however many there are.
        window = tuple(span.values())
        left = stated_left.setdefault(window, _stated(found, starts_at, ends_at))
        taken = min(left, int(gpu_us))
        stated_left[window] = left - taken
        silent = [row for row in found if row[7] is None]
        whose = {f"{row[0]} {row[1]}": tuple(row[8:]) for row in silent}
        served = [Served(f"{row[0]} {row[1]}", to_ms(row[2]), to_ms(row[3]), *row[4:7]) for row in silent]
        shares = window_shares(int(gpu_us) - taken, (to_ms(starts_at), to_ms(ends_at)), served, weights)
        sums: dict[tuple[str, ...], int] = defaultdict(int)
        for request, share in shares.by_request.items():
            sums[whose[request]] += share
        about = {
            "pool": pool,
            "model": model,
            "starts_at": starts_at.isoformat(),
            "ends_at": ends_at.isoformat(),
        }
        for (kind, value, service), share in sorted(sums.items()):
            if share:
                name = f"gpu-time/{event_id}/{kind}:{value}/{service}"
                yield _usage(source, name, about, (kind, value), service, share)


def _stated(found: list[tuple[Any, ...]], starts_at: datetime, ends_at: datetime) -> int:
    """GPU time that requests which finished in the window state."""
    return sum(int(row[7] or 0) for row in found if starts_at <= row[3] < ends_at)


def _usage(
    source: Source, name: str, about: dict[str, Any], who: tuple[str, str], service: str, gpu_us: int
) -> dict[str, Any]:
    """GPU time alone: its tokens were counted with the requests."""
    kind, value = who
    counts = {"requests": 0, "input_tokens": 0, "cached_input_tokens": 0, "output_tokens": 0}
    data = {"usage": name, **about, **counts, "gpu_seconds": seconds_text(gpu_us)}
    data |= {"tenant": value} if kind == "tenant" else {"identity": {"kind": kind, "value": value}}
    data |= {"service": service} if service else {}
    return {
        "specversion": "1.0",
        "id": name,
        "source": source.uri,
        "type": "ledger.usage.v1",
        "time": about["ends_at"],
        "data": data,
    }


def _rows(statement: str, parameters: dict[str, Any]) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)
        return list(cursor.fetchall())
