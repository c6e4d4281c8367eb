"""What tokens cost in GPU time, whether that still holds, and the re-fit it would take (domain.md section 7)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import isqrt

from ledger.core.units import round_half_even

PPM = 1_000_000
Row = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class TokenCost:
    """A calibration: gpu_us per 1000 uncached input, cached input and output tokens, and its tolerance."""

    input_gpu_us_per_1k: int
    cached_input_gpu_us_per_1k: int
    output_gpu_us_per_1k: int
    tolerance_ppm: int = 100_000

    def gpu_us_times_1000(self, input_tokens: int, cached_input_tokens: int, output_tokens: int) -> int:
        """1000 x the GPU time of the tokens, exact. Cached tokens are part of the input tokens."""
        cached = min(cached_input_tokens, input_tokens)
        return (
            (input_tokens - cached) * self.input_gpu_us_per_1k
            + cached * self.cached_input_gpu_us_per_1k
            + output_tokens * self.output_gpu_us_per_1k
        )

    def predict_gpu_us(self, input_tokens: int, cached_input_tokens: int, output_tokens: int) -> int:
        return round_half_even(
            self.gpu_us_times_1000(input_tokens, cached_input_tokens, output_tokens), 1_000
        )


@dataclass(frozen=True, slots=True)
class Observation:
    """Tokens of one day, model and GPU model, and the GPU time measured for them."""

    input_tokens: int
    cached_input_tokens: int
    output_tokens: int
    measured_gpu_us: int

    @property
    def row(self) -> Row:
        cached = min(self.cached_input_tokens, self.input_tokens)
        return (self.input_tokens - cached, cached, self.output_tokens)


@dataclass(frozen=True, slots=True)
class Deviation:
    """ppm: (measured - predicted) / predicted in millionths; None where nothing was predicted."""

    predicted_gpu_us: int
    measured_gpu_us: int
    ppm: int | None
    beyond_tolerance: bool


def deviation(cost: TokenCost, seen: Observation) -> Deviation:
    predicted = cost.predict_gpu_us(seen.input_tokens, seen.cached_input_tokens, seen.output_tokens)
    if predicted == 0:
        return Deviation(0, seen.measured_gpu_us, None, seen.measured_gpu_us > 0)
    ppm = round_half_even((seen.measured_gpu_us - predicted) * PPM, predicted)
    return Deviation(predicted, seen.measured_gpu_us, ppm, abs(ppm) > cost.tolerance_ppm)


@dataclass(frozen=True, slots=True)
class Refit:
    """A proposal. residual_gpu_us: root mean square of measured minus predicted by the proposal."""

    cost: TokenCost
    residual_gpu_us: int
    observations: int


def refit(observations: Sequence[Observation], tolerance_ppm: int = 100_000) -> Refit | None:
    """The least-squares fit through the origin, in exact rationals; costs are never negative.

    A kind of token that never occurred, or whose fitted cost would be negative, costs 0 and the others are fitted
    again. None where the observations do not determine the costs (fewer independent days than kinds of token).
    """
    rows = [seen.row for seen in observations]
    measured = [seen.measured_gpu_us for seen in observations]
    kinds = [kind for kind in range(3) if any(row[kind] for row in rows)]
    while kinds:
        fitted = _least_squares(rows, measured, kinds)
        if fitted is None:
            return None
        negative = [kind for kind, value in zip(kinds, fitted, strict=True) if value < 0]
        if not negative:
            return _proposal(observations, dict(zip(kinds, fitted, strict=True)), tolerance_ppm)
        kinds.remove(min(negative, key=lambda kind: fitted[kinds.index(kind)]))
    return None


def _proposal(observations: Sequence[Observation], fitted: dict[int, Fraction], tolerance_ppm: int) -> Refit:
    per_1k = [fitted.get(kind, Fraction(0)) * 1_000 for kind in range(3)]
    plain, cached, output = (round_half_even(value.numerator, value.denominator) for value in per_1k)
    cost = TokenCost(plain, cached, output, tolerance_ppm)
    squares = sum(
        (deviation(cost, seen).predicted_gpu_us - seen.measured_gpu_us) ** 2 for seen in observations
    )
    return Refit(cost, isqrt(squares // len(observations)), len(observations))


def _least_squares(
    rows: Sequence[Row], measured: Sequence[int], kinds: Sequence[int]
) -> list[Fraction] | None:
    """Solve the normal equations A'A x = A'b over the chosen columns."""
    system = [
        [Fraction(sum(row[i] * row[j] for row in rows)) for j in kinds]
        + [Fraction(sum(row[i] * value for row, value in zip(rows, measured, strict=True)))]
        for i in kinds
    ]
    return _solve(system)


def _solve(system: list[list[Fraction]]) -> list[Fraction] | None:
    """Gauss-Jordan on an augmented matrix; None if it is singular."""
    size = len(system)
    for column in range(size):
        pivot = next((row for row in range(column, size) if system[row][column]), None)
        if pivot is None:
            return None
        system[column], system[pivot] = system[pivot], system[column]
        scale = system[column][column]
        system[column] = [value / scale for value in system[column]]
        for row in range(size):
            factor = system[row][column]
            if row != column and factor:
                system[row] = [
                    value - factor * above for value, above in zip(system[row], system[column], strict=True)
                ]
    return [row[-1] for row in system]
