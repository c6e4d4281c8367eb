"""`kube-state-metrics`: its series in Prometheus -> occupancy, capacity, quota and preemptions (cluster.md 4.5).

For clusters whose API cannot be watched. Instants come from the series that hold them (`..._scheduled_time`,
`..._completion_time`); what only samples show is known to one scrape. Scrapes that are missing are noticed, and levels
stay as they were: nothing is interpolated.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Required, TypedDict, cast

import msgspec

from ingest.core.adapters import set_aside
from ingest.core.adapters.base import (
    READING_ERRORS,
    Event,
    Notice,
    Outcome,
    Refusal,
    Refused,
    SourceConfig,
    State,
    event,
    gpus_json,
    refusal_of,
    rfc3339,
)
from ingest.core.adapters.gpu_resources import is_gpu_resource, pod_milli, unsanitised
from ingest.core.adapters.ksm_totals import (
    KEPT_QUOTA,
    capacity_events,
    not_negative,
    note_kept_quota,
    note_total,
    quota_events,
)
from ingest.core.adapters.kubernetes import holder, service_class
from ingest.core.adapters.native import in_calendar
from ingest.core.adapters.prometheus import Sample, read_scrapes
from ingest.core.adapters.queue_metrics import KEPT_QUEUE, note_kept_queue, note_queue, queue_quota_events

Entry = dict[str, Any]

_REQUESTS = {
    "kube_pod_container_resource_requests": "containers",
    "kube_pod_init_container_resource_requests": "initContainers",
}
_CAUSE_OF_REASON = {"PreemptionByScheduler": "priority", "DeletionByTaintManager": "capacity_lost"}
KEPT_POD = "pod_of_samples"


class _PodFacts(TypedDict, total=False):
    """What `Entry` holds of a pod, without what was said of it."""

    namespace: Required[str]
    name: Required[str]
    node: Required[str]
    containers: Required[dict[str, dict[str, str]]]
    initContainers: Required[dict[str, dict[str, str]]]
    priority_class: str | None
    disrupted: tuple[int, str]
    scheduled: int
    completed: int
    first: int
    last: int
    over: int
    gone: int
    again: int


class PodOfSamples(msgspec.Struct, tag=KEPT_POD):
    """A pod in no pool, as a record that can be read again."""

    key: str
    clock: int
    """Instant of the newest sample of anything, which says whether the pod is gone."""
    entry: _PodFacts


def new_state() -> State:
    return {"pods": {}, "nodes": {}, "quotas": {}, "queues": {}, "told": {}}


def adapt(lines: Iterable[bytes], source: SourceConfig, state: State | None) -> Iterator[Outcome]:
    """See the module; options are documented on the source's page."""
    kept = new_state() if state is None else state
    for name, empty in new_state().items():
        kept.setdefault(name, empty)
    seen_ms: set[int] = set()
    again: dict[str, list[set_aside.Kept]] = {tag: [] for tag in _NOTE_KEPT}
    for tag, found in again.items():
        lines = set_aside.without_kept(lines, tag, found)
    for scrape in read_scrapes(lines, source):
        if isinstance(scrape, Refused):
            yield scrape
            continue
        for sample in scrape.in_order():
            try:
                if _note(sample, source, kept):
                    seen_ms.add(sample.at_ms)
            except READING_ERRORS as error:
                yield sample.refused(refusal_of(error))
    yield from _gaps(sorted(seen_ms), source, kept)
    for tag, found in again.items():
        yield from _read_again(found, tag, source, kept)
    yield from _pods(source, kept)
    yield from capacity_events(kept, source)
    yield from quota_events(kept, source)
    yield from queue_quota_events(kept, source)


def _read_again(
    found: list[set_aside.Kept], tag: str, source: SourceConfig, state: State
) -> Iterator[Refused]:
    for position, line in found:
        try:
            _NOTE_KEPT[tag](line, source, state)
        except READING_ERRORS as error:
            yield refusal_of(error).at(position, line)


