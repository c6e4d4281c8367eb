"""`resource-quota`: ResourceQuotas -> quota, and the API server's refusals in Events -> rejections (cluster.md 3.5).

`used` counts pods that only wait, too: it is demand, never occupancy.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

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
    identity,
    refusal_of,
)
from ingest.core.adapters.kubernetes import Obj, Watched, kube_event, mapping, meta, read_objects, required
from ingest.core.adapters.quota_objects import gpus_by_pool, instant_of, quota_event

PREFIX = "requests."
"""The only prefix that the API allows for extended resources."""

_EXCEEDED = re.compile(r"exceeded quota: (?P<quota>[^,\s]+), requested: (?P<requested>.+?), used: ")


def adapt(lines: Iterable[bytes], source: SourceConfig, state: State | None) -> Iterator[Outcome]:
    """See the module; options are documented on the source's page."""
    quotas: dict[str, Obj] = {} if state is None else state.setdefault("quotas", {})
    for watched in read_objects(lines):
        if isinstance(watched, Refused):
            yield watched
            continue
        try:
            if watched.kind == "ResourceQuota":
                yield from _quota(watched, source, quotas)
            elif watched.kind == "Event":
                yield from _rejection(watched, source)
            else:
                raise Refusal(
                    "unknown_kind", f"{watched.kind or 'an object'} is neither a ResourceQuota nor an Event"
                )
        except READING_ERRORS as error:
            yield watched.refused(refusal_of(error))


def _quota(watched: Watched, source: SourceConfig, quotas: dict[str, Obj]) -> Iterator[Outcome]:
    metadata, spec, status = meta(watched.obj), mapping(watched.obj, "spec"), mapping(watched.obj, "status")
    namespace = required(metadata, "namespace", "the ResourceQuota")
    name = required(metadata, "name", "the ResourceQuota")
    limits = gpus_by_pool(_requests(mapping(status, "hard") or mapping(spec, "hard")), source, namespace)
    if spec.get("scopes") or spec.get("scopeSelector"):
        if limits:
            detail = (
                "a quota with scopes caps only some pods of the namespace; it is not the namespace's quota"
            )
            yield Notice(watched.position, "scoped_quota", detail, f"{namespace}/{name}")
        return
    used = gpus_by_pool(_requests(mapping(status, "used")), source, namespace)
    for pool, limit in limits.items():
        moment = instant_of(watched, "a ResourceQuota")
        # Several quotas of one namespace all hold: the tightest decides.
        known = quotas.setdefault(f"{namespace} {pool}", {})
        known[name] = limit
        if watched.change == "DELETED":
            del known[name]
        if known:
            who = {"identity": identity("k8s_namespace", namespace)}
            yield quota_event(
                source, f"{namespace}/{name}", moment, who, pool, min(known.values()), used.get(pool, 0)
            )


def _requests(resources: Obj) -> Obj:
    return {name.removeprefix(PREFIX): value for name, value in resources.items() if name.startswith(PREFIX)}


def _rejection(watched: Watched, source: SourceConfig) -> Iterator[Event]:
    """A controller that could not create its pods. Each occurrence with a known time counts once: at least so many."""
    seen = kube_event(watched.obj)
    match = _EXCEEDED.search(seen.note)
    if match is None:
        return
    requested = dict(part.split("=", 1) for part in match["requested"].split(",") if "=" in part)
    namespace = required(seen.regarding, "namespace", "the Event's object")
    wanted = gpus_by_pool(_requests(requested), source, namespace)
    for pool, milli in wanted.items():
        for occurrence, moment in seen.occurrences():
            data = {
                "identity": identity("k8s_namespace", namespace),
                "layer": "quota",
                "reason": f"exceeded quota {match['quota']}",
                "status": 403,
                "requested_gpus": gpus_json(milli),
                "pool": pool,
                "origin": "scheduler",
            }
            yield event(source, f"event/{occurrence}/{pool}", "rejection", moment, data)
