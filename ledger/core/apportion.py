"""Dividing an integer exactly: nothing is lost, nothing is invented, and no float is involved.

Two rules, each used where the domain says so:

- `apportion` (domain.md section 4) splits a level among holders at one instant. Cutting the running sum
  makes every share lie within 2 units of its exact value, and a share never exceeds its weight when the total
  is at most S.
- `largest_remainder` (sections 5 and 8) splits GPU time or money among tenants or lines.

Both come once for Python ints, which is the definition, and once for arrays of many groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ledger.core.units import INT64_MAX

Int64s = NDArray[np.int64]


def apportion(total: int, weights: Sequence[int]) -> list[int]:
    """`share_i = floor(T S_i / S) - floor(T S_(i-1) / S)`, S_i the running sum of weights; all 0 if S = 0.

    `total` and `weights` are >= 0; the order of `weights` is the id order of their owners.
    """
    weight_sum = sum(weights)
    if weight_sum == 0:
        return [0] * len(weights)
    shares, running, given = [], 0, 0
    for weight in weights:
        running += weight
        reached = total * running // weight_sum
        shares.append(reached - given)
        given = reached
    return shares


def largest_remainder(total: int, weights: Sequence[int], keys: Sequence[Any] | None = None) -> list[int]:
    """Floor of each exact share, then one unit each by larger fraction, ties by smaller key (or position).

    `total` may be negative (floors go toward minus infinity); weights are >= 0. All 0 if they sum to 0.
    """
    weight_sum = sum(weights)
    if weight_sum == 0:
        return [0] * len(weights)
    order_keys = range(len(weights)) if keys is None else keys
    shares, fractions = [], []
    for weight in weights:
        floor, fraction = divmod(total * weight, weight_sum)
        shares.append(floor)
        fractions.append(fraction)
    by_fraction = sorted(range(len(weights)), key=lambda i: (-fractions[i], order_keys[i]))
    for i in by_fraction[: total - sum(shares)]:
        shares[i] += 1
    return shares


def apportion_groups(totals: Int64s, weights: Int64s, starts: Int64s) -> Int64s:
    """`apportion` for many groups at once.

    Group g owns weights[starts[g]:starts[g + 1]], already in id order; `starts` has one entry more than
    `totals`. Groups may be empty. Returns the shares, aligned with `weights`.
    """
    if not totals.any():
        return np.zeros(len(weights), np.int64)
    running = np.cumsum(weights)
    before = np.concatenate([np.zeros(1, np.int64), running])[starts[:-1]]
    sizes = np.diff(starts)
    inside = running - np.repeat(before, sizes)
    sums = group_sums(weights, starts)
    exact = exact_number(0, _largest(totals) * _largest(sums))
    proportions = Proportions(np.repeat(totals, sizes), np.repeat(sums, sizes), exact)
    reached = proportions.floor(inside).astype(np.int64)
    shares = np.diff(reached, prepend=np.int64(0))
    first = starts[:-1][sizes > 0]
    shares[first] = reached[first]
    return shares


def apportion_columns(totals: Int64s, weights: NDArray[Any]) -> NDArray[Any]:
    """`apportion` for many instants at once: weights[:, i] (holders in id order) share totals[i].

    The shares have the type of `weights`, which must be exact for total x sum of weights (`exact_number`).
    """
    if not totals.any():
        return np.zeros_like(weights)
    running = running_sums(weights)
    if not len(running) or np.array_equal(totals, running[-1]):
        return weights
    reached = Proportions(totals, running[-1], weights.dtype.type).floor(running)
    shares = np.empty_like(reached)
    shares[0] = reached[0]
    np.subtract(reached[1:], reached[:-1], out=shares[1:])
    return shares


def running_sums(weights: NDArray[Any]) -> NDArray[Any]:
    """Sums down the holders, for all instants. Row by row: several times faster than cumsum along the first axis."""
    running = weights.copy()
    for row in range(1, len(running)):
        running[row] += running[row - 1]
    return running


def largest_remainder_groups(totals: Int64s, weights: Int64s, starts: Int64s) -> Int64s:
    """`largest_remainder` for many groups at once, ties by position.

    The layout is that of `apportion_groups`. Totals may be negative. Each group's weights must sum to less
    than 2^63; the products may be larger.
    """
    sizes = np.diff(starts)
    group = np.repeat(np.arange(len(totals)), sizes)
    sums = group_sums(weights, starts)
    shares, fractions = _mul_div_mod(totals[group], weights, sums[group])
    left = np.where(sums > 0, totals - group_sums(shares, starts), 0)
    order = np.lexsort((-fractions, group))
    rank = np.empty(len(weights), np.int64)
    rank[order] = np.arange(len(weights)) - starts[:-1][group[order]]
    return shares + (rank < left[group])


def group_sums(values: Int64s, starts: Int64s) -> Int64s:
    """Sum of values[starts[g]:starts[g + 1]] for each g; 0 for an empty group."""
    running = np.concatenate([np.zeros(1, np.int64), np.cumsum(values, dtype=np.int64)])
    sums: Int64s = running[starts[1:]] - running[starts[:-1]]
    return sums


def exact_number(sums: int, products: int) -> type:
    """The fastest type that is exact for integers up to `sums` and for `Proportions` of products up to `products`:
    doubles, then int64, then Python's ints. Processors multiply doubles several times faster than 64-bit integers."""
    if sums < 2**53 and products < 2**50:
        return np.float64
    return np.int64 if max(sums, products) <= INT64_MAX else object


