"""GPU time of one request in a shared batch: the two formulas that sum exactly (inference.md section 6).

No engine reports it. `step_shares` (A) divides each step by the work of the requests in it; `window_shares` (B)
divides the busy time of a window by calibrated tokens. Both are integers and largest remainders: what they give out
is what was busy, to the GPU-microsecond. `upper_bound_gpu_us` (C) counts a shared batch once per request and is no
charge.

Units: GPUs in milli-GPU, steps in microseconds, windows in milliseconds, GPU time in gpu_us (= milli x ms).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ledger.core.apportion import largest_remainder

_FINE = 1_000_000
"""Overlap of a request with a window is kept to a millionth of its tokens."""


@dataclass(frozen=True, slots=True)
class Work:
    """What one request did in one step, in tokens."""

    prefill_tokens: int = 0
    decode_tokens: int = 0
    kv_context_tokens: int = 0


@dataclass(frozen=True, slots=True)
class StepWeights:
    """`w = prefill x alpha + decode x beta + kv_context / 1000 x gamma`; only their ratio matters."""

    alpha: int = 1
    beta: int = 1
    gamma: int = 0

    def of(self, work: Work) -> int:
        """A thousand times w, so that the context's thousandths stay whole."""
        tokens = self.alpha * work.prefill_tokens + self.beta * work.decode_tokens
        return 1000 * tokens + self.gamma * work.kv_context_tokens


@dataclass(frozen=True, slots=True)
class Step:
    wall_us: int
    members: Mapping[str, Work]
    """Request id -> what it did."""


@dataclass(frozen=True, slots=True)
class Shares:
    by_request: Mapping[str, int]
    """Request id -> gpu_us."""
    unattributed_gpu_us: int
    """Busy time that no request explains; never spread over those that were there at other times."""
    unweighed: tuple[str, ...] = ()
    """Requests without the counts their weight needs: they weigh 0, and someone should know."""

    @property
    def busy_gpu_us(self) -> int:
        return sum(self.by_request.values()) + self.unattributed_gpu_us


def busy_gpu_us(gpus_milli: int, wall_us: int) -> int:
    """GPUs x wall time, floored to gpu_us (which only fractions of a GPU need)."""
    return gpus_milli * wall_us // 1000


def step_shares(gpus_milli: int, steps: Iterable[Step], weights: StepWeights) -> Shares:
    """Formula A: each step's GPU time by the work of its members; ties go to the smaller request id."""
    total: dict[str, int] = {}
    unattributed = 0
    for step in steps:
        busy = busy_gpu_us(gpus_milli, step.wall_us)
        requests = sorted(step.members)
        work = [weights.of(step.members[request]) for request in requests]
        if not sum(work):
            unattributed += busy
        for request, share in zip(requests, largest_remainder(busy, work, requests), strict=True):
            total[request] = total.get(request, 0) + share
    return Shares(total, unattributed)


@dataclass(frozen=True, slots=True)
class Served:
    """One request as its record states it; a count that was not stated is `None`."""

    id: str
    starts_ms: int
    ends_ms: int
    input_tokens: int | None
    cached_input_tokens: int | None
    output_tokens: int | None


@dataclass(frozen=True, slots=True)
class TokenWeights:
    """`u = a x uncached input + b x output + c x uncached input x output`, such as a calibration's gpu_us."""

    a: int
    b: int
    c: int = 0

    def of(self, request: Served) -> int | None:
        """u, or `None` if the request states no input or no output. Unstated cached tokens count as uncached."""
        if request.input_tokens is None or request.output_tokens is None:
            return None
        uncached = max(request.input_tokens - (request.cached_input_tokens or 0), 0)
        return self.a * uncached + self.b * request.output_tokens + self.c * uncached * request.output_tokens


def window_shares(
    busy_in_window_gpu_us: int,
    window_ms: tuple[int, int],
    requests: Sequence[Served],
    weights: TokenWeights,
) -> Shares:
    """Formula B: a window's busy GPU time by u, each request with the part of it that lies in the window.

    `window_ms` is half-open. A request of no length counts whole in the window that holds its end.
    """
    ordered = sorted(requests, key=lambda request: request.id)
    unweighed = tuple(r.id for r in ordered if weights.of(r) is None)
    inside = [(r.id, (weights.of(r) or 0) * _overlap(r, window_ms)) for r in ordered]
    inside = [(request, weight) for request, weight in inside if weight]
    ids = [request for request, _ in inside]
    shares = largest_remainder(busy_in_window_gpu_us, [weight for _, weight in inside], ids)
    return Shares(dict(zip(ids, shares, strict=True)), 0 if inside else busy_in_window_gpu_us, unweighed)


def _overlap(request: Served, window_ms: tuple[int, int]) -> int:
    """The part of a request's life that lies in the window, in millionths."""
    starts_ms, ends_ms = window_ms
    duration_ms = request.ends_ms - request.starts_ms
    if duration_ms <= 0:
        return _FINE if starts_ms <= request.ends_ms < ends_ms else 0
    overlap_ms = min(request.ends_ms, ends_ms) - max(request.starts_ms, starts_ms)
    return max(overlap_ms, 0) * _FINE // duration_ms


def upper_bound_gpu_us(gpus_milli: int, prefill_ms: int, decode_ms: int) -> int:
    """Formula C: the batch's GPUs for as long as the request ran. For a check, never for a bill."""
    return gpus_milli * (prefill_ms + decode_ms)


def idle_gpu_us(gpus_milli: int, window_ms: tuple[int, int], busy: int) -> int:
    """GPUs x window less what was busy; negative if the engine claims more than its window holds."""
    return gpus_milli * (window_ms[1] - window_ms[0]) - busy
