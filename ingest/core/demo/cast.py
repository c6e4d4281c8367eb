"""Who plays in the demo month: pools, tenants, services, reservations and the work they send.

Written for about 900 GPUs; `company` scales it. The stories the month tells are named where they are set up:
- ads-ranking reserves far more than it uses at night; others borrow it and are sent away every weekday morning;
- gov-cloud's reservation may not be lent; mobile leaves, robotics arrives, vision's reservation grows;
- assistant launches on a weekday in the middle of the month (launch.py).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

GPUS_WRITTEN_FOR = 912
FEWEST_GPUS = 128
FEWEST_TENANTS = 6
GPUS_PER_NODE = 8

# Kubernetes priority classes and their values. Higher may take from lower.
PRIORITIES = {"batch-low": 10, "batch": 20, "interactive": 30, "serving": 50, "launch-critical": 90}


@dataclass(frozen=True, slots=True)
class PoolPlan:
    slug: str
    cluster: str
    gpu_model: str
    nodes: int
    name: str
    region: str

    @property
    def gpus(self) -> int:
        return self.nodes * GPUS_PER_NODE


@dataclass(frozen=True, slots=True)
class TenantPlan:
    slug: str
    name: str
    alias: str
    parent: str = ""
    joins_on: int = 1
    leaves_on: int = 0  # 0: stays


@dataclass(frozen=True, slots=True)
class ReservationPlan:
    """`changes`: (day, GPUs) after the first of the month."""

    holder: str
    pool: str
    gpus: int
    lendable: bool = True
    changes: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class DeploymentPlan:
    """Replicas that follow a rhythm: `low` at its quietest, `high` at its busiest."""

    holder: str
    name: str
    pool: str
    milli_gpus: int
    low: int
    high: int
    rhythm: str
    service_class: str = "guaranteed"


@dataclass(frozen=True, slots=True)
class JobPlan:
    """A stream of batch jobs. hours: median of the running time; checkpoint_min 0: none is written."""

    tenant: str
    name: str
    pools: tuple[str, ...]
    milli_gpus: tuple[int, ...]
    per_day: float
    hours: float
    rhythm: str
    priority_class: str = "batch"
    service_class: str = "guaranteed"
    checkpoint_min: int = 0


@dataclass(frozen=True, slots=True)
class Company:
    pools: tuple[PoolPlan, ...]
    tenants: tuple[TenantPlan, ...]
    reservations: tuple[ReservationPlan, ...]
    deployments: tuple[DeploymentPlan, ...]
    jobs: tuple[JobPlan, ...]
    scale: float


SERVICES = {"qwen3-235b": "bj-h200", "deepseek-v3": "sh-h20"}
LAUNCH_POOL = "bj-h100"

_POOLS = (
    PoolPlan("bj-h100", "bj-1", "H100", 40, "Beijing H100", "cn-beijing"),
    PoolPlan("bj-h200", "bj-1", "H200", 32, "Beijing H200", "cn-beijing"),
    PoolPlan("sh-h100", "sh-2", "H100", 20, "Shanghai H100", "cn-shanghai"),
    PoolPlan("sh-h20", "sh-2", "H20", 16, "Shanghai H20", "cn-shanghai"),
    PoolPlan("sh-l40s", "sh-2", "L40S", 6, "Shanghai L40S, shared by fractions", "cn-shanghai"),
)

# In the order in which --tenants keeps them: the stories first.
_TENANTS = (
    TenantPlan("assistant", "Assistant", "Consumer product A", "products"),
    TenantPlan("research", "Foundation research", "Research group R", "labs"),
    TenantPlan("ads-ranking", "Ads ranking", "Ranking product K", "products"),
    TenantPlan("gov-cloud", "Government cloud", "Sovereign customer G", "customers"),
    TenantPlan("robotics", "Robotics", "Research group B", "labs", joins_on=12),
    TenantPlan("mobile", "Mobile apps", "Consumer product M", "products", leaves_on=18),
    TenantPlan("search", "Search", "Consumer product S", "products"),
    TenantPlan("vision", "Vision", "Research group V", "labs"),
    TenantPlan("code", "Code assistant", "Developer product C", "products"),
    TenantPlan("safety", "Safety evaluation", "Evaluation group E", "labs"),
    TenantPlan("data-platform", "Data platform", "Shared platform D", "platforms"),
    TenantPlan("speech", "Speech", "Consumer product P", "products"),
)

_RESERVATIONS = (
    ReservationPlan("research", "bj-h100", 96),
    ReservationPlan("ads-ranking", "bj-h100", 88),
    ReservationPlan("assistant", "bj-h100", 40),
    ReservationPlan("search", "bj-h100", 36),
    ReservationPlan("safety", "bj-h100", 12),
    ReservationPlan("assistant", "bj-h200", 72),
    ReservationPlan("qwen3-235b", "bj-h200", 56),
    ReservationPlan("research", "bj-h200", 32),
    ReservationPlan("code", "bj-h200", 36),
    ReservationPlan("vision", "sh-h100", 40, changes=((15, 56),)),
    ReservationPlan("robotics", "sh-h100", 0, changes=((12, 40), (24, 48))),
    ReservationPlan("data-platform", "sh-h100", 8),
    ReservationPlan("deepseek-v3", "sh-h20", 48),
    ReservationPlan("gov-cloud", "sh-h20", 32, lendable=False),
    ReservationPlan("mobile", "sh-h20", 16, changes=((18, 0),)),
    ReservationPlan("speech", "sh-h20", 8),
    ReservationPlan("speech", "sh-l40s", 8),
    ReservationPlan("vision", "sh-l40s", 8),
    ReservationPlan("code", "sh-l40s", 4),
)

_DEPLOYMENTS = (
    DeploymentPlan("assistant", "assistant-chat", "bj-h200", 8000, 3, 11, "consumer"),
    DeploymentPlan("assistant", "assistant-agent", "bj-h100", 4000, 4, 15, "consumer"),
    DeploymentPlan("qwen3-235b", "qwen3-235b-decode", "bj-h200", 8000, 3, 8, "consumer"),
    DeploymentPlan("deepseek-v3", "deepseek-v3-ep16", "sh-h20", 16000, 1, 3, "consumer"),
    DeploymentPlan("search", "search-rerank", "bj-h100", 4000, 4, 12, "consumer"),
    DeploymentPlan("ads-ranking", "ads-ranker", "bj-h100", 8000, 1, 9, "office"),
    DeploymentPlan("code", "code-complete", "bj-h200", 4000, 1, 6, "office"),
    DeploymentPlan("gov-cloud", "gov-chat", "sh-h20", 8000, 2, 3, "office"),
    DeploymentPlan("mobile", "mobile-assist", "sh-h20", 4000, 1, 4, "consumer"),
    DeploymentPlan("speech", "speech-asr", "sh-l40s", 500, 6, 26, "consumer"),
    DeploymentPlan("speech", "speech-tts", "sh-h20", 2000, 1, 4, "consumer"),
    DeploymentPlan("assistant", "assistant-embed", "sh-l40s", 500, 2, 10, "consumer"),
    DeploymentPlan("vision", "vision-ocr", "sh-l40s", 1000, 3, 12, "office"),
    DeploymentPlan("safety", "safety-guard", "bj-h100", 2000, 2, 4, "consumer"),
)

_JOBS = (
    JobPlan("research", "pretrain-moe", ("bj-h100",), (64000, 48000, 32000), 1.5, 17, "flat", checkpoint_min=60),
    JobPlan("research", "sweep", ("bj-h100", "sh-h100"), (8000, 16000, 24000), 6, 4.5, "night",
            "batch", "preemptible", 30),
    JobPlan("research", "ablation", ("bj-h100",), (8000, 16000, 8000), 7, 6, "flat",
            "batch", "preemptible", 30),
    JobPlan("research", "rlhf", ("bj-h200",), (32000, 16000, 24000), 2.6, 12, "flat", checkpoint_min=45),
    JobPlan("research", "posttrain", ("bj-h200",), (16000, 8000), 3, 7, "night", "batch", "preemptible", 30),
    JobPlan("research", "bench", ("bj-h100", "sh-h100"), (4000, 8000, 2000), 9, 1.1, "office", "interactive"),
    JobPlan("safety", "redteam-eval", ("bj-h100", "sh-h20"), (1000, 2000, 4000), 16, 0.9, "office", "interactive"),
    JobPlan("safety", "jailbreak-suite", ("sh-h20", "bj-h100"), (8000, 4000), 4, 2.2, "night", "batch"),
    JobPlan("code", "code-eval", ("bj-h100", "bj-h200"), (4000, 8000), 5, 1.6, "office", "interactive"),
    JobPlan("code", "repo-finetune", ("bj-h200",), (16000, 8000), 1.4, 8, "night", "batch", "preemptible", 40),
    JobPlan("data-platform", "embed-corpus", ("bj-h100", "sh-h100", "sh-h20"), (8000, 16000, 4000), 6, 5,
            "flat", "batch-low", "preemptible"),
    JobPlan("data-platform", "dedup-rerun", ("bj-h200", "sh-h20"), (8000, 16000), 6, 4, "night",
            "batch-low", "preemptible"),
    JobPlan("data-platform", "caption-images", ("sh-h20", "sh-h100"), (8000, 4000, 16000), 5, 6, "flat",
            "batch-low", "preemptible"),
    JobPlan("vision", "train-vit", ("sh-h100",), (16000, 24000, 8000), 2, 16, "flat", checkpoint_min=45),
    JobPlan("vision", "augment", ("sh-h100",), (4000, 8000), 3, 3, "office"),
    JobPlan("vision", "label-check", ("sh-l40s",), (500, 1000), 12, 1.5, "office", "interactive"),
    JobPlan("robotics", "policy-train", ("sh-h100",), (32000, 16000), 1.2, 15, "flat", checkpoint_min=30),
    JobPlan("robotics", "simulate", ("sh-h100", "sh-l40s"), (2000, 4000), 5, 2, "office"),
    JobPlan("ads-ranking", "ctr-retrain", ("bj-h100",), (16000, 8000), 1.3, 3, "office", checkpoint_min=30),
    JobPlan("search", "index-embed", ("bj-h100",), (8000, 16000), 1.8, 4, "night", checkpoint_min=30),
    JobPlan("gov-cloud", "gov-finetune", ("sh-h20",), (8000,), 0.6, 5, "office", checkpoint_min=30),
    JobPlan("speech", "asr-train", ("sh-h20",), (8000, 16000), 1.2, 8, "night", "batch", "preemptible", 30),
    JobPlan("speech", "notebook", ("sh-l40s",), (250, 500, 1000), 12, 5, "office", "interactive"),
    JobPlan("code", "notebook", ("sh-l40s",), (250, 500, 1000, 2000), 16, 4, "office", "interactive"),
    JobPlan("mobile", "distill", ("sh-h20",), (8000,), 1, 6, "night", checkpoint_min=30),
    JobPlan("assistant", "assistant-eval", ("bj-h200", "bj-h100"), (8000, 4000), 4, 1.4, "office", "interactive"),
    JobPlan("assistant", "distill-small", ("bj-h100",), (16000, 8000), 1, 7, "night", "batch", "preemptible", 30),
)  # fmt: skip


def company(tenants: int, gpus: int) -> Company:
    """The cast for about `gpus` GPUs and `tenants` tenants; more tenants than the cast has get labs of their own.

    Raises:
        ValueError: fewer tenants or GPUs than the stories need.
    """
    if tenants < FEWEST_TENANTS:
        raise ValueError(f"the demo month needs at least {FEWEST_TENANTS} tenants, not {tenants}")
    if gpus < FEWEST_GPUS:
        raise ValueError(f"the demo month needs at least {FEWEST_GPUS} GPUs, not {gpus}")
    scale = gpus / GPUS_WRITTEN_FOR
    people = _TENANTS[:tenants] + tuple(_lab(number) for number in range(len(_TENANTS) + 1, tenants + 1))
    pools = tuple(replace(pool, nodes=max(2, round(pool.nodes * scale))) for pool in _POOLS)
    present = {tenant.slug for tenant in people} | set(SERVICES)
    labs = tuple(_lab_jobs(tenant.slug) for tenant in people[len(_TENANTS) :])
    return Company(
        pools=pools,
        tenants=people,
        reservations=tuple(_scaled_reservation(r, pools) for r in _RESERVATIONS if r.holder in present),
        deployments=tuple(_scaled_deployment(d, pools) for d in _DEPLOYMENTS if d.holder in present),
        jobs=tuple(_scaled_jobs(j, pools, scale) for j in _JOBS + labs if j.tenant in present),
        scale=scale,
    )


def _lab(number: int) -> TenantPlan:
    return TenantPlan(f"lab-{number}", f"Laboratory {number}", f"Research group {number}", "labs")


def _lab_jobs(slug: str) -> JobPlan:
    return JobPlan(
        slug, "experiment", ("sh-h100", "sh-h20"), (1000, 2000, 4000), 2, 2, "office", "interactive"
    )


def _pool_scale(slug: str, pools: tuple[PoolPlan, ...]) -> tuple[int, int]:
    """(GPUs now, GPUs as written) of a pool: its own scale, which rounding to nodes moves off the company's."""
    now = next(pool for pool in pools if pool.slug == slug)
    written = next(pool for pool in _POOLS if pool.slug == slug)
    return now.gpus, written.gpus


