"""Single calls to a shared service: their tokens, time and fate, drawn from what its caller usually sends."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from ingest.core.demo.traffic_shapes import CallerPlan, ModelPlan


@dataclass(slots=True)
class Call:
    """One attempt of one request. Token counts as in events.md; gpu_us as its engine would measure it."""

    caller: CallerPlan
    model: ModelPlan
    request: str
    finished_ms: int
    duration_ms: int
    input_tokens: int
    cached_input_tokens: int
    output_tokens: int
    reasoning_tokens: int
    gpu_us: int
    outcome: str
    workload: str = ""
    attempt: int = 1

    @property
    def started_ms(self) -> int:
        return self.finished_ms - self.duration_ms


def gpu_us_of(model: ModelPlan, uncached: int, cached: int, output: int) -> int:
    """GPU time that the calibration predicts for so many tokens."""
    weighted = (
        uncached * model.input_gpu_us + cached * model.cached_input_gpu_us + output * model.output_gpu_us
    )
    return weighted // 1000


def draw_call(
    caller: CallerPlan, model: ModelPlan, request: str, finished_ms: int, drift: float, random: Random
) -> Call:
    """A call that finishes at that instant. drift: how far measured GPU time is off the calibration (1.0: not)."""
    input_tokens = _around(caller.input_tokens, random)
    # Prefix caches work in blocks of 64 tokens.
    cached = (
        int(input_tokens * min(random.betavariate(2, 2) * 2 * caller.cached_percent / 100, 0.97)) // 64 * 64
    )
    output = _around(caller.output_tokens, random)
    outcome = _outcome(caller, random)
    if outcome != "ok":
        output = int(output * random.random())
    reasoning = output * min(caller.reasoning_percent + random.randrange(-8, 9), 95) // 100
    reasoning = max(reasoning, 0) if caller.reasoning_percent else 0
    predicted_us = gpu_us_of(model, input_tokens - cached, cached, output)
    duration_ms = 90 + (input_tokens - cached) // 12 + output * model.ms_per_output_token
    return Call(
        caller,
        model,
        request,
        finished_ms,
        120_000 + random.randrange(2000) if outcome == "timeout" else duration_ms,
        input_tokens,
        cached,
        output,
        reasoning,
        int(predicted_us * drift * random.uniform(0.9, 1.1)),
        outcome,
    )


def _around(median: int, random: Random) -> int:
    return max(1, min(int(median * random.lognormvariate(0, 0.8)), 40 * median))


def _outcome(caller: CallerPlan, random: Random) -> str:
    if random.random() * 100 >= caller.failing_percent:
        return "ok"
    return random.choices(("aborted", "error", "timeout"), (6, 3, 1))[0]
