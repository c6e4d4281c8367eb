"""Who calls the shared services, how much and with what kind of prompts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """One shared service. GPU time per 1000 tokens as calibrated; `drift` is how far the truth has moved off it
    by the month's second half. has_gpu_seconds: its engine measures every request."""

    service: str
    model: str
    gpu_model: str
    input_gpu_us: int
    cached_input_gpu_us: int
    output_gpu_us: int
    ms_per_output_token: int
    drift_percent: int
    has_gpu_seconds: bool
    busy_percent: int  # of its occupied GPU time, at the busiest hour
    concurrency_per_gpu: int


@dataclass(frozen=True, slots=True)
class CallerPlan:
    """One tenant's calls to one service. input_tokens, output_tokens: medians; cached, reasoning: mean percent of
    input found in the prefix cache and of output spent on reasoning."""

    tenant: str
    service: str
    weight: int
    rhythm: str
    input_tokens: int
    output_tokens: int
    cached_percent: int
    reasoning_percent: int
    failing_percent: int = 3


MODELS = (
    ModelPlan("qwen3-235b", "qwen3-235b-a22b", "H200", 90_000, 4_500, 1_900_000, 22, 14, True, 76, 40),
    ModelPlan("deepseek-v3", "deepseek-v3", "H20", 310_000, 15_000, 5_200_000, 38, 4, False, 70, 24),
)

CALLERS = (
    CallerPlan("assistant", "qwen3-235b", 40, "consumer", 2_600, 420, 46, 0),
    CallerPlan("code", "qwen3-235b", 24, "office", 14_000, 350, 72, 10),
    CallerPlan("search", "qwen3-235b", 12, "consumer", 3_800, 180, 30, 0),
    CallerPlan("research", "qwen3-235b", 6, "night", 1_900, 3_400, 12, 78),
    CallerPlan("ads-ranking", "qwen3-235b", 4, "office", 900, 60, 25, 0),
    CallerPlan("safety", "qwen3-235b", 3, "night", 1_400, 900, 20, 35),
    CallerPlan("mobile", "qwen3-235b", 3, "consumer", 1_100, 240, 40, 0, 5),
    CallerPlan("robotics", "qwen3-235b", 2, "office", 2_200, 700, 15, 50),
    CallerPlan("search", "deepseek-v3", 34, "consumer", 5_200, 260, 38, 0),
    CallerPlan("gov-cloud", "deepseek-v3", 16, "office", 3_100, 620, 22, 15),
    CallerPlan("assistant", "deepseek-v3", 14, "consumer", 2_400, 900, 41, 60),
    CallerPlan("mobile", "deepseek-v3", 12, "consumer", 1_000, 300, 44, 0, 4),
    CallerPlan("data-platform", "deepseek-v3", 9, "night", 7_500, 220, 8, 0),
    CallerPlan("vision", "deepseek-v3", 6, "office", 2_900, 320, 18, 0),
    CallerPlan("speech", "deepseek-v3", 5, "consumer", 800, 150, 35, 0),
)

LAUNCH_FACTOR = 3  # assistant's calls during the launch, against an ordinary day
