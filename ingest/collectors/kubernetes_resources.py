"""Which resources of the Kubernetes API each adapter reads, and what is lost without them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Resource:
    group: str
    """Empty for the core API."""
    plural: str
    loss: str
    """What is not known without it."""
    namespaced: bool = True
    optional: bool = False
    """A cluster may well not have it."""
    version: str = ""
    """Empty: what the API server prefers."""

    @property
    def name(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural


PODS = Resource("", "pods", "occupancy, pending and the Pods of preemptions", version="v1")
NODES = Resource("", "nodes", "capacity", namespaced=False, optional=True, version="v1")
EVENTS = Resource("events.k8s.io", "events", "who preempted whom", version="v1")
QUOTAS = Resource("", "resourcequotas", "quota of namespaces", version="v1")

RESOURCES: dict[str, tuple[Resource, ...]] = {
    "kueue": (
        Resource("kueue.x-k8s.io", "workloads", "occupancy, pending and preemptions"),
        Resource("kueue.x-k8s.io", "clusterqueues", "quota", namespaced=False, optional=True),
        EVENTS,
    ),
    "volcano": (
        PODS,
        Resource("scheduling.volcano.sh", "podgroups", "gangs and their queues"),
        Resource("scheduling.volcano.sh", "queues", "quota", namespaced=False, optional=True),
        EVENTS,
    ),
    "kube-events": (PODS, EVENTS),
    "kube-pods": (PODS, NODES),
    "resource-quota": (QUOTAS, EVENTS),
    "elastic-quota": (
        Resource("scheduling.x-k8s.io", "elasticquotas", "quota of scheduler-plugins", optional=True),
        Resource("scheduling.sigs.k8s.io", "elasticquotatrees", "quota trees of ACK", optional=True),
        Resource("scheduling.x-k8s.io", "queueunits", "what waits in ACK's kube-queue", optional=True),
        EVENTS,
    ),
    "kai": (
        PODS,
        Resource("scheduling.run.ai", "podgroups", "gangs and their queues", version="v2alpha2"),
        Resource("scheduling.run.ai", "queues", "quota", namespaced=False, optional=True, version="v2"),
        EVENTS,
    ),
    "koordinator": (
        PODS,
        Resource("scheduling.sigs.k8s.io", "elasticquotas", "quota and overuse"),
        EVENTS,
    ),
}
