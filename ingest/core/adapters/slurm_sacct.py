"""`slurm-sacct`: `TZ=UTC sacct -a -X -D -P ...` -> occupancy, pending and preemptions, one run per row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

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
from ingest.core.adapters.slurm_jobs import Run, flush, new_state, tell
from ingest.core.adapters.slurm_rows import Row, read_rows
from ingest.core.adapters.slurm_times import UNSET, duration_ms, is_ambiguous, local_ms, optional_ms

__all__ = ["adapt", "flush", "read_run"]

REMEMBERS = True


def adapt(lines: Iterable[bytes], source: SourceConfig, state: State | None) -> Iterator[Outcome]:
    """See the module; options are documented on the source's page."""
    kept = new_state() if state is None else state
    for name, empty in new_state().items():
        kept.setdefault(name, empty)
    fields = source.option("fields", "")
    header = fields.split(",") if fields else None
    for row in read_rows(lines, source.option("delimiter", "|"), header):
        if isinstance(row, Refused):
            yield row
            continue
        try:
            run = read_run(row, source)
            if run is not None:
                yield from tell(run, source, kept)
        except READING_ERRORS as error:
            yield row.refused(refusal_of(error))
    if state is None:
        yield from flush(source, kept, None)


def read_run(row: Row, source: SourceConfig) -> Run | None:
    """`None` for a step (`4101.batch`): it repeats what its job holds. Raises `Refusal`."""
    fields = row.fields
    job = fields.get("JobIDRaw") or fields.get("JobID") or ""
    if "." in job:
        return None
    if not job.isdigit():
        raise Refusal("bad_record", f"{job!r} is not a raw job id: ask for the column JobIDRaw")
    if "State" not in fields or "Start" not in fields or "End" not in fields:
        raise Refusal("bad_record", "the columns State, Start and End are needed")
    if "AllocTRES" not in fields:
        raise Refusal("bad_record", "the column AllocTRES is needed; without it there are no GPUs")
    zone = source.zone()
    start_ms, end_ms = _span_ms(fields, source)
    submit_ms = optional_ms(fields.get("Submit", ""), zone)
    restarts = fields.get("Restarts", "")
    return Run(
        cluster=fields.get("Cluster", "") or source.cluster,
        job=job,
        key=_key(fields, job, submit_ms),
        restarts=int(restarts) if restarts.isdigit() else None,
        account=fields.get("Account", ""),
        user=fields.get("User", ""),
        qos=fields.get("QOS", ""),
        partition=fields.get("Partition", ""),
        state=fields["State"].split(" ")[0].rstrip("+"),
        submit_ms=submit_ms,
        eligible_ms=optional_ms(fields.get("Eligible", ""), zone),
        start_ms=start_ms,
        end_ms=end_ms,
        suspended_ms=duration_ms(fields.get("Suspended", "")) or 0,
        allocated=tres(fields["AllocTRES"]),
        requested=tres(fields.get("ReqTRES", "")),
        nodes=fields.get("NodeList", ""),
        name=fields.get("JobName", ""),
    )


def _span_ms(fields: dict[str, str], source: SourceConfig) -> tuple[int | None, int | None]:
    """Start and end. Where the clock shows one of them twice, the elapsed seconds tell which one is meant."""
    zone = source.zone()
    start, end = fields["Start"], fields["End"]
    start_ms, end_ms = optional_ms(start, zone), optional_ms(end, zone)
    elapsed = duration_ms(fields.get("ElapsedRaw", "") or fields.get("Elapsed", ""))
    if elapsed is None or start_ms is None or end_ms is None or end_ms - start_ms == elapsed:
        return start_ms, end_ms
    for text, other in ((start, False), (end, True)):
        if text not in UNSET and is_ambiguous(text, zone):
            later = local_ms(text, zone, later=True)
            span = later - start_ms if other else end_ms - later
            if span == elapsed:
                return (start_ms, later) if other else (later, end_ms)
    return start_ms, end_ms


def _key(fields: dict[str, str], job: str, submit_ms: int | None) -> str:
    cluster = fields.get("Cluster", "")
    prefix = f"{cluster}/" if cluster else ""
    unique = fields.get("SLUID", "") or fields.get("DBIndex", "")
    if unique and unique not in UNSET and unique != "0":
        return f"{prefix}{unique}"
    if submit_ms is None:
        raise Refusal(
            "bad_record", "neither SLUID nor DBIndex nor Submit: runs of one job cannot be told apart"
        )
    return f"{prefix}{job}@{submit_ms // 1000}"


def tres(text: str) -> dict[str, int]:
    """`billing=96,gres/gpu:h200=8,gres/gpu=8,mem=1T` -> counts; sizes with a suffix are not counts and are left out."""
    found: dict[str, int] = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        if value.isdigit():
            found[name] = whole(value)
        elif name.startswith("gres/"):
            raise Refusal("bad_quantity", f"{part!r} in AllocTRES is not a count")
    return found
