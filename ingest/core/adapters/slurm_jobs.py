"""One run of a Slurm job, from `sacct` as text or JSON, and the events it gives (cluster.md 5.1 and 5.2).

A job that is requeued keeps its JobID and gets a new record, so the record is the run: it is keyed by SLUID, else
DBIndex, else JobID and Submit. The workload is the JobID, the attempt is 1 + Restarts, the preemption is the run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ingest.core.adapters.base import (
    Event,
    Notice,
    Outcome,
    Refusal,
    SourceConfig,
    State,
    event,
    gpus_json,
    identity,
    rfc3339,
)
from ingest.core.adapters.kubernetes import service_class

REQUEUE_WAIT_MS = 30 * 60_000
"""A requeued job has its next record once the epilog is over; without one after this long it was cancelled."""


@dataclass(frozen=True, slots=True)
class Run:
    cluster: str
    job: str
    """JobIDRaw: the number, also for array tasks and het components."""
    key: str
    """SLUID, DBIndex or `JobID@Submit`."""
    restarts: int | None
    account: str
    user: str
    qos: str
    partition: str
    state: str
    submit_ms: int | None
    eligible_ms: int | None
    start_ms: int | None
    end_ms: int | None
    suspended_ms: int
    allocated: dict[str, int]
    """TRES name -> count, such as `gres/gpu`."""
    requested: dict[str, int]
    nodes: str
    name: str

    @property
    def attempt(self) -> int:
        return 1 + (self.restarts or 0)

    @property
    def over(self) -> bool:
        return self.end_ms is not None and self.state not in ("RUNNING", "PENDING", "SUSPENDED")


def new_state() -> State:
    return {"preempted": {}, "submits": {}, "restarted": {}, "earlier": {}, "waiting": {}, "said": {}}


def metered_milli(tres: dict[str, int], source: SourceConfig, pool: str) -> int:
    """Thousandths of what the pool meters. Typed entries (`gres/gpu:h200`) are a subset of `gres/gpu`.

    options.gpu_types gives the milli-GPU of types that are parts of one (MIG). Raises `Refusal("unknown_resource")`
    where only typed entries are tracked, which count only what was asked for by type; options.typed_gpus accepts them.
    """
    meter = source.meter(pool)
    if meter != "gpu":
        return tres.get(meter, 0) * 1000
    typed = {name.split(":", 1)[1]: n for name, n in tres.items() if name.startswith("gres/gpu:")}
    total = tres.get("gres/gpu")
    if total is None and typed:
        if not source.option("typed_gpus", False):
            raise Refusal(
                "unknown_resource",
                "only typed gres/gpu entries: add gres/gpu to AccountingStorageTRES, or set options.typed_gpus",
            )
        total = sum(typed.values())
    sizes = source.option("gpu_types", {})
    return (total or 0) * 1000 - sum(n * (1000 - int(sizes[t])) for t, n in typed.items() if t in sizes)


def pool_of(run: Run, source: SourceConfig) -> str:
    """A pending job may name several partitions: the first that is mapped."""
    return source.pool_for(*run.partition.split(","), run.qos, run.cluster)


def account_of(run: Run, source: SourceConfig) -> dict[str, str]:
    if source.option("identity", "slurm_account") == "user":
        return identity("user", run.user)
    return identity("slurm_account", run.account)


def tell(run: Run, source: SourceConfig, state: State) -> Iterator[Event]:
    """The events of one record that were not said yet: a job that is renamed, or moved to another QOS, while it runs
    began once all the same."""
    said = state["said"].setdefault(run.key, {"ids": {}})
    said["end"] = run.end_ms
    for one in _events_of(run, source, state):
        if one["id"] not in said["ids"]:
            said["ids"][one["id"]] = 1
            yield one


def _events_of(run: Run, source: SourceConfig, state: State) -> Iterator[Event]:
    """The events of one record, and what must be kept of it to know later whether a victim came back."""
    _index(run, state)
    pool = pool_of(run, source)
    milli = metered_milli(run.allocated or run.requested, source, pool)
    if not milli:
        return
    yield from _pending(run, source, state, pool, milli)
    if run.start_ms is None:
        return
    yield from _occupancy(run, source, pool, milli)
    if run.state == "PREEMPTED" and run.end_ms is not None:
        data = preemption_data(run, source, pool, milli)
        yield event(source, f"{run.key}/preempted", "preemption", run.end_ms, data)
        state["preempted"][run.key] = {"job": run.job, "ms": run.end_ms, "data": data}


def _index(run: Run, state: State) -> None:
    """Only what may follow a preemption: requeued runs, or all of them where Restarts is not printed."""
    if run.restarts is None or run.restarts > 0:
        submits = state["submits"].setdefault(run.job, [])
        if run.submit_ms is not None and run.submit_ms not in submits:
            submits.append(run.submit_ms)
    if run.restarts:
        state["restarted"].setdefault(run.job, run.state)
    elif run.state in ("PREEMPTED", "REQUEUED", "NODE_FAIL"):
        state["earlier"][run.job] = 1


def _pending(run: Run, source: SourceConfig, state: State, pool: str, milli: int) -> Iterator[Event]:
    """From eligible to start, of the first run only: later runs wait as victims, or by their own failure."""
    since = run.eligible_ms if run.eligible_ms is not None else run.submit_ms
    if not source.option("pending", True) or run.restarts or since is None:
        return
    until = run.start_ms if run.start_ms is not None else run.end_ms
    if until is not None and until <= since:
        return
    # It may start in another partition than the first it named: the wait ends in the pool where it began.
    pool = state["waiting"].pop(run.key, pool)
    if until is None:
        state["waiting"][run.key] = pool
    wanted = metered_milli(run.requested, source, pool) or milli
    for moment, level in ((since, wanted), (until, 0)):
        if moment is not None:
            data = {
                "workload": run.job,
                "identity": account_of(run, source),
                "pool": pool,
                "gpus": gpus_json(level),
                "priority_class": (run.qos or None) if level else None,
            }
            yield event(source, f"{run.key}/pending/{rfc3339(moment)}", "pending", moment, data)


def _occupancy(run: Run, source: SourceConfig, pool: str, milli: int) -> Iterator[Event]:
    """Suspended jobs keep their GPUs. A resized run is followed by a record that starts where it ends."""
    assert run.start_ms is not None
    levels = [(run.start_ms, milli)]
    if run.over and run.end_ms is not None and run.state != "RESIZING":
        end = run.end_ms - (0 if source.option("include_suspended", True) else run.suspended_ms)
        if end <= run.start_ms:
            return
        levels.append((end, 0))
    for moment, level in levels:
        data: dict[str, Any] = {
            "workload": run.job,
            "identity": account_of(run, source),
            "pool": pool,
            "gpus": gpus_json(level),
            "attempt": run.attempt,
        }
        if level:
            data |= {
                "user": run.user or None,
                "priority_class": run.qos or None,
                "service_class": service_class(source, run.qos),
                "name": run.name or None,
                "nodes": [run.nodes] if run.nodes and run.nodes != "None assigned" else None,
            }
        yield event(source, f"{run.key}/{'start' if level else 'end'}", "occupancy", moment, data)


def preemption_data(run: Run, source: SourceConfig, pool: str, milli: int) -> dict[str, Any]:
    """slurmdbd records no preemptor and no cause but the state itself: higher QOS or partition priority."""
    assert run.start_ms is not None and run.end_ms is not None
    return {
        "preemption": run.key,
        "victim": {"workload": run.job, "identity": account_of(run, source), "attempt": run.attempt},
        "preemptor_source": "none",
        "pool": pool,
        "gpus": gpus_json(milli),
        "cause": "priority",
        "admitted_at": rfc3339(run.start_ms),
        "released_at": rfc3339(run.end_ms),
    }


def flush(source: SourceConfig, state: State, before_ms: int | None) -> Iterator[Outcome]:
    """Requeued or cancelled? Known once the next record had time to come."""
    for key, victim in list(state.get("preempted", {}).items()):
        followed = any(submit >= victim["ms"] - 1000 for submit in state["submits"].get(victim["job"], []))
        if followed or before_ms is None or victim["ms"] + REQUEUE_WAIT_MS < before_ms:
            data = {**victim["data"], "disposition": "requeued" if followed else "stopped"}
            yield event(source, f"{key}/disposition", "preemption", victim["ms"], data)
            del state["preempted"][key]
    if before_ms is None:
        yield from _missing_duplicates(state)
    else:
        _forget(state, before_ms)


def _forget(state: State, before_ms: int) -> None:
    """What no later window can speak of. Whether earlier runs are missing is asked of whole exports only."""
    state["restarted"], state["earlier"] = {}, {}
    for key, said in list(state.get("said", {}).items()):
        if said["end"] is not None and said["end"] < before_ms:
            del state["said"][key]
    for job, submits in list(state["submits"].items()):
        state["submits"][job] = kept = [one for one in submits if one >= before_ms - REQUEUE_WAIT_MS]
        if not kept:
            del state["submits"][job]


def _missing_duplicates(state: State) -> Iterator[Notice]:
    """Without -D only the last run of each job is printed, and the GPU time of preempted ones is gone."""
    lonely = sorted(state.get("restarted", {}).keys() - state.get("earlier", {}).keys())
    if lonely:
        detail = (
            f"{len(lonely)} restarted jobs show no earlier run (such as {lonely[0]}): was sacct run with -D?"
        )
        yield Notice(1, "missing_duplicates", detail, "sacct")
