"""`slurm-sacct-json`: `sacct --json -a -X -D` -> the same events as the text form, from any data_parser version.

One document holds `jobs`; numbers may be plain or `{"set": true, "infinite": false, "number": n}`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from ingest.core.adapters.base import (
    READING_ERRORS,
    Outcome,
    Refusal,
    Refused,
    SourceConfig,
    State,
    refusal_of,
    whole,
)
from ingest.core.adapters.json_records import JsonRecord, read_json
from ingest.core.adapters.kubernetes import mapping, objects
from ingest.core.adapters.slurm_jobs import Run, flush, new_state, tell

__all__ = ["adapt", "flush"]

REMEMBERS = True


def adapt(lines: Iterable[bytes], source: SourceConfig, state: State | None) -> Iterator[Outcome]:
    """See the module; options are documented on the source's page."""
    kept = new_state() if state is None else state
    for name, empty in new_state().items():
        kept.setdefault(name, empty)
    for record in read_json(lines):
        if isinstance(record, Refused):
            yield record
            continue
        for job in _jobs(record):
            try:
                yield from tell(read_job(job, source), source, kept)
            except READING_ERRORS as error:
                says = msgspec.json.encode(_without_clocks(job))
                yield refusal_of(error).at(record.position, msgspec.json.encode(job), says)
    if state is None:
        yield from flush(source, kept, None)


def _jobs(record: JsonRecord) -> list[Any]:
    """The jobs of a whole output, or one job per line."""
    value = record.value
    if isinstance(value, dict) and isinstance(value.get("jobs"), list):
        jobs: list[Any] = value["jobs"]
        return jobs
    return [value]


def _without_clocks(job: Any) -> Any:
    """The job without what moves while it runs or waits, whatever happens to it."""
    if not isinstance(job, dict) or not isinstance(job.get("time"), dict):
        return job
    instants = {name: job["time"].get(name) for name in ("submission", "eligible", "start", "end")}
    return {**job, "time": instants, "steps": None, "priority": None}


def read_job(job: Any, source: SourceConfig) -> Run:
    """Raises `Refusal`."""
    if not isinstance(job, dict) or "job_id" not in job:
        raise Refusal("bad_record", "not a job of sacct --json: there is no job_id")
    times = mapping(job, "time")
    association = mapping(job, "association")
    cluster = str(job.get("cluster") or association.get("cluster") or "")
    number = _number(job["job_id"])
    submit_ms = _time_ms(times.get("submission"))
    unique = job.get("sluid") or job.get("db_index")
    if not unique and submit_ms is None:
        raise Refusal("bad_record", "neither sluid nor db_index nor a submission time tells its runs apart")
    tres = mapping(job, "tres")
    restarts = _number(job.get("restart_cnt"))
    return Run(
        cluster=cluster or source.cluster,
        job=str(number),
        key=(f"{cluster}/" if cluster else "")
        + (str(unique) if unique else f"{number}@{(submit_ms or 0) // 1000}"),
        restarts=restarts,
        account=str(job.get("account") or association.get("account") or ""),
        user=str(job.get("user") or association.get("user") or ""),
        qos=str(job.get("qos") or ""),
        partition=str(job.get("partition") or ""),
        state=_state(job),
        submit_ms=submit_ms,
        eligible_ms=_time_ms(times.get("eligible")),
        start_ms=_time_ms(times.get("start")),
        end_ms=_time_ms(times.get("end")),
        suspended_ms=(_number(times.get("suspended")) or 0) * 1000,
        allocated=_tres(tres, "allocated"),
        requested=_tres(tres, "requested"),
        nodes=str(job.get("nodes") or ""),
        name=str(job.get("name") or ""),
    )


def _state(job: dict[str, Any]) -> str:
    """`state.current` is a list since 23.11 and one word before; flags such as REQUEUED may stand beside the state."""
    current = mapping(job, "state").get("current")
    words = [str(word) for word in current] if isinstance(current, list) else [str(current or "")]
    return "PREEMPTED" if "PREEMPTED" in words else words[0]


def _tres(tres: dict[str, Any], which: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for entry in objects(tres, which):
        name = str(entry.get("type")) + (f"/{entry['name']}" if entry.get("name") else "")
        found[name] = whole(_number(entry.get("count")) or 0)
    return found


def _number(value: Any) -> int | None:
    if isinstance(value, dict):
        return whole(value.get("number", 0)) if value.get("set") and not value.get("infinite") else None
    return None if value is None else whole(value)


def _time_ms(value: Any) -> int | None:
    """Epoch seconds; 0 is unset."""
    seconds = _number(value)
    return seconds * 1000 if seconds else None
