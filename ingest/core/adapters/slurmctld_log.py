"""`slurmctld-log`: the only native record of who preempted whom in Slurm, with sacct rows as index.

The log (cluster.md 5.2) names jobs, in local time; a run's key, account, partition and GPUs are in accounting.
So the input is log lines and `sacct -P` output together, in any order; a log line waits in the state until its
victim's run is known. The preemption's id is the run's key, as in `slurm-sacct`, so that both sources add to one
record.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from ingest.core.adapters.base import (
    READING_ERRORS,
    Event,
    Outcome,
    Refusal,
    Refused,
    SourceConfig,
    State,
    event,
    identity,
    instant_ms,
    refusal_of,
)
from ingest.core.adapters.slurm_jobs import Run, account_of, metered_milli, pool_of, preemption_data
from ingest.core.adapters.slurm_rows import Row, read_numbered
from ingest.core.adapters.slurm_sacct import read_run
from ingest.core.adapters.slurm_times import local_ms

MATCH_MS = 180_000
"""How far a run's End may be from the line: grace time and a kill that takes a while come in between."""
JOB_KIND = "label:slurm-job"
"""Identity of a preemptor whose accounting record was never seen: unattributed until somebody maps it."""

_STAMP = re.compile(r"\[(?P<time>[^\]]+)\]\s*(?:(?:error|info|debug\d?|verbose): )?(?P<text>.*)", re.DOTALL)
_JOB = r"JobId=(?P<{0}>\d+(?:_(?:\d+|\*|\[[^\]]*\])|\+\d+)?(?:\((?P<{0}_raw>\d+)\))?)"
_VICTIM, _PREEMPTOR = _JOB.format("victim"), _JOB.format("preemptor")
_FORMS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("requeued", re.compile(rf"preempted {_VICTIM} has been requeued to reclaim resources for {_PREEMPTOR}")),
    ("stopped", re.compile(rf"preempted {_VICTIM} has been killed to reclaim resources for {_PREEMPTOR}")),
    ("had_to_be_killed", re.compile(rf"slurm_job_preempt: preempted {_VICTIM} had to be killed")),
    (
        "grace",
        re.compile(
            rf"setting (?P<grace>\d+) sec preemption grace time for {_VICTIM} to reclaim resources for {_PREEMPTOR}"
        ),
    ),
    (
        "suspended",
        re.compile(rf"preempted {_VICTIM} suspended by gang scheduler to reclaim resources for {_PREEMPTOR}"),
    ),
)
_CONCERNS_US = re.compile(r"preempted JobId=|preemption grace time for")

REMEMBERS = True


def adapt(lines: Iterable[bytes], source: SourceConfig, state: State | None) -> Iterator[Outcome]:
    """See the module; options are documented on the source's page."""
    kept: State = {} if state is None else state
    for name in ("runs", "runs_of", "accounts", "lines"):
        kept.setdefault(name, {})
    yield from _read(lines, source, kept)
    yield from _tell_all(source, kept, final=False, before_ms=None)
    if state is None:
        yield from flush(source, kept, None)


def flush(source: SourceConfig, state: State, before_ms: int | None) -> Iterator[Outcome]:
    """Tells what waited for a preemptor's account; refuses lines whose victim never showed up in accounting."""
    yield from _tell_all(source, state, final=True, before_ms=before_ms)
    for key, seen in list(state.get("lines", {}).items()):
        if before_ms is not None and seen["ms"] + MATCH_MS >= before_ms:
            continue
        if not seen.get("told"):
            detail = f"no run of job {seen['victim']} around this line in accounting: its GPUs are unknown"
            yield Refused(seen["position"], seen["raw"].encode(), "unknown_workload", detail)
        del state["lines"][key]
    if before_ms is not None:
        for key, run in list(state.get("runs", {}).items()):
            if run["end"] is not None and run["end"] < before_ms - 24 * 3600 * 1000:
                del state["runs"][key]
        _forget_jobs(state)


def _forget_jobs(state: State) -> None:
    """Jobs without a run that is remembered; one that still waits is told of again with every window."""
    for job, keys in list(state.get("runs_of", {}).items()):
        state["runs_of"][job] = kept = [key for key in keys if key in state["runs"]]
        if not kept:
            del state["runs_of"][job]
    preemptors = {seen["preemptor"] for seen in state.get("lines", {}).values()}
    for job in state.get("accounts", {}).keys() - state.get("runs_of", {}).keys() - preemptors:
        del state["accounts"][job]


def _read(lines: Iterable[bytes], source: SourceConfig, state: State) -> Iterator[Outcome]:
    """Splits the input: lines that begin with a bracket are the log, the others are sacct's."""
    refused: list[Refused] = []
    fields = source.option("fields", "")
    accounting = _accounting(lines, source, state, refused)
    for row in read_numbered(
        accounting, source.option("delimiter", "|"), fields.split(",") if fields else None
    ):
        if isinstance(row, Refused):
            yield row
            continue
        try:
            _note_run(row, source, state)
        except READING_ERRORS as error:
            yield row.refused(refusal_of(error))
    yield from refused


def _accounting(
    lines: Iterable[bytes], source: SourceConfig, state: State, refused: list[Refused]
) -> Iterator[tuple[int, bytes]]:
    """The numbered lines that are not the log's; the log's own are noted on the way."""
    for position, line in enumerate(lines, start=1):
        if not line.startswith(b"["):
            yield position, line
            continue
        try:
            _note_line(line, position, source, state)
        except READING_ERRORS as error:
            refused.append(refusal_of(error).at(position, line))