def _scaled_reservation(plan: ReservationPlan, pools: tuple[PoolPlan, ...]) -> ReservationPlan:
    now, written = _pool_scale(plan.pool, pools)
    # Rounded down, so that the reservations of a pool never exceed it.
    changes = tuple((day, gpus * now // written) for day, gpus in plan.changes)
    return replace(plan, gpus=plan.gpus * now // written, changes=changes)


def _scaled_deployment(plan: DeploymentPlan, pools: tuple[PoolPlan, ...]) -> DeploymentPlan:
    now, written = _pool_scale(plan.pool, pools)
    milli = _fitting(plan.milli_gpus, now)
    whole = now * plan.milli_gpus
    low = max(1, plan.low * whole // (written * milli))
    return replace(plan, milli_gpus=milli, low=low, high=max(low + 1, plan.high * whole // (written * milli)))


def _scaled_jobs(plan: JobPlan, pools: tuple[PoolPlan, ...], scale: float) -> JobPlan:
    now, _ = _pool_scale(plan.pools[0], pools)
    sizes = tuple(_fitting(milli, now) for milli in plan.milli_gpus)
    shrunk = sum(plan.milli_gpus) / sum(sizes)
    return replace(plan, milli_gpus=sizes, per_day=plan.per_day * scale * shrunk)


def _fitting(milli_gpus: int, pool_gpus: int) -> int:
    """One workload takes a quarter of its pool at most; whole GPUs stay whole."""
    return min(milli_gpus, max(pool_gpus // 4, 1) * 1000)
