"""Load tests -> a candidate for a calibration, with how much its tests disagree (domain.md section 7)."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from billing.core.calibration import Observation, TokenCost, deviation, refit
from ledger.core.units import parse_milli_gpus, parse_seconds_us, round_half_even

REQUIRED = ("load_test", "model", "gpu_model", "gpus", "duration_seconds", "input_tokens", "output_tokens")
OPTIONAL = ("run", "cached_input_tokens", "gpu_seconds", "concurrency")


class LoadTestError(ValueError):
    """A row cannot be used; the message names its line."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a load test at a constant load. gpu_us: GPUs x time, or what was measured as busy."""

    load_test: str
    run: str
    model: str
    gpu_model: str
    gpus_milli: int
    duration_us: int
    input_tokens: int
    cached_input_tokens: int
    output_tokens: int
    gpu_us: int
    concurrency: int | None

    @property
    def observation(self) -> Observation:
        return Observation(self.input_tokens, self.cached_input_tokens, self.output_tokens, self.gpu_us)


def read_runs(text: str) -> list[Run]:
    """Runs from CSV with a header, or JSON objects, one per line; both with the names of REQUIRED and OPTIONAL.

    Raises:
        LoadTestError: not such a file, a missing or unknown column, or a value that is no number.
    """
    runs = []
    seen: set[tuple[str, str, str, str]] = set()
    for line, row in _rows(text):
        try:
            run = _run(row, line)
        except (ValueError, KeyError, TypeError) as error:
            raise LoadTestError(f"line {line}: {error}") from None
        key = (run.load_test, run.model, run.gpu_model, run.run)
        if key in seen:
            raise LoadTestError(f"line {line}: run {run.run!r} of {run.load_test!r} is there twice")
        seen.add(key)
        runs.append(run)
    if not runs:
        raise LoadTestError("there are no runs in it")
    return runs


def _rows(text: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    if text.lstrip().startswith("{"):
        for line, raw in enumerate(text.splitlines(), start=1):
            if raw.strip():
                try:
                    yield line, json.loads(raw)
                except ValueError as error:
                    raise LoadTestError(f"line {line}: not JSON: {error}") from None
        return
    reader = csv.DictReader(text.splitlines())
    for row in reader:
        yield reader.line_num, row


def _run(row: Mapping[str, Any], line: int) -> Run:
    if not isinstance(row, Mapping):
        raise ValueError("a run is an object")
    missing = [name for name in REQUIRED if row.get(name) in (None, "")]
    unknown = [str(name) for name in row if name not in (*REQUIRED, *OPTIONAL)]
    if missing or unknown:
        raise ValueError(
            f"{'missing: ' + ', '.join(missing) if missing else 'unknown: ' + ', '.join(unknown)}"
        )
    gpus, duration_us = parse_milli_gpus(str(row["gpus"])), parse_seconds_us(str(row["duration_seconds"]))
    stated = row.get("gpu_seconds")
    cached = row.get("cached_input_tokens")
    concurrency = row.get("concurrency")
    run = Run(
        load_test=str(row["load_test"]),
        run=str(row.get("run") or line),
        model=str(row["model"]),
        gpu_model=str(row["gpu_model"]),
        gpus_milli=gpus,
        duration_us=duration_us,
        input_tokens=_whole(row["input_tokens"]),
        cached_input_tokens=0 if cached in (None, "") else _whole(cached),
        output_tokens=_whole(row["output_tokens"]),
        gpu_us=gpus * duration_us // 1000 if stated in (None, "") else parse_seconds_us(str(stated)),
        concurrency=None if concurrency in (None, "") else _whole(concurrency),
    )
    if run.cached_input_tokens > run.input_tokens:
        raise ValueError("more cached than input tokens")
    if not run.gpu_us:
        raise ValueError("it took no GPU time")
    return run


def _whole(value: Any) -> int:
    text = str(value)
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"{text!r} is not a whole number")
    return int(text)


@dataclass(frozen=True, slots=True)
class Candidate:
    """cost: fitted over all runs. spread_ppm: least and greatest (measured - predicted) / predicted of a single run, in
    millionths. concurrency_per_gpu_milli: the least of the greatest that each test sustained; None where none says.
    """

    model: str
    gpu_model: str
    load_tests: tuple[str, ...]
    runs: int
    cost: TokenCost
    residual_gpu_us: int
    spread_ppm: tuple[int, int]
    concurrency_per_gpu_milli: int | None


def candidates(runs: Iterable[Run]) -> tuple[list[Candidate], list[tuple[str, str]]]:
    """(candidates, (model, GPU model) whose runs do not determine the costs), by model and GPU model."""
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.model, run.gpu_model), []).append(run)
    found, undetermined = [], []
    for key in sorted(groups):
        candidate = _candidate(groups[key])
        if candidate is None:
            undetermined.append(key)
        else:
            found.append(candidate)
    return found, undetermined


def _candidate(runs: Sequence[Run]) -> Candidate | None:
    fitted = refit([run.observation for run in runs])
    if fitted is None:
        return None
    ppm = [found.ppm for run in runs if (found := deviation(fitted.cost, run.observation)).ppm is not None]
    return Candidate(
        model=runs[0].model,
        gpu_model=runs[0].gpu_model,
        load_tests=tuple(sorted({run.load_test for run in runs})),
        runs=len(runs),
        cost=fitted.cost,
        residual_gpu_us=fitted.residual_gpu_us,
        spread_ppm=(min(ppm, default=0), max(ppm, default=0)),
        concurrency_per_gpu_milli=_concurrency(runs),
    )


def _concurrency(runs: Sequence[Run]) -> int | None:
    most: dict[str, int] = {}
    for run in runs:
        if run.concurrency is not None and run.gpus_milli:
            per_gpu = round_half_even(run.concurrency * 1_000_000, run.gpus_milli)
            most[run.load_test] = max(per_gpu, most.get(run.load_test, 0))
    return min(most.values(), default=None)


def as_toml(candidate: Candidate, valid_from: str) -> str:
    """A `[[calibration]]` table for `apply_config`, with the spread as comments."""
    cost = candidate.cost
    low, high = (f"{ppm / 10_000:+.2f}" for ppm in candidate.spread_ppm)
    lines = [
        f"# {candidate.runs} runs; single runs deviate by {low} % to {high} %, "
        f"{candidate.residual_gpu_us / 1_000_000:.3f} GPU-seconds root mean square",
        "[[calibration]]",
        f"model = {json.dumps(candidate.model)}",
        f"gpu_model = {json.dumps(candidate.gpu_model)}",
        f"valid_from = {valid_from}",
        f"input_gpu_us_per_1k = {cost.input_gpu_us_per_1k}",
        f"cached_input_gpu_us_per_1k = {cost.cached_input_gpu_us_per_1k}",
        f"output_gpu_us_per_1k = {cost.output_gpu_us_per_1k}",
        f"load_test = {json.dumps(', '.join(candidate.load_tests))}",
    ]
    if candidate.concurrency_per_gpu_milli is not None:
        whole, rest = divmod(candidate.concurrency_per_gpu_milli, 1000)
        lines.append(f'concurrency_per_gpu = "{whole}.{rest:03d}"')
    return "\n".join(lines) + "\n"
