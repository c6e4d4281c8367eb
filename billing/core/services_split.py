"""Dividing a shared service's time over the tenants it served (domain.md section 5).

Input is already summed: the service's categories of one slot in gpu_us, and each tenant's key weight in it. What the
key is (measured GPU time, calibrated tokens, time in flight, contract shares) makes no difference here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ledger.core.apportion import apportion, group_sums, largest_remainder_groups

Int64s = NDArray[np.int64]

IDLE = -1  # in place of a tenant: nobody's requests, so the owner's `service_idle`


@dataclass(frozen=True, slots=True)
class ServiceTime:
    """Occupied time of services, one row per service and slot (and pool): gpu_us as an array [row, category],
    categories in table order: reserved_used, on_demand, borrowed, excess.

    measured[row]: whether tenants pay what they measured (basis `measured`) or all of it (`spread`).
    """

    gpu_us: Int64s
    measured: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Served:
    """Key weights: row i's tenants are tenant[starts[i]:starts[i + 1]], in id order. weight: the key of the row's
    policy. measured_gpu_us: what their requests measured (0 where unknown): under basis `measured` this is what
    they pay, under `spread` it is what they are compared with."""

    starts: Int64s
    tenant: Int64s
    weight: Int64s
    measured_gpu_us: Int64s


@dataclass(frozen=True, slots=True)
class TenantTime:
    """gpu_us [entry, category]; row: of ServiceTime; tenant: or IDLE for what nobody asked for. Sorted by row, then
    tenant. would_measure: what basis `measured` would have given the entry, to show who bore what for others.

    exceeded: rows whose measured time exceeded the service's own and was scaled down to it.
    """

    row: Int64s
    tenant: Int64s
    gpu_us: Int64s
    would_measure: Int64s
    exceeded: Int64s


def split_services(time: ServiceTime, served: Served) -> TenantTime:
    """Divide each row's categories over the row's tenants; what no key divides is IDLE."""
    capped, exceeded = _cap_measured(time.gpu_us.sum(axis=1), served)
    by_measure = _by_measure(time.gpu_us, capped, served.starts)
    spread = _spread(time.gpu_us, served)
    sizes = np.diff(served.starts)
    row = np.repeat(np.arange(len(sizes)), sizes)
    gpu_us = np.where(time.measured[row][:, None], by_measure, spread)

    divided = _sum_rows(gpu_us, served.starts)
    idle = time.gpu_us - divided
    idle_measured = time.gpu_us - _sum_rows(by_measure, served.starts)
    idle_rows = np.flatnonzero(idle.any(axis=1) | idle_measured.any(axis=1))
    row = np.concatenate([row, idle_rows])
    tenant = np.concatenate([served.tenant, np.full(len(idle_rows), IDLE, np.int64)])
    order = np.lexsort((tenant, row))
    return TenantTime(
        row[order],
        tenant[order],
        np.concatenate([gpu_us, idle[idle_rows]])[order],
        np.concatenate([by_measure, idle_measured[idle_rows]])[order],
        exceeded,
    )


def borne_for_others(time: TenantTime) -> Int64s:
    """gpu_us [entry, category] of a tenant beyond (or below, negative) what basis `measured` would have given it."""
    difference: Int64s = time.gpu_us - time.would_measure
    return difference


def over_groups(shares: Int64s, groups: Int64s) -> Int64s:
    """Tell the tenants' shares of one service and slot apart by group: array [tenant, group, category].

    shares: [tenant, category]; groups: [group, category], with the same sums. Each tenant in order takes its part
    of what the ones before left of each group, by apportion.
    """
    parts = np.zeros((len(shares), len(groups), shares.shape[1]), np.int64)
    for category in range(shares.shape[1]):
        remaining = groups[:, category].tolist()
        for tenant, share in enumerate(shares[:, category].tolist()):
            part = apportion(share, remaining)
            parts[tenant, :, category] = part
            remaining = [left - taken for left, taken in zip(remaining, part, strict=True)]
    return parts


def _spread(gpu_us: Int64s, served: Served) -> Int64s:
    """Each category in proportion to the key, by largest remainder, ties by tenant id."""
    columns = [largest_remainder_groups(column, served.weight, served.starts) for column in gpu_us.T]
    return np.stack(columns, axis=1)


def _cap_measured(occupied: Int64s, served: Served) -> tuple[Int64s, Int64s]:
    """(measured time of each entry, scaled down where a row's sum exceeds its occupied time; those rows)."""
    exceeded = np.flatnonzero(group_sums(served.measured_gpu_us, served.starts) > occupied)
    scaled = largest_remainder_groups(occupied, served.measured_gpu_us, served.starts)
    row = np.repeat(np.arange(len(occupied)), np.diff(served.starts))
    return np.where(np.isin(row, exceeded), scaled, served.measured_gpu_us), exceeded


def _by_measure(gpu_us: Int64s, measured: Int64s, starts: Int64s) -> Int64s:
    """Fill categories in table order, each by what remains of the tenants' measured time."""
    remaining = measured
    columns = []
    for column in gpu_us.T:
        taken = np.minimum(column, group_sums(remaining, starts))
        part = largest_remainder_groups(taken, remaining, starts)
        columns.append(part)
        remaining = remaining - part
    return np.stack(columns, axis=1)


def _sum_rows(values: Int64s, starts: Int64s) -> Int64s:
    return np.stack([group_sums(column, starts) for column in values.T], axis=1)
