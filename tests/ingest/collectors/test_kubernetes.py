"""With the official client, against recorded streams: resumed where it was left, and every gap told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command

from ingest.collectors.contract import CollectorError
from ingest.collectors.kubernetes import what_to_remember
from ingest.collectors.running import collect
from ingest.models import Batch, QuarantinedEvent
from ledger.management.base import BadInput, CommandFailed
from ledger.models import Event, FactFinding, Level, LevelKind, Source
from tests.core.adapters.pod_records import ENDED, VICTIM, pod
from tests.ingest.collectors.api_server import (
    GONE_STATUS,
    Answer,
    Recording,
    bookmark,
    change,
    listing,
    playing,
    refusal,
    versioned,
)
from tests.ingest.collectors.world import book, configure

pytestmark = pytest.mark.django_db

PODS, NODES = "/api/v1/pods", "/api/v1/nodes"
OTHER = "d0000000-0000-4000-8000-0000000000bb"


@pytest.fixture
def api() -> Iterator[Recording]:
    recording = Recording(
        gets={
            "/version": [Answer({"gitVersion": "v1.33.1"})],
            PODS: [listing("Pod", "100", versioned(pod(), "90"))],
            NODES: [listing("Node", "100")],
        }
    )
    with playing(recording):
        yield recording


def source_of(api: Recording, adapter: str = "kube-pods", **more: Any) -> Source:
    return configure(adapter, {"server": api.address, "watch_seconds": 1, **more})


def cycle(source: Source) -> list[Any]:
    steps = list(collect(source))
    book(steps)
    return steps


def kept(source: Source, feed: str = "pods") -> dict[str, Any]:
    return dict(Source.objects.get(pk=source.pk).state["position"]["feeds"][feed])


def levels() -> list[tuple[str, int]]:
    """Occupancy: (workload, milli-GPU) in order of time."""
    rows = Level.objects.filter(kind=LevelKind.OCCUPANCY).order_by("starts_at")
    return list(rows.values_list("subject", "milli_gpus"))


def test_lists_once_then_watches_from_where_it_was_left(api: Recording) -> None:
    source = source_of(api)
    api.watches[PODS] = [Answer([change("MODIFIED", versioned(pod(), "101")), bookmark("250")])]
    cycle(source)
    assert api.watched(PODS)[:2] == ["100", "250"]  # the bookmark moved the place, without an object
    assert kept(source)["version"] == "250"
    assert levels() == [(VICTIM, 8000)]
    ended = versioned(pod(ended=ENDED), "260")
    seen = len(api.watched(PODS))
    api.watches[PODS] = [Answer([change("MODIFIED", ended), change("DELETED", versioned(ended, "261"))])]
    cycle(source)
    assert api.watched(PODS)[seen] == "250"
    assert api.listed(PODS) == 1
    assert levels() == [(VICTIM, 8000), (VICTIM, 0)]
    assert not FactFinding.objects.exists() and not QuarantinedEvent.objects.exists()
    assert kept(source) | {"seen_ms": 0} == {"version": "261", "seen_ms": 0, "known": {}}


@pytest.mark.parametrize(
    "gone",
    [Answer([change("ERROR", GONE_STATUS)]), Answer(GONE_STATUS, 410)],
    ids=["inside the stream", "instead of it"],
)
def test_gone_lists_again_and_tells_the_gap_and_the_deletions_in_it(api: Recording, gone: Answer) -> None:
    source = source_of(api)
    cycle(source)
    before_ms = kept(source)["seen_ms"]
    api.gets[PODS] = [listing("Pod", "900", versioned(pod(OTHER, name="infer-6"), "880"))]
    api.watches[PODS] = [gone]
    cycle(source)
    assert kept(source)["version"] == "900"
    assert sorted(levels()) == sorted([(VICTIM, 8000), (OTHER, 8000), (VICTIM, 0)])
    finding = FactFinding.objects.get()
    assert (finding.code, finding.subject, finding.blocks_close) == ("watch_gap", "it: pods", False)
    assert finding.detail["starts_ms"] == before_ms < finding.detail["ends_ms"]
    # The deletion is dated by when it was noticed; the API told nobody when it was.
    released = Level.objects.get(kind=LevelKind.OCCUPANCY, subject=VICTIM, milli_gpus=0)
    assert round(released.starts_at.timestamp() * 1000) == finding.detail["ends_ms"]


def test_pages_of_a_list_and_one_that_expires_on_the_way(api: Recording) -> None:
    first, second = versioned(pod(), "1"), versioned(pod(OTHER, name="infer-6"), "2")
    api.gets[PODS] = [
        listing("Pod", "100", first, more="token-1"),
        listing("Pod", "100", second),
    ]
    source = source_of(api, page_size=1)
    cycle(source)
    pages = [a.query for a in api.asked if a.path == PODS and "watch" not in a.query]
    assert pages == [{"limit": "1"}, {"limit": "1", "continue": "token-1"}]
    assert sorted(levels()) == sorted([(VICTIM, 8000), (OTHER, 8000)])


def test_an_expired_page_starts_over_in_one_piece(api: Recording) -> None:
    both = [versioned(pod(), "1"), versioned(pod(OTHER, name="infer-6"), "2")]
    api.gets[PODS] = [
        listing("Pod", "100", both[0], more="token-1"),
        Answer(GONE_STATUS, 410),
        listing("Pod", "150", *both),
    ]
    source = source_of(api, page_size=1)
    cycle(source)
    assert kept(source)["version"] == "150"
    assert sorted(levels()) == sorted([(VICTIM, 8000), (OTHER, 8000)])


def test_a_stream_that_breaks_off_inside_a_line_is_resumed_and_loses_nothing(api: Recording) -> None:
    source = source_of(api)
    whole = change("ADDED", versioned(pod(OTHER, name="infer-6"), "111"))
    api.watches[PODS] = [
        Answer([change("MODIFIED", versioned(pod(), "110")), whole[:40]], breaks_off=True),
        Answer([whole[:70], whole[70:]]),
    ]
    (step,) = cycle(source)
    assert api.watched(PODS)[:2] == ["100", "110"]
    assert step.problems == []
    assert sorted(levels()) == sorted([(VICTIM, 8000), (OTHER, 8000)])


def test_what_is_forbidden_is_told_and_the_rest_goes_on(api: Recording) -> None:
    api.gets[NODES] = [refusal(403, 'nodes is forbidden: User "ledger" cannot list resource "nodes"')]
    source = source_of(api)
    (step,) = cycle(source)
    assert step.problems == [
        f'{api.address}{NODES}: 403 nodes is forbidden: User "ledger" cannot list resource "nodes"'
    ]
    assert levels() == [(VICTIM, 8000)]
    assert Source.objects.get(pk=source.pk).state["last"]["problems"] == step.problems
    # Once allowed, it is listed as if for the first time.
    api.gets[NODES] = [listing("Node", "300")]
    (step,) = cycle(source)
    assert step.problems == [] and kept(source, "nodes")["version"] == "300"


def test_all_forbidden_keeps_nothing(api: Recording) -> None:
    api.gets |= {PODS: [refusal(403, "no")], NODES: [refusal(403, "no")]}
    source = source_of(api)
    with pytest.raises(CollectorError, match="403 no"):
        cycle(source)
    assert not Batch.objects.exists() and "position" not in Source.objects.get(pk=source.pk).state


def test_an_unreadable_watch_event_is_quarantined_and_its_neighbours_are_booked(api: Recording) -> None:
    source = source_of(api)
    api.watches[PODS] = [
        Answer([b'{"type":"MODIFIED","object":{"kind":"Po\n', change("ADDED", versioned(pod(OTHER), "120"))])
    ]
    cycle(source)
    quarantined = QuarantinedEvent.objects.get()
    assert (quarantined.reason, bytes(quarantined.raw)) == (
        "not_json",
        b'{"type":"MODIFIED","object":{"kind":"Po',
    )
    assert quarantined.source_uri == source.uri
    assert (OTHER, 8000) in levels()
    assert kept(source)["version"] == "120"


def test_the_preferred_version_of_a_group_is_asked_for(api: Recording) -> None:
    group = "/apis/kueue.x-k8s.io"
    workload = {"metadata": {"uid": "w1", "name": "w", "namespace": "a", "resourceVersion": "5"}, "spec": {}}
    api.gets |= {
        group: [Answer({"kind": "APIGroup", "preferredVersion": {"version": "v1beta2"}})],
        f"{group}/v1beta2/workloads": [
            listing("Workload", "7", workload, api_version="kueue.x-k8s.io/v1beta2")
        ],
        f"{group}/v1beta2/clusterqueues": [listing("ClusterQueue", "7")],
        "/apis/events.k8s.io/v1/events": [listing("Event", "7")],
    }
    source = source_of(api, "kueue")
    cycle(source)
    known = kept(source, "workloads.kueue.x-k8s.io")["known"]["w1"]
    assert (known["kind"], known["apiVersion"]) == ("Workload", "kueue.x-k8s.io/v1beta2")


def test_namespaces_and_selectors_narrow_what_is_read(api: Recording) -> None:
    path = "/api/v1/namespaces/team-b/pods"
    api.gets[path] = [listing("Pod", "100", versioned(pod(), "90"))]
    source = source_of(api, namespaces=["team-b"], label_selectors={"pods": "gpu=yes"})
    cycle(source)
    assert api.listed(PODS) == 0
    assert {a.query.get("labelSelector") for a in api.asked if a.path == path} == {"gpu=yes"}
    assert kept(source, "pods/team-b")["version"] == "100"


def test_credentials_of_a_kubeconfig_are_the_clients_business(api: Recording, tmp_path: Path) -> None:
    kubeconfig = tmp_path / "config"
    kubeconfig.write_text(
        json.dumps(
            {
                "clusters": [{"name": "c", "cluster": {"server": api.address}}],
                "users": [{"name": "u", "user": {"token": "s3cret"}}],
                "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                "current-context": "x",
            }
        )
    )
    source = configure("kube-pods", {"kubeconfig": str(kubeconfig), "watch_seconds": 1})
    cycle(source)
    assert {asked.token for asked in api.asked} == {"Bearer s3cret"}
    assert "s3cret" not in json.dumps(Source.objects.get(pk=source.pk).state)


def test_check_source_says_what_may_be_read_and_what_is_missing(
    api: Recording, capsys: pytest.CaptureFixture[str]
) -> None:
    api.gets[NODES] = [refusal(403, "nodes is forbidden")]
    source_of(api)
    with pytest.raises(CommandFailed, match="1 of what source 'it' needs"):
        call_command("check_source", "it")
    said = capsys.readouterr().out.splitlines()
    assert said == [
        f"ok       {api.address}: Kubernetes v1.33.1 answers",
        "ok       pods: 1 objects would be listed, then watched",
        "MISSING  nodes: forbidden: give get, list and watch on nodes: without it there is no capacity",
    ]
    assert not Event.objects.exists() and not Batch.objects.exists()


def test_there_is_no_past_to_collect(api: Recording) -> None:
    source_of(api)
    with pytest.raises(BadInput, match="keeps no past"):
        call_command("collect", "it", "--since", "2026-09-01")


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({}, "options.collect.server is needed outside a cluster"),
        ({"kubeconfig": "/no/such/file"}, "options.collect.kubeconfig is needed"),
        (
            {"server": "http://x", "label_selectors": {"jobs": "a"}},
            "names 'jobs', which this adapter does not read",
        ),
        ({"server": "http://x", "wait": 1}, "options.collect.wait is not known"),
    ],
)
def test_a_wrong_table_is_one_line(table: dict[str, Any], said: str) -> None:
    configure("kube-pods", table)
    with pytest.raises(BadInput, match=said):
        call_command("collect", "it")


def test_only_what_may_hold_devices_is_remembered() -> None:
    remembered = what_to_remember(pod())
    assert remembered is not None and remembered["metadata"]["uid"] == VICTIM
    with_fields = pod()
    with_fields["metadata"]["managedFields"] = [{"manager": "kubelet"}]
    assert "managedFields" not in str(what_to_remember(with_fields))
    plain = pod(resources={"cpu": "1", "memory": "1Gi"})
    assert what_to_remember(plain) is None
    assert what_to_remember(plain, frozenset({"memory"})) is not None  # a pool that meters CPU
    assert what_to_remember(pod(ended=ENDED)) is None
    assert what_to_remember({"kind": "Event", "metadata": {"uid": "e"}}) is None
    claims = pod(resources={"cpu": "1"}, spec={"resourceClaims": [{"name": "gpu"}]})
    assert what_to_remember(claims) is not None
