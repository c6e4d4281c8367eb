"""`GET episodes/` and `preemptions/balance/`: did taking those GPUs pay?"""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from billing.api.allocations import WINDOW
from billing.api.questions import window_of
from billing.core.episodes import Episode
from billing.selectors.episodes import PARTS, PoolBalance, pool_balances, preempting, worst_first
from billing.selectors.periods import horizon_of, ledger_and_now
from ledger.api.views import ListView
from ledger.core.periods import Span, to_datetime, to_ms
from ledger.core.units import gpu_hours_text, micro_text, milli_gpus_text


class HitRow(serializers.Serializer[Any]):
    workload = serializers.CharField()
    times = serializers.IntegerField()


class EpisodeRow(serializers.Serializer[Any]):
    cluster = serializers.CharField()
    preemptor_workload = serializers.CharField()
    preemptor = serializers.CharField(allow_null=True)
    starts_at = serializers.DateTimeField()
    ends_at = serializers.DateTimeField(help_text="the last decision")
    preemptions = serializers.IntegerField()
    needed_gpus = serializers.CharField(allow_null=True, help_text="null: it never ran, so nobody knows")
    taken_gpus = serializers.CharField()
    overshoot_gpus = serializers.CharField(allow_null=True, help_text="taken beyond the need")
    unused_gpu_us = serializers.CharField(help_text="of the GPUs it released, until anybody occupied them")
    unused_gpu_hours = serializers.CharField()
    ran = serializers.BooleanField(help_text="whether the preemptor ever ran on it, up to the horizon")
    ran_gpu_us = serializers.CharField()
    victims = HitRow(many=True)


_OF_POOL: dict[str, serializers.Field[Any, Any, Any, Any]] = {
    "pool": serializers.CharField(),
    "currency": serializers.CharField(),
    "price": serializers.CharField(
        allow_null=True, help_text="per GPU-hour: the pool's reserved_used price when the window starts"
    ),
}
_HELP = {
    "gained": "run by preemptors on reclaimed or lent GPUs",
    "unused": "released GPUs, until anybody occupied them",
}
_OF_PARTS = {
    f"{part}_{unit}": serializers.CharField(
        allow_null=unit == "amount",
        help_text=_HELP.get(part),
    )
    for part in PARTS
    for unit in ("gpu_us", "gpu_hours", "amount")
}
# Every part as `{part}_gpu_us`, `{part}_gpu_hours` and `{part}_amount`; net = gained less the others.
BalanceRow = type("BalanceRow", (serializers.Serializer,), _OF_POOL | _OF_PARTS)


class _OfWindow(ListView):
    """Of all tenants together, so for those who see them all."""

    allows = staticmethod(lambda access: access.sees_all_tenants)
    parameters = frozenset({"window"})

    def window(self) -> Span:
        """Up to where the books are computed."""
        ledger, now_ms = ledger_and_now()
        window = window_of(self.request, ledger, now_ms)
        return Span(window.start_ms, max(to_ms(horizon_of(window, now_ms)), window.start_ms))


class EpisodesView(_OfWindow):
    """Preemptions of one preemptor with gaps under 10 minutes, the worst first: those that bought nothing."""

    orderings = frozenset({"starts_at"})

    @extend_schema(operation_id="episodes_list", parameters=[WINDOW], responses=EpisodeRow(many=True))
    def get(self, request: Request) -> Response:
        found = preempting(self.window()).episodes
        field, descending = self.ordering()
        found = found[:: -1 if descending else 1] if field else worst_first(found)
        return self.page(lambda offset, limit: found[offset : offset + limit], _episode_row)


def _episode_row(episode: Episode) -> dict[str, Any]:
    needed, overshoot = episode.needed_milli_gpus, episode.overshoot_milli_gpus
    return {
        "cluster": episode.cluster,
        "preemptor_workload": episode.preemptor_workload,
        "preemptor": episode.preemptor,
        "starts_at": to_datetime(episode.starts_ms),
        "ends_at": to_datetime(episode.ends_ms),
        "preemptions": len(episode.preemptions),
        "needed_gpus": None if needed is None else milli_gpus_text(needed),
        "taken_gpus": milli_gpus_text(episode.taken_milli_gpus),
        "overshoot_gpus": None if overshoot is None else milli_gpus_text(overshoot),
        "unused_gpu_us": str(episode.unused_gpu_us),
        "unused_gpu_hours": gpu_hours_text(episode.unused_gpu_us),
        "ran": episode.ran,
        "ran_gpu_us": str(episode.ran_gpu_us),
        "victims": [{"workload": workload, "times": times} for workload, times in episode.hits],
    }


class PreemptionBalanceView(_OfWindow):
    """Per pool, what preempting bought and what it cost, in GPU time and money."""

    @extend_schema(operation_id="preemptions_balance", parameters=[WINDOW], responses=BalanceRow(many=True))
    def get(self, request: Request) -> Response:
        ledger, _ = ledger_and_now()
        rows = pool_balances(self.window(), ledger)
        return self.page(
            lambda offset, limit: rows[offset : offset + limit],
            lambda row: _balance_row(row, ledger.currency),
        )


def _balance_row(row: PoolBalance, currency: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "pool": row.pool,
        "currency": currency,
        "price": None if row.price_micro is None else micro_text(row.price_micro),
    }
    for part in PARTS:
        gpu_us = getattr(row.balance, part)
        amount = row.amount_micro(gpu_us)
        found[f"{part}_gpu_us"] = str(gpu_us)
        found[f"{part}_gpu_hours"] = gpu_hours_text(gpu_us)
        found[f"{part}_amount"] = None if amount is None else micro_text(amount)
    return found