def _note_kept_pod(line: bytes, source: SourceConfig, state: State) -> None:
    pod = set_aside.read_kept(line, PodOfSamples)
    entry = cast("Entry", pod.entry)
    list(_told(pod.key, entry, source))  # raises where it still cannot be told
    known = state["pods"].get(pod.key, {"said": {}})
    earlier, later = sorted((known, entry), key=lambda one: one.get("last", 0))
    state["pods"][pod.key] = {**earlier, **later}
    state["clock"] = max(state.get("clock") or 0, in_calendar(pod.clock))


def label(labels: dict[str, str], name: str) -> str:
    """A label of the object. With `honor_labels: false` Prometheus keeps it as `exported_<name>`, beside its own."""
    return labels.get(f"exported_{name}") or labels.get(name, "")


def _note(sample: Sample, source: SourceConfig, state: State) -> bool:
    """Whether the sample is one that this source reads."""
    if note_total(sample, source, state, label) or note_queue(sample, source, state):
        return True
    if not sample.name.startswith("kube_pod_"):
        return False
    key = label(sample.labels, "uid") or f"{label(sample.labels, 'namespace')}/{label(sample.labels, 'pod')}"
    if sample.name in _REQUESTS:
        resource = unsanitised(sample.labels.get("resource", ""))
        if is_gpu_resource(resource, source) or resource in source.meters.values():
            _note_request(sample, _entry(state, key, sample), _REQUESTS[sample.name], resource)
        return True
    entry = _entry(state, key, sample)
    if sample.name == "kube_pod_status_phase":
        if sample.number() == 1:
            _note_phase(entry, sample.labels.get("phase", ""), sample.at_ms)
    elif sample.name == "kube_pod_status_scheduled_time":
        entry["scheduled"] = int(sample.number()) * 1000
    elif sample.name == "kube_pod_completion_time":
        entry["completed"] = int(sample.number()) * 1000
    elif sample.name == "kube_pod_info":
        entry["priority_class"] = sample.labels.get("priority_class") or None
        entry["node"] = label(sample.labels, "node") or entry["node"]
    elif sample.name in ("kube_pod_status_reason", "kube_pod_status_disruption_reason"):
        reason = sample.labels.get("reason", "")
        # Before 2.20 every reason has a row, 0 for those that do not hold.
        if sample.number() == 1 and reason in _CAUSE_OF_REASON:
            entry.setdefault("disrupted", [sample.at_ms, _CAUSE_OF_REASON[reason]])
    else:
        return False
    return True


def _entry(state: State, key: str, sample: Sample) -> Entry:
    fresh: Entry = {
        "namespace": label(sample.labels, "namespace"),
        "name": label(sample.labels, "pod"),
        "node": label(sample.labels, "node"),
        "containers": {},
        "initContainers": {},
    }
    entry: Entry = state["pods"].setdefault(key, fresh)
    return entry


def _note_request(sample: Sample, entry: Entry, part: str, resource: str) -> None:
    container = label(sample.labels, "container")
    entry[part].setdefault(container, {})[resource] = str(not_negative(sample))
    entry["node"] = label(sample.labels, "node") or entry["node"]


def _note_phase(entry: Entry, phase: str, at_ms: int) -> None:
    """Requests are exported for waiting and finished pods, too: only the phase says who holds anything."""
    if phase in ("Running", "Unknown"):
        if "gone" in entry and at_ms > entry["gone"]:
            entry["again"] = at_ms
            del entry["gone"]
        entry["first"] = min(entry.get("first", at_ms), at_ms)
        entry["last"] = max(entry.get("last", at_ms), at_ms)
    elif phase in ("Succeeded", "Failed"):
        entry["over"] = min(entry.get("over", at_ms), at_ms)