class Proportions:
    """total / whole of many columns, prepared to be applied to many parts of the wholes, 0 <= part <= whole.

    Exact for doubles, without a division for every part: part x total / whole lies on a multiple of 1 / whole, so
    adding half of that takes it at least 1 / (2 whole) away from any integer; three roundings move it by less than
    2^-51 total, which is less than that while total x whole < 2^50.
    """

    def __init__(self, totals: NDArray[Any], wholes: NDArray[Any], exact: type) -> None:
        """exact: what `exact_number` chose for the sums that follow and for total x whole."""
        self.exact = exact
        wholes = np.maximum(wholes.astype(exact), 1)
        if exact is np.float64:
            self.columns = (totals / wholes, 0.5 / wholes)
        else:
            self.columns = (totals.astype(exact), wholes)

    def take(self, index: Int64s) -> Proportions:
        """The columns of `index`."""
        taken = Proportions.__new__(Proportions)
        taken.exact = self.exact
        taken.columns = (self.columns[0].take(index), self.columns[1].take(index))
        return taken

    def floor(self, parts: NDArray[Any]) -> NDArray[Any]:
        """floor(parts[..., i] x total[i] / whole[i]), 0 where the whole is 0, in the type chosen."""
        first, second = self.columns
        if self.exact is not np.float64:
            return np.asarray(parts.astype(self.exact) * first // second)
        shares: NDArray[Any] = parts * first
        shares += second
        np.floor(shares, out=shares)
        return shares


def _mul_div_mod(a: Int64s, b: Int64s, divisor: Int64s) -> tuple[Int64s, Int64s]:
    """divmod(a x b, divisor), (0, 0) for divisor 0. Big ints step in only where int64 would overflow."""
    safe = np.where(divisor == 0, 1, divisor)
    if _largest(a) * _largest(b) <= INT64_MAX:
        quotient, remainder = np.divmod(a * b, safe)
    else:
        product = a.astype(object) * b.astype(object)
        quotient = (product // safe).astype(np.int64)
        remainder = (product % safe).astype(np.int64)
    zero = divisor == 0
    return np.where(zero, 0, quotient), np.where(zero, 0, remainder)


def _largest(values: Int64s) -> int:
    return max(abs(int(values.max())), abs(int(values.min()))) if values.size else 0
