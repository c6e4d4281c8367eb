"""`dcgm`: which GPUs there are, and which Pod is on each, from the labels of dcgm-exporter's series (cluster.md 4.4).

Utilisation is not occupancy: a GPU that a Pod holds and leaves idle is held. So any series of a GPU only says that the
GPU exists, and its pod labels who holds it; a change is known to one scrape. Series without pod labels are idle GPUs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

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
from ingest.core.adapters.gpu_resources import gpu_milli
from ingest.core.adapters.kubernetes import holder
from ingest.core.adapters.prometheus import Sample, read_scrapes

Devices = dict[str, tuple[str, int]]
"""GPU or MIG instance -> (who is on it: `uid namespace pod` or empty, its milli-GPU)."""
KEPT_HOST = "host_of_samples"


class HostOfSamples(msgspec.Struct, tag=KEPT_HOST):
    """Who holds GPUs of a host in no pool from an instant on, as a record that can be read again."""

    host: str
    at_ms: int
    pods: dict[str, int]
    """`uid namespace pod` -> milli-GPU; 0 for one that was there until now."""


def adapt(lines: Iterable[bytes], source: SourceConfig, state: State | None) -> Iterator[Outcome]:
    """See the module; options are documented on the source's page."""
    kept: State = {} if state is None else state
    hosts = kept.setdefault("hosts", {})
    seen: dict[int, dict[str, Devices]] = {}
    again: list[set_aside.Kept] = []
    for scrape in read_scrapes(set_aside.without_kept(lines, KEPT_HOST, again), source):
        if isinstance(scrape, Refused):
            yield scrape
            continue
        for sample in scrape.in_order():
            try:
                _note(sample, source, seen)
            except READING_ERRORS as error:
                yield sample.refused(refusal_of(error))
    for moment in sorted(seen):
        for host in sorted(seen[moment]):
            yield from _host(host, moment, seen[moment][host], source, hosts)
        yield from _capacity(moment, source, kept)
    for position, line in again:
        try:
            yield from _host_again(line, source)
        except READING_ERRORS as error:
            yield refusal_of(error).at(position, line)


def _label(labels: dict[str, str], *names: str) -> str:
    """A label under its present, its old, or its `exported_` name (`honor_labels: false`)."""
    for name in names:
        value = labels.get(f"exported_{name}") or labels.get(name)
        if value:
            return value
    return ""


def _note(sample: Sample, source: SourceConfig, seen: dict[int, dict[str, Devices]]) -> None:
    if not sample.name.startswith("DCGM_FI_"):
        return
    labels = sample.labels
    device = _label(labels, "UUID", "uuid")
    host = _label(labels, "Hostname", "hostname")
    if not device or not host:
        raise Refusal("bad_record", "a DCGM series without UUID or Hostname")
    if labels.get("GPU_I_ID"):
        device = f"{device}/{labels['GPU_I_ID']}"
    pod = _label(labels, "pod", "pod_name")
    who = ""
    # A Slurm job on the GPU makes a copy of the series per job; the device is still one.
    if pod:
        namespace = _label(labels, "namespace", "pod_namespace")
        who = f"{labels.get('pod_uid', '')} {namespace} {pod}"
        if len(who.split(" ")) != 3 or not namespace:
            raise Refusal("bad_record", f"{namespace!r}/{pod!r} is not the name of a Pod")
    devices = seen.setdefault(sample.at_ms, {}).setdefault(host, {})
    if who or device not in devices:
        devices[device] = (who, _milli(labels.get("GPU_I_PROFILE", ""), source))


def _milli(profile: str, source: SourceConfig) -> int:
    return gpu_milli({f"nvidia.com/mig-{profile}": 1}, source) if profile else 1000


def _host(
    host: str, moment: int, devices: Devices, source: SourceConfig, hosts: dict[str, Any]
) -> Iterator[Outcome]:
    """What changed on one host since its scrape before; a late scrape of the past changes nothing."""
    fresh: dict[str, Any] = {"at": None, "pods": {}}
    known = hosts.setdefault(host, fresh)
    if known["at"] is not None and moment <= known["at"]:
        return
    longest = source.option("scrape_seconds", 60) * 2500
    if known["at"] is not None and moment - known["at"] > longest:
        detail = (
            f"no samples of {host} in between: levels are kept as they were, and changes show only after it"
        )
        yield Notice(1, "missed_samples", detail, host, known["at"], moment)
    held: dict[str, int] = {}
    for who, milli in devices.values():
        if who:
            held[who] = held.get(who, 0) + milli
    before, was_unplaced = known["pods"], known.pop("unplaced", False)
    changed = {who: held.get(who, 0) for who in {*before, *held} if before.get(who, 0) != held.get(who, 0)}
    try:
        pool = source.pool_for(host)
    except Refusal as refusal:
        if changed or known["at"] is None:
            yield set_aside.refused(HostOfSamples(host, moment, changed), refusal)
        known.update(at=moment, pods=held, unplaced=True)
        known.pop("pool", None)
        return
    known.update(at=moment, pods=held, pool=pool, milli=sum(milli for _, milli in devices.values()))
    if source.option("occupancy", True):
        # What came before the host had a pool may never be tried again: then it holds from here on.
        for who, milli in sorted({**changed, **(held if was_unplaced else {})}.items()):
            yield _occupancy(source, who, host, pool, moment, milli)


def _host_again(line: bytes, source: SourceConfig) -> Iterator[Event]:
    """What was refused. Raises `Refusal`."""
    one = set_aside.read_kept(line, HostOfSamples)
    pool = source.pool_for(one.host)
    if source.option("occupancy", True):
        for who, milli in sorted(one.pods.items()):
            yield _occupancy(source, who, one.host, pool, one.at_ms, milli)


def _occupancy(source: SourceConfig, who: str, host: str, pool: str, moment: int, milli: int) -> Event:
    uid, namespace, pod = who.split(" ")
    workload = uid or f"{namespace}/{pod}"
    data: dict[str, Any] = {
        "workload": workload,
        **holder(source, namespace, {}, {}),
        "pool": pool,
        "gpus": gpus_json(milli),
    }
    if milli:
        data |= {"name": f"{namespace}/{pod}", "nodes": [host]}
    return event(source, f"{workload}/{rfc3339(moment)}", "occupancy", moment, data)


def _capacity(moment: int, source: SourceConfig, state: State) -> Iterator[Event]:
    """The sum over hosts, where options.capacity asks for it: each host is another exporter and may just be silent."""
    if not source.option("capacity", False):
        return
    totals: dict[str, int] = {}
    for host in state["hosts"].values():
        if "pool" in host:
            totals[host["pool"]] = totals.get(host["pool"], 0) + host["milli"]
    told = state.setdefault("capacity", {})
    for pool, milli in sorted(totals.items()):
        if told.get(pool) != milli:
            told[pool] = milli
            data = {"pool": pool, "gpus": gpus_json(milli)}
            yield event(source, f"capacity/{pool}/{rfc3339(moment)}", "capacity", moment, data)
