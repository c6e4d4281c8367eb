"""Kubernetes: list once, then watch, and go on from the last `resourceVersion` for as long as the server keeps it.

A watch is the only place where a deletion is told, and a Workload's or a Pod's conditions hold only their latest
transition, so nothing may be missed. What could not be watched (`410 Gone`) is told as a gap: the present is listed
again, and objects that are no longer there are told as deleted, at the time of the list.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ingest.collectors.contract import (
    Clock,
    CollectorError,
    Finding,
    Harvest,
    NotConfigured,
    Position,
    Window,
)
from ingest.collectors.kubernetes_api import GONE, ApiError, KubernetesApi
from ingest.collectors.kubernetes_resources import RESOURCES, Resource
from ingest.collectors.table import CollectTable
from ingest.core.adapters.base import Notice, SourceConfig, rfc3339

SETTLE_MS = 300_000
"""Events are written after what they tell of; this long after it all of them are there."""
FAILURES = 3
"""Watches that break off one after another, before the rest of the cycle is given up."""
PLAIN_RESOURCES = frozenset({"cpu", "memory", "ephemeral-storage", "storage", "pods"})
"""What a Pod asks for without holding a device."""

Obj = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Feed:
    """One resource in one place: what is listed and watched by itself."""

    key: str
    path: str
    query: Mapping[str, str]
    resource: Resource


@dataclass(slots=True)
class Followed:
    """What one feed brought in one cycle."""

    lines: list[tuple[int, bytes]] = field(default_factory=list)
    kept: dict[str, Any] = field(default_factory=dict)
    """`version`, `seen_ms` and `known` {uid: object}, as they go into the position."""
    notices: list[Notice] = field(default_factory=list)
    problem: str = ""


class KubernetesCollector:
    has_past = False
    reads_once = False

    def __init__(self, source: SourceConfig, table: CollectTable, clock: Clock) -> None:
        self._resources = RESOURCES[source.adapter]
        self._plain = PLAIN_RESOURCES - set(source.meters.values())
        self._clock = clock
        self._api = KubernetesApi(table)
        self._namespaces = table.words("namespaces")
        self._selectors = table.texts("label_selectors")
        self._seconds = table.whole("watch_seconds", 50, least=1)
        table.refuse_unknown()
        unknown = self._selectors.keys() - {resource.plural for resource in self._resources}
        if unknown:
            raise table.wrong("label_selectors", f"names {min(unknown)!r}, which this adapter does not read")

    @property
    def longest_step_ms(self) -> int:
        return (self._seconds + 2 * self._api.timeout_s) * 1000

    # --- collecting -----------------------------------------------------------------------------------------

    def steps(self, position: Position, window: Window | None) -> Iterator[Harvest]:
        """One harvest: every resource, watched side by side for `watch_seconds`."""
        if window is not None:
            raise NotConfigured("the Kubernetes API keeps no past: collect without --since and --until")
        feeds = self._feeds()
        before: dict[str, Any] = position.get("feeds", {})
        with ThreadPoolExecutor(max_workers=len(feeds)) as threads:
            followed = list(threads.map(lambda feed: self._follow(feed, before.get(feed.key, {})), feeds))
        problems = [one.problem for one in followed if one.problem]
        seen = [one.kept["seen_ms"] for one in followed if one.kept]
        if not seen:
            raise CollectorError(
                "; ".join(dict.fromkeys(problems)) or f"{self._api.address} has none of what is read"
            )
        merged = sorted((line for one in followed for line in one.lines), key=lambda line: line[0])
        yield Harvest(
            lines=[line for _, line in merged],
            position={"feeds": {f.key: one.kept for f, one in zip(feeds, followed, strict=True) if one.kept}},
            reached_ms=min(seen),
            settled_ms=min(seen) - SETTLE_MS,
            notices=[notice for one in followed for notice in one.notices],
            problems=problems,
        )

    def _follow(self, feed: Feed, kept: Mapping[str, Any]) -> Followed:
        """One cycle of one feed. Whatever was read before something broke is kept, with the place it reached."""
        followed = Followed(kept=dict(kept))
        if "known" in followed.kept:
            followed.kept["known"] = dict(followed.kept["known"])
        try:
            if not followed.kept:
                self._list(feed, followed)
            self._watch(feed, followed)
        except ApiError as error:
            if error.status != 404 or not feed.resource.optional:
                followed.problem = str(error)
        except CollectorError as error:
            followed.problem = str(error)
        return followed

    def _watch(self, feed: Feed, followed: Followed) -> None:
        ends_ms = self._clock() + self._seconds * 1000
        failures = 0
        while (seconds := (ends_ms - self._clock() + 999) // 1000) > 0:
            try:
                for line in self._api.watch(feed.path, feed.query, followed.kept["version"], seconds):
                    self._take(line, followed)
                    failures = 0
                followed.kept["seen_ms"] = self._clock()
            except ApiError as error:
                if error.status == GONE:
                    self._list(feed, followed)
                    continue
                failures += 1
                if error.status or failures >= FAILURES:
                    raise
            threading.Event().wait(0.05)  # a server that ends watches at once is not asked without a breath

    def _take(self, line: bytes, followed: Followed) -> None:
        """One watch event: the place it moves to, and the record it gives."""
        try:
            change = msgspec.json.decode(line)
            kind, obj = change["type"], change["object"]
        except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError):
            # Its version cannot be known: the record goes to the adapter, which refuses and so keeps it.
            followed.lines.append((self._clock(), line))
            return
        if kind == "ERROR":
            raise ApiError(
                int(obj.get("code") or 0), f"the watch ended: {obj.get('message') or obj.get('reason')}"
            )
        now_ms = self._clock()
        metadata = obj.get("metadata") or {}
        followed.kept["version"] = str(metadata.get("resourceVersion") or followed.kept["version"])
        followed.kept["seen_ms"] = now_ms
        if kind == "BOOKMARK":
            return
        uid = str(metadata.get("uid") or "")
        remembered = None if kind == "DELETED" else what_to_remember(obj, self._plain)
        if remembered is None:
            followed.kept["known"].pop(uid, None)
        else:
            followed.kept["known"][uid] = remembered
        followed.lines.append((now_ms, observed(kind, obj, now_ms)))

    def _list(self, feed: Feed, followed: Followed) -> None:
        """The present. After a gap: also what is no longer there, and the gap itself."""
        listed = self._api.list_all(feed.path, feed.query)
        now_ms = self._clock()
        before = followed.kept
        uids = {str((item.get("metadata") or {}).get("uid")) for item in listed.items}
        for item in listed.items:
            followed.lines.append((now_ms, observed("ADDED", item, now_ms)))
        for uid, obj in before.get("known", {}).items():
            if uid not in uids:
                followed.lines.append((now_ms, observed("DELETED", obj, now_ms)))
        if before:
            detail = f"{feed.key} could not be watched: changes are not known, deletions are dated at its end"
            followed.notices.append(Notice(0, "watch_gap", detail, feed.key, before["seen_ms"], now_ms))
        known = {
            str(obj["metadata"].get("uid")): remembered
            for obj in listed.items
            if (remembered := what_to_remember(obj, self._plain)) is not None
        }
        followed.kept = {"version": listed.version, "seen_ms": now_ms, "known": known}

    # --- which resources ------------------------------------------------------------------------------------

    def _feeds(self) -> list[Feed]:
        return [feed for resource in self._resources for feed in self._feeds_of(resource)]

    def _feeds_of(self, resource: Resource) -> list[Feed]:
        root = f"/apis/{resource.group}" if resource.group else "/api"
        try:
            version = resource.version or self._preferred(root)
        except ApiError as error:
            if error.status == 404 and resource.optional:
                return []
            raise
        selector = self._selectors.get(resource.plural)
        query = {"labelSelector": selector} if selector else {}
        if not resource.namespaced or not self._namespaces:
            return [Feed(resource.name, f"{root}/{version}/{resource.plural}", query, resource)]
        return [
            Feed(
                f"{resource.name}/{name}",
                f"{root}/{version}/namespaces/{name}/{resource.plural}",
                query,
                resource,
            )
            for name in self._namespaces
        ]

    def _preferred(self, root: str) -> str:
        preferred = self._api.get(root).get("preferredVersion") or {}
        return str(preferred.get("version") or "v1")

    # --- checking -------------------------------------------------------------------------------------------

    def check(self) -> Iterator[Finding]:
        version = self._api.get("/version").get("gitVersion", "of unknown version")
        yield Finding(True, self._api.address, f"Kubernetes {version} answers")
        for resource in self._resources:
            try:
                feeds = self._feeds_of(resource)
                if not feeds:
                    raise ApiError(404, "not installed")
                for feed in feeds:
                    yield self._check_feed(feed)
            except ApiError as error:
                why = "not installed in this cluster" if error.status == 404 else str(error)
                if error.status == 403:
                    why = f"forbidden: give get, list and watch on {resource.name}"
                ok = error.status == 404 and resource.optional
                yield Finding(ok, resource.name, f"{why}: without it there is no {resource.loss}")

    def _check_feed(self, feed: Feed) -> Finding:
        page = self._api.get(feed.path, {**feed.query, "limit": 1})
        metadata = page.get("metadata") or {}
        count = len(page.get("items") or []) + int(metadata.get("remainingItemCount") or 0)
        for line in self._api.watch(feed.path, feed.query, str(metadata.get("resourceVersion", "")), 1):
            del line
            break
        more = " or more" if metadata.get("continue") and "remainingItemCount" not in metadata else ""
        return Finding(True, feed.key, f"{count}{more} objects would be listed, then watched")


def observed(change: str, obj: Obj, at_ms: int) -> bytes:
    """A watch event with the instant it was received, which dates what the API does not date."""
    return msgspec.json.encode({"type": change, "object": obj, "observed_at": rfc3339(at_ms)})


def what_to_remember(obj: Obj, plain: Set[str] = PLAIN_RESOURCES) -> Obj | None:
    """What must be known of an object to tell its deletion if no watch does; `None` if nobody would miss it.

    Events and what is over hold nothing any more; Pods matter if they ask for more than `plain`.
    """
    kind, spec, status = obj.get("kind"), obj.get("spec") or {}, obj.get("status") or {}
    if kind == "Event" or status.get("phase") in ("Succeeded", "Failed"):
        return None
    if any(c.get("type") == "Finished" and c.get("status") == "True" for c in status.get("conditions") or ()):
        return None
    if kind == "Pod" and not _asked_resources(spec) - plain:
        return None
    metadata = {name: value for name, value in (obj.get("metadata") or {}).items() if name != "managedFields"}
    return {**obj, "metadata": metadata}


def _asked_resources(spec: Obj) -> set[str]:
    containers = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
    resources = [container.get("resources") or {} for container in containers]
    named = {name for one in resources for part in ("requests", "limits") for name in one.get(part) or {}}
    return named | ({"resourceClaims"} if spec.get("resourceClaims") else set())