def _gaps(seen_ms: list[int], source: SourceConfig, state: State) -> Iterator[Notice]:
    """Spans without any sample that are much longer than a scrape interval."""
    longest = source.option("scrape_seconds", 60) * 2500
    previous = state.get("clock")
    for moment in seen_ms:
        if previous is not None and moment - previous > longest:
            detail = "no samples in between: levels are kept as they were, and changes show only after it"
            yield Notice(1, "missed_samples", detail, source.name, previous, moment)
        previous = moment if previous is None else max(previous, moment)
    state["clock"] = previous


def _pods(source: SourceConfig, state: State) -> Iterator[Outcome]:
    stale_ms = source.option("stale_seconds", 300) * 1000
    for key, entry in list(state["pods"].items()):
        if not entry["containers"] and not entry["initContainers"]:
            if entry.get("last", 0) < (state["clock"] or 0) - stale_ms:
                del state["pods"][key]
            continue
        # Other pods were sampled since, this one was not: it is gone since some time after its last sample.
        ended = "over" in entry or "completed" in entry
        if "last" in entry and not ended and state["clock"] - entry["last"] > stale_ms:
            entry["gone"] = entry["last"]
        try:
            for one in _told(key, entry, source):
                if one["id"] not in entry.setdefault("said", {}):
                    entry["said"][one["id"]] = 1
                    yield one
        except Refusal as refusal:
            facts = {name: value for name, value in entry.items() if name not in ("said", "refused", "last")}
            if entry.get("refused") != facts:
                entry["refused"] = facts
                name = f"{entry['namespace']}/{entry['name']}"
                pod = PodOfSamples(key, state["clock"], cast("_PodFacts", facts | _last_of(entry)))
                yield set_aside.refused(pod, Refusal(refusal.reason, f"pod {name}: {refusal.detail}"))
        if _end_ms(entry) is not None and state["clock"] - _end_ms(entry, 0) > 24 * 3600 * 1000:
            del state["pods"][key]


def _last_of(entry: Entry) -> Entry:
    return {"last": entry["last"]} if "last" in entry else {}


def _end_ms(entry: Entry, default: int | None = None) -> Any:
    ends = [entry[name] for name in ("completed", "over", "gone") if name in entry]
    return ends[0] if ends else default


def _told(key: str, entry: Entry, source: SourceConfig) -> Iterator[Event]:
    start = entry.get("scheduled", entry.get("first"))
    if start is None:
        return
    pool = source.pool_for(entry["node"], entry["namespace"])
    milli = pod_milli({"spec": {part: _containers(entry[part]) for part in _REQUESTS.values()}}, source, pool)
    if not milli:
        return
    who = holder(source, entry["namespace"], {}, {})
    end = _end_ms(entry)
    levels = [(start, milli)]
    if "again" in entry:
        levels.append((entry["again"], milli))
    if end is not None and end > start:
        levels.append((end, 0))
    for moment, level in levels:
        data: Entry = {"workload": key, **who, "pool": pool, "gpus": gpus_json(level)}
        if level:
            data |= {
                "name": f"{entry['namespace']}/{entry['name']}",
                "priority_class": entry.get("priority_class"),
                "service_class": service_class(source, entry.get("priority_class")),
                "nodes": [entry["node"]] if entry["node"] else None,
            }
        yield event(source, f"{key}/{rfc3339(moment)}", "occupancy", moment, data)
    if "disrupted" in entry:
        decided, cause = entry["disrupted"]
        data = {
            "preemption": key,
            "victim": {"workload": key, **who},
            "preemptor_source": "none",
            "pool": pool,
            "gpus": gpus_json(milli),
            "cause": cause,
            "admitted_at": rfc3339(start),
        }
        yield event(source, f"{key}/disrupted", "preemption", decided, data)


def _containers(requests: dict[str, dict[str, str]]) -> list[Entry]:
    return [{"resources": {"requests": resources}} for resources in requests.values()]


_NOTE_KEPT = {KEPT_POD: _note_kept_pod, KEPT_QUOTA: note_kept_quota, KEPT_QUEUE: note_kept_queue}
