"""Kubernetes records as every cluster adapter reads them: objects, lists, watch streams, and both views
of Events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from ingest.core.adapters.base import (
    READING_ERRORS,
    Outcome,
    Refusal,
    Refused,
    SourceConfig,
    identity,
    instant_ms,
    refusal_of,
    whole,
)
from ingest.core.adapters.json_records import JsonRecord, read_json

Obj = dict[str, Any]
_COMBINED = "(combined from similar events): "
"""What the old recorder puts before the text of the eleventh similar Event within ten minutes (cluster.md 3.4)."""
_WATCH_TYPES = frozenset({"ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"})


@dataclass(frozen=True, slots=True)
class Watched:
    """One object as it was listed or watched."""

    change: str
    """`ADDED` (also for a listed object), `MODIFIED` or `DELETED`."""
    obj: Obj
    position: int
    raw: bytes
    observed_ms: int | None
    """When a collector received it (`observed_at` beside `type` and `object`); the API itself sends no
    such time.
    """

    @property
    def kind(self) -> str:
        return str(self.obj.get("kind", ""))

    @property
    def group(self) -> str:
        api_version = str(self.obj.get("apiVersion", ""))
        return api_version.rpartition("/")[0]

    def refused(self, refusal: Refusal) -> Refused:
        """Listed again it says the same, whenever that is."""
        says = msgspec.json.encode([self.change == "DELETED", self.obj])
        return refusal.at(self.position, self.raw, says)


def read_objects(lines: Iterable[bytes]) -> Iterator[Watched | Refused]:
    """The objects of a dump or watch, in order. Bookmarks carry no fact and are passed over."""
    for record in read_json(lines):
        if isinstance(record, Refused):
            yield record
            continue
        try:
            yield from _objects(record)
        except READING_ERRORS as error:
            yield refusal_of(error).at(record.position, record.raw)


def each_object(lines: Iterable[bytes], tell: Callable[[Watched], Iterable[Outcome]]) -> Iterator[Outcome]:
    """What `tell` makes of each object; one that cannot be read is refused alone."""
    for watched in read_objects(lines):
        if isinstance(watched, Refused):
            yield watched
            continue
        try:
            yield from tell(watched)
        except READING_ERRORS as error:
            yield watched.refused(refusal_of(error))


def _objects(record: JsonRecord) -> Iterator[Watched | Refused]:
    value = record.value
    if isinstance(value, list):
        for item in value:
            yield from _objects(JsonRecord(item, record.position, msgspec.json.encode(item)))
        return
    if not isinstance(value, dict):
        raise Refusal("bad_record", "not a Kubernetes object, list or watch event")
    if value.get("type") in _WATCH_TYPES and isinstance(value.get("object"), dict):
        yield from _watched(value, record)
    elif isinstance(value.get("items"), list) and str(value.get("kind", "")).endswith("List"):
        yield from _items(value, record.position)
    elif isinstance(value.get("kind"), str) and isinstance(value.get("metadata"), dict):
        yield Watched("ADDED", value, record.position, record.raw, None)
    else:
        raise Refusal("bad_record", "not a Kubernetes object, list or watch event: no kind or no metadata")


def _watched(value: Obj, record: JsonRecord) -> Iterator[Watched]:
    if value["type"] == "BOOKMARK":
        return
    obj = value["object"]
    if value["type"] == "ERROR":
        why = f"{obj.get('reason')} ({obj.get('code')}): {obj.get('message')}"
        raise Refusal("watch_error", f"the API server ended the watch: {why}")
    if not isinstance(obj.get("metadata"), dict):
        raise Refusal("bad_record", "the watch event's object has no metadata")
    observed = value.get("observed_at")
    observed_ms = None if observed is None else instant_ms(observed)
    yield Watched(value["type"], obj, record.position, record.raw, observed_ms)


def _items(value: Obj, position: int) -> Iterator[Watched | Refused]:
    # Items of a typed list (`WorkloadList`) carry neither apiVersion nor kind; those of kubectl's `List` do.
    inherited = {"apiVersion": value.get("apiVersion"), "kind": value["kind"].removesuffix("List")}
    for item in value["items"]:
        if isinstance(item, dict) and isinstance(item.get("metadata"), dict):
            whole_item = {**inherited, **item}  # a retry sees the item alone, and has to know what it is
            yield Watched("ADDED", whole_item, position, msgspec.json.encode(whole_item), None)
        else:
            detail = "an item of the list is not an object with metadata"
            yield Refused(position, msgspec.json.encode(item), "bad_record", detail)


# --- parts of objects ---------------------------------------------------------------------------------------


def meta(obj: Obj) -> Obj:
    metadata = obj.get("metadata")
    return metadata if isinstance(metadata, dict) else {}


def required(obj: Mapping[str, Any], name: str, where: str) -> str:
    """A non-empty string field, or `Refusal("bad_record")`."""
    value = obj.get(name)
    if not isinstance(value, str) or not value:
        raise Refusal("bad_record", f"{where} has no {name}")
    return value


def optional(obj: Mapping[str, Any], name: str) -> str | None:
    """A string field that may be absent, null or empty (all `None`); of another type it is refused."""
    value = obj.get(name)
    if value is not None and not isinstance(value, str):
        raise Refusal("bad_record", f"{name} is not a string")
    return value or None


def mapping(obj: Mapping[str, Any], name: str) -> Obj:
    """An object-valued field; absent and null are `{}`; anything else is refused."""
    value = obj.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise Refusal("bad_record", f"{name} is not an object")
    return value


def objects(obj: Mapping[str, Any], name: str) -> list[Obj]:
    """A list-of-objects field; absent and null are `[]`; anything else is refused."""
    value = obj.get(name)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise Refusal("bad_record", f"{name} is not a list of objects")
    return value


def name_of(obj: Obj) -> str:
    """`namespace/name`, or the name alone for cluster-wide objects."""
    metadata = meta(obj)
    namespace = metadata.get("namespace")
    return f"{namespace}/{metadata.get('name')}" if namespace else str(metadata.get("name"))


def condition(obj: Obj, kind: str) -> Obj | None:
    """The condition of that type, which holds only its latest transition."""
    for entry in objects(mapping(obj, "status"), "conditions"):
        if entry.get("type") == kind:
            return entry
    return None


def written_ms(watched: Watched, subresource: str | None = None) -> int | None:
    """When the object was last written, by its `managedFields` (1 s), else when a collector saw it, else
    unknown.
    """
    times = [
        instant_ms(entry["time"])
        for entry in objects(meta(watched.obj), "managedFields")
        if entry.get("time") and (subresource is None or entry.get("subresource") == subresource)
    ]
    return max(times) if times else watched.observed_ms


# --- Events -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KubeEvent:
    """One Event, whichever of the two API views it came in (cluster.md 3.4)."""

    uid: str
    reason: str
    action: str
    note: str
    regarding: Obj
    related: Obj
    reporter: str
    annotations: Obj
    first_ms: int
    last_ms: int
    count: int
    """How often the recorder saw it. Not a count of facts: both recorders merge and drop."""

    @property
    def occurrence(self) -> str:
        """Identity of the latest occurrence, stable over re-delivery."""
        return f"{self.uid}/{self.count}"

    def occurrences(self) -> list[tuple[str, int]]:
        """`(identity, instant)` of the occurrences with a known time: the last one, and the first if it
        differs.
        """
        last = [(self.occurrence, self.last_ms)]
        if self.count > 1 and self.first_ms != self.last_ms:
            return [(f"{self.uid}/1", self.first_ms), *last]
        return last


def kube_event(obj: Obj) -> KubeEvent:
    """Reads core/v1 and events.k8s.io/v1 Events, from the old and the new recorder. Raises `Refusal`."""
    metadata = meta(obj)
    series = mapping(obj, "series")
    source = mapping(obj, "source") or mapping(obj, "deprecatedSource")
    first = (
        obj.get("eventTime")
        or obj.get("firstTimestamp")
        or obj.get("deprecatedFirstTimestamp")
        or metadata.get("creationTimestamp")
    )
    if first is None:
        raise Refusal("bad_time", "the Event carries no time at all")
    component = obj.get("reportingController") or obj.get("reportingComponent") or source.get("component")
    count = series.get("count") or obj.get("count") or obj.get("deprecatedCount") or 1
    return KubeEvent(
        uid=str(
            metadata.get("uid") or f"{metadata.get('namespace')}/{required(metadata, 'name', 'the Event')}"
        ),
        reason=required(obj, "reason", "the Event"),
        action=str(obj.get("action") or ""),
        note=str(obj.get("note") or obj.get("message") or "").removeprefix(_COMBINED),
        regarding=mapping(obj, "regarding") or mapping(obj, "involvedObject"),
        related=mapping(obj, "related"),
        reporter=str(component or ""),
        annotations=mapping(metadata, "annotations"),
        first_ms=instant_ms(first),
        last_ms=instant_ms(_last_seen(obj, series) or first),
        count=max(whole(count), 1),
    )


def _last_seen(obj: Obj, series: Obj) -> Any:
    """cluster.md 3.4: the series, else the new recorder's time, else the old recorder's last one."""
    return (
        series.get("lastObservedTime")
        or obj.get("eventTime")
        or obj.get("lastTimestamp")
        or obj.get("deprecatedLastTimestamp")
    )


# --- who holds it -------------------------------------------------------------------------------------------


def holder(
    source: SourceConfig,
    namespace: str,
    labels: Mapping[str, Any],
    queues: Mapping[str, str],
    default_kind: str = "k8s_namespace",
) -> dict[str, Any]:
    """`{"service": slug}` or `{"identity": {...}}` of whatever lives in `namespace` under `labels`.

    options.service_label names the label that marks a replica of a shared service; options.identity the kind of
    identity (default: the adapter's). `queues` offers values for queue kinds. Where the configured kind has no
    value here, the namespace stands in: it shows up as unmapped instead of being lost.
    """
    service_label = source.option("service_label", "")
    if service_label and labels.get(service_label):
        return {"service": str(labels[service_label])}
    kind = source.option("identity", default_kind)
    value = labels.get(kind.removeprefix("label:")) if kind.startswith("label:") else queues.get(kind)
    if value:
        return {"identity": identity(kind, str(value))}
    return {"identity": identity("k8s_namespace", namespace)}


def kept_labels(source: SourceConfig, labels: Mapping[str, Any]) -> dict[str, str] | None:
    """The labels options.labels names, or `None` if there are none of them."""
    kept = {name: str(labels[name]) for name in source.option("labels", []) if name in labels}
    return kept or None


def service_class(source: SourceConfig, priority_class: str | None) -> str | None:
    """options.service_classes: priority class -> `guaranteed` or `preemptible`."""
    return source.option("service_classes", {}).get(priority_class) if priority_class else None