def _note_line(line: bytes, position: int, source: SourceConfig, state: State) -> None:
    match = _STAMP.match(line.decode("utf-8", "replace").rstrip("\r\n"))
    if match is None or not _CONCERNS_US.search(match["text"]):
        return  # the rest of the log is none of our business
    for form, pattern in _FORMS:
        if found := pattern.search(match["text"]):
            groups = found.groupdict()
            moment = _line_ms(match["time"], source)
            victim = _raw_id(groups["victim"], groups["victim_raw"])
            seen = {
                "form": form,
                "ms": moment,
                "victim": victim,
                "preemptor": _raw_id(groups.get("preemptor"), groups.get("preemptor_raw")),
                "position": position,
                "raw": line.decode("utf-8", "replace"),
            }
            state["lines"].setdefault(f"{form}/{victim}/{moment}", seen)
            return
    raise Refusal("bad_record", "a line about a preemption in words that no known version of Slurm writes")


def _line_ms(text: str, source: SourceConfig) -> int:
    """`LogTimeFormat` iso8601(_ms) is local; rfc5424 carries an offset; the others lack a date."""
    try:
        return local_ms(text, source.zone())
    except Refusal:
        try:
            return instant_ms(text)
        except Refusal:
            raise Refusal("bad_time", f"{text!r}: set LogTimeFormat=iso8601_ms (or rfc5424_ms)") from None


def _raw_id(shown: str | None, raw: str | None) -> str | None:
    """`123`, `100_7(123)`, `100_*`, `50+1(51)`: the number in parentheses is the one accounting knows."""
    if shown is None:
        return None
    return raw or re.split(r"[_+(]", shown)[0]


def _note_run(row: Row, source: SourceConfig, state: State) -> None:
    run = read_run(row, source)
    if run is None:
        return
    state["accounts"][run.job] = account_of(run, source)
    if run.start_ms is None:
        return
    pool = pool_of(run, source)
    milli = metered_milli(run.allocated, source, pool)
    if milli:
        data = preemption_data(run, source, pool, milli) if run.end_ms is not None else None
        keys = state["runs_of"].setdefault(run.job, [])
        if run.key not in keys:
            keys.append(run.key)
        state["runs"][run.key] = {
            "job": run.job,
            "start": run.start_ms,
            "end": run.end_ms,
            "state": run.state,
            "data": data or _running_data(run, source, pool, milli),
        }


def _running_data(run: Run, source: SourceConfig, pool: str, milli: int) -> dict[str, Any]:
    """A victim that still runs: in its grace time, or suspended."""
    data = preemption_data(replace(run, end_ms=run.start_ms), source, pool, milli)
    del data["released_at"]
    return data


def _tell_all(source: SourceConfig, state: State, final: bool, before_ms: int | None) -> Iterator[Event]:
    for key, seen in sorted(state.get("lines", {}).items(), key=lambda one: (one[1]["ms"], one[0])):
        old_enough = before_ms is None or seen["ms"] + MATCH_MS < before_ms
        if not seen.get("told"):
            yield from _tell(key, seen, source, state, final and old_enough)


def _tell(
    line_key: str, seen: dict[str, Any], source: SourceConfig, state: State, final: bool
) -> Iterator[Event]:
    run_key = _run_of(seen, state)
    if run_key is None:
        return
    by = state["accounts"].get(seen["preemptor"])
    if seen["preemptor"] and by is None:
        if not final:
            return
        by = identity(JOB_KIND, seen["preemptor"])
    data = dict(state["runs"][run_key]["data"])
    if by is not None:
        data |= {"preemptor": {"workload": seen["preemptor"], "identity": by}, "preemptor_source": "parsed"}
    if seen["form"] in ("requeued", "stopped", "had_to_be_killed"):
        data["disposition"] = "requeued" if seen["form"] == "requeued" else "stopped"
    if seen["form"] == "suspended":
        # The gang scheduler takes time slices, not GPUs: the job keeps them, and nothing is lost.
        data |= {"preemption": f"{run_key}/suspended/{seen['ms']}", "gpus": 0, "lost_gpu_seconds": 0}
        data.pop("released_at", None)
    seen["told"] = True
    yield event(source, f"log/{line_key}", "preemption", seen["ms"], data)


def _run_of(seen: dict[str, Any], state: State) -> str | None:
    """The run the line speaks of: JobIDs come back, so by time. A run that was preempted is a better match."""
    found = []
    for key in state["runs_of"].get(seen["victim"], []):
        run = state["runs"].get(key)
        if run is None or run["start"] > seen["ms"] + 1000:
            continue
        if seen["form"] == "suspended":
            if run["end"] is None or run["end"] >= seen["ms"]:
                found.append((0, 0, key))
            continue
        if run["end"] is not None and run["state"] in ("PREEMPTED", "REQUEUED", "CANCELLED"):
            distance = abs(run["end"] - seen["ms"])
            if distance <= MATCH_MS or (seen["form"] == "grace" and run["end"] >= seen["ms"] - 1000):
                found.append((0 if run["state"] == "PREEMPTED" else 1, distance, key))
    return min(found)[2] if found else None
