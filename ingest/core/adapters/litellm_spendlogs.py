"""`litellm-spendlogs`: rows of `LiteLLM_SpendLogs` as JSON -> requests and refusals (inference.md 4.1).

The id is `litellm_call_id`: the table's own key is the provider's response id, which providers reuse. A billed
retry is a row of its own with `-attempt-<n>` behind its id; it belongs to the logical request without that.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec

from ingest.core.adapters.base import Notice, Outcome, Refusal, SourceConfig, State
from ingest.core.adapters.json_records import JsonRecord
from ingest.core.adapters.litellm import (
    FLAT_COST_KEY,
    Call,
    Models,
    failure_outcome,
    preemption,
    rejection,
    spend_notice,
    tokens_of,
    verdict_of,
    who_asked,
)
from ingest.core.adapters.native import (
    Obj,
    as_object,
    child,
    count_of,
    first_text,
    native_ms,
    needed,
    read_each,
    text_of,
)
from ingest.core.adapters.refusal_reasons import ThrownOut, TurnedAway, Verdict
from ingest.core.adapters.request_record import (
    Tokens,
    model_of,
    request_event,
)

_ATTEMPT = re.compile(r"(.+)-attempt-(\d{1,6})\Z", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row(Call):
    row: Obj
    metadata: Obj
    parent: str | None
    attempt: int
    cache_hit: bool


def adapt(lines: Iterable[bytes], source: SourceConfig, state: State | None) -> Iterator[Outcome]:
    """Rows as JSON, one per line (`SELECT row_to_json(...)`), with the column names of the table."""
    return read_each(lines, lambda record: _record(record, source))


def _record(record: JsonRecord, source: SourceConfig) -> Iterator[Outcome]:
    values = as_object(record.value, "the row")
    if values.get("api_key") == FLAT_COST_KEY:
        detail = "a flat charge for provisioned capacity; configure it as a reservation, it is no request"
        yield Notice(record.position, "flat_cost_row", detail, text_of(values.get("model")) or "")
        return
    row = _row(values, source)
    verdict = verdict_of(row.error) if row.failed else None
    if isinstance(verdict, TurnedAway):
        at = values.get("endTime") or values.get("startTime")
        yield rejection(row, verdict, native_ms(at, source), source)
        return
    yield _request(row, verdict, source)
    if isinstance(verdict, ThrownOut):
        ended_ms = native_ms(values.get("endTime"), source)
        yield preemption(row, verdict, ended_ms, source, row.attempt)
    notice = spend_notice(record, row.id, values.get("spend"), child(row.metadata, "cost_breakdown"))
    if notice is not None:
        yield notice


def _row(values: Obj, source: SourceConfig) -> _Row:
    metadata = _json_column(values, "metadata")
    call_id = needed(
        first_text(values.get("litellm_call_id"), values.get("request_id")), "litellm_call_id or request_id"
    )
    retry = _ATTEMPT.match(call_id) if metadata.get("billed_retry_attempt") is True else None
    retried = count_of(metadata.get("attempted_retries"))
    return _Row(
        row=values,
        metadata=metadata,
        error=child(metadata, "error_information"),
        id=call_id,
        parent=retry[1] if retry else None,
        attempt=int(retry[2]) if retry else 1 + (retried or 0),
        belongs_to=who_asked(source, values.get("team_id"), values.get("api_key"), values.get("user")),
        models=Models.of(values),
        failed="failure" in (values.get("status"), metadata.get("status")),
        cache_hit=values.get("cache_hit") in ("True", "true", True),
    )


def _request(row: _Row, verdict: Verdict | None, source: SourceConfig) -> Outcome:
    return request_event(
        source,
        request=row.id,
        event_id=row.id,
        parent_request=row.parent,
        attempt=row.attempt,
        model=model_of(source, *row.models.rated(source)),
        pool_names=row.models.for_pool(),
        started_ms=native_ms(row.row.get("startTime"), source),
        finished_ms=native_ms(row.row.get("endTime"), source),
        belongs_to=row.belongs_to,
        outcome=_outcome(row, verdict),
        # An answer out of the gateway's cache moved no token through a GPU.
        tokens=_cached_answer() if row.cache_hit else _tokens(row),
        gpu_seconds=0 if row.cache_hit else None,
        user=first_text(row.row.get("end_user"), row.row.get("user")),
        api_key=text_of(row.row.get("api_key")),
        labels=_labels(row),
    )


def _outcome(row: _Row, verdict: Verdict | None) -> str:
    if isinstance(verdict, ThrownOut):
        return "preempted"
    if row.failed:
        return failure_outcome(row.error)
    # An attempt that was billed and yet tried again did not answer.
    return "ok" if row.parent is None else "error"


def _tokens(row: _Row) -> Tokens:
    return tokens_of(row.row, child(row.metadata, "usage_object"), row.failed)


def _cached_answer() -> Tokens:
    return Tokens(input=0, output=0)


def _labels(row: _Row) -> dict[str, str] | None:
    labels = {"cache_hit": "true"} if row.cache_hit else {}
    if row.parent is not None:
        labels["estimated"] = "true"
    return labels or None


def _json_column(row: Obj, name: str) -> Obj:
    """A Json column, which some exports write as text."""
    value = row.get(name)
    if isinstance(value, str) and value.strip():
        try:
            return as_object(msgspec.json.decode(value), name)
        except (msgspec.DecodeError, RecursionError) as error:
            raise Refusal("bad_record", f"{name} is not JSON: {error}") from error
    return child(row, name) if value else {}
