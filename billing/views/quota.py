"""Both quota layers of each tenant, where they disagreed and for how long, and what is left."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from django.urls import reverse
from django.utils.functional import cached_property
from django.utils.translation import gettext as _

from billing.charts.planning import drift_chart
from billing.core.quota_drift import Thresholds
from billing.selectors.pages_quota import LAYERS, LeftRow, left_of_tenants
from billing.selectors.quota import (
    LayersUsed,
    QuotaRow,
    TenantDrift,
    drift_thresholds,
    layers_used,
    quota_drift,
    quotas,
)
from billing.views.windows import WindowPage
from ledger.core.periods import to_datetime
from ledger.core.units import MS_PER_MINUTE, fixed_decimal, round_half_even
from ledger.templatetags.figures import duration
from ledger.views.page import shown_zone
from ledger.views.tables import (
    CODE,
    DURATION,
    GPU_HOURS,
    GPUS,
    INSTANT,
    PERCENT,
    TEXT_FILTER,
    Column,
    Kind,
    Table,
    choices_of,
    words,
)
from ledger.wording import QUOTA_LAYERS, QUOTA_RESOURCES


class QuotaPage(WindowPage):
    """Quotas as they stood at the window's end, or now; the drift in the window; a tenant sees its own."""

    template = "billing/quota.html"

    @cached_property
    def at_ms(self) -> int:
        return min(self.window.end_ms - 1, self.now_ms)

    @property
    def _tenant_ids(self) -> frozenset[int] | None:
        return None if self.access.sees_all_tenants else self.access.tenant_ids

    @cached_property
    def rows(self) -> list[QuotaRow]:
        return quotas(to_datetime(self.at_ms), tenant_ids=self._tenant_ids)

    @cached_property
    def thresholds(self) -> Thresholds:
        return drift_thresholds()

    @cached_property
    def layers(self) -> list[LayersUsed]:
        return layers_used(self.rows, self.thresholds)

    @cached_property
    def drifts(self) -> list[TenantDrift]:
        return quota_drift(self.window, tenant_ids=self._tenant_ids, thresholds=self.thresholds)

    @cached_property
    def left(self) -> list[LeftRow]:
        return left_of_tenants(self.now_ms, self.access)

    def tables(self) -> list[Table]:
        return [
            layers_table(lambda: self.layers),
            quotas_table(lambda: self.rows, self.access.may_read_ingest),
            drift_table(lambda: self.drifts, self.window.end_ms),
            left_table(lambda: self.left),
        ]

    def context(self) -> dict[str, Any]:
        held = [row for row in self.drifts if row.drift.gpu_us]
        lasting = [self._length_ms(row) for row in self.drifts]
        return {
            **self.window_context(),
            "at": to_datetime(_whole_minute(min(self.window.end_ms, self.now_ms))),
            "thresholds": self.thresholds,
            "drifting": [row for row in self.layers if row.full_layer],
            "episodes": len(self.drifts),
            "episodes_ms": sum(lasting),
            "unreacted": sum(row.drift.reaction_ms is None for row in self.drifts),
            "unused_gpu_us": sum(row.drift.gpu_us or 0 for row in held),
            "worst": max(held, key=lambda row: row.drift.gpu_us or 0, default=None),
            "drift_bars": len({row.tenant for row in self.drifts}),
            "chart": drift_chart(self.drifts, self.window, shown_zone(self.request)) if self.drifts else None,
        }

    def _length_ms(self, row: TenantDrift) -> int:
        return (row.drift.ends_ms or self.window.end_ms) - row.drift.starts_ms


def _whole_minute(at_ms: int) -> int:
    return at_ms - at_ms % MS_PER_MINUTE


def _share(ppm: int | None) -> str | None:
    return None if ppm is None else fixed_decimal(round_half_even(ppm, 1000), 1)


def _layer(code: str) -> str:
    return str(QUOTA_LAYERS[code])


def layers_table(rows: Callable[[], Sequence[LayersUsed]]) -> Table:
    def state(row: LayersUsed) -> str:
        if row.full_layer:
            return _("held back by the %(layer)s") % {"layer": _layer(row.full_layer)}
        return _("in step") if None not in (row.cluster_ppm, row.serving_ppm) else _("one layer only")

    return Table(
        "layers",
        rows,
        [
            Column("tenant", _("Tenant"), filter=TEXT_FILTER),
            Column("cluster_percent", _("Cluster layer"), PERCENT, of=lambda row: _share(row.cluster_ppm)),
            Column("serving_percent", _("Serving layer"), PERCENT, of=lambda row: _share(row.serving_ppm)),
            Column("state", _("Do they agree?"), of=state, css=lambda row: "alarm" if row.full_layer else ""),
        ],
        label=_("Both layers side by side"),
        caption=_("Used share of the tightest resource"),
        empty=_("No quota is known. Gateways and schedulers report theirs as quota events."),
    )


def quotas_table(rows: Callable[[], Sequence[QuotaRow]], links: bool) -> Table:
    def event(row: QuotaRow) -> str | None:
        return reverse("ledger:event", args=[row.source_id, row.event_id]) if links else None

    def share(row: QuotaRow) -> str | None:
        return _share(round_half_even(row.used_milli * 10**6, row.limit_milli)) if row.limit_milli else None

    return Table(
        "quotas",
        rows,
        [
            Column("tenant", _("Tenant"), filter=TEXT_FILTER),
            Column("layer", _("Layer"), words(_layer), filter=choices_of(LAYERS[:2], _layer)),
            Column("resource", _("Resource"), words(QUOTA_RESOURCES.__getitem__)),
            Column("pool", _("Pool"), CODE),
            Column("service", _("Service"), CODE),
            Column("limit", _("Limit"), GPUS, of="limit_milli"),
            Column("used", _("Used"), GPUS, of="used_milli"),
            Column("used_percent", _("Used"), PERCENT, of=share, unit=_("of the limit")),
            Column("since", _("Since"), INSTANT, of="starts_at", link=event),
        ],
        label=_("Limits and use, layer by layer"),
        empty=_("No quota is known. Gateways and schedulers report theirs as quota events."),
    )


_REACTION = Kind(lambda ms: _("none") if ms is None else duration(ms), DURATION.export, is_number=True)


def drift_table(rows: Callable[[], Sequence[TenantDrift]], end_ms: int) -> Table:
    return Table(
        "drift",
        rows,
        [
            Column("from", _("From"), INSTANT, of=lambda row: to_datetime(row.drift.starts_ms)),
            Column(
                "until",
                _("Until"),
                Kind(lambda at: _("it lasts") if at is None else INSTANT.show(at), INSTANT.export),
                of=lambda row: None if row.drift.ends_ms is None else to_datetime(row.drift.ends_ms),
            ),
            Column("tenant", _("Tenant"), filter=TEXT_FILTER),
            Column(
                "full_layer",
                _("Held back by"),
                words(_layer),
                of="drift.full_layer",
                filter=choices_of(LAYERS[:2], _layer),
            ),
            Column("loose_layer", _("While free"), words(_layer), of="drift.loose_layer"),
            Column(
                "lasted",
                _("Lasted"),
                DURATION,
                of=lambda row: (row.drift.ends_ms or end_ms) - row.drift.starts_ms,
            ),
            Column("unused_gpu_hours", _("Left unused"), GPU_HOURS, of="drift.gpu_us", unit=_("GPU-hours")),
            Column("reaction", _("Reaction after"), _REACTION, of="drift.reaction_ms"),
        ],
        label=_("Episodes of quota drift"),
        rows_a_page=20,
        empty=_("The layers agreed all the time."),
    )


def left_table(rows: Callable[[], Sequence[LeftRow]]) -> Table:
    def of(layer: str) -> Callable[[LeftRow], int | None]:
        return lambda row: row.of_layer.get(layer)

    dashed = Kind(lambda milli: "–" if milli is None else GPUS.show(milli), GPUS.export, is_number=True)
    return Table(
        "left",
        rows,
        [
            Column("tenant", _("Tenant"), filter=TEXT_FILTER),
            Column(
                "resource",
                _("Resource"),
                words(QUOTA_RESOURCES.__getitem__),
                filter=choices_of(QUOTA_RESOURCES, lambda code: QUOTA_RESOURCES[code]),
            ),
            Column("left", _("Left"), _LEFT, of="left_milli", css=_alarm),
            *[Column(f"{layer}_left", _layer(layer), dashed, of=of(layer)) for layer in LAYERS],
        ],
        label=_("What is left now"),
        empty=_("Nothing is limited."),
    )


_LEFT = Kind(lambda milli: GPUS.show(milli) if milli else _("nothing"), GPUS.export, is_number=True)


def _alarm(row: LeftRow) -> str:
    return "" if row.left_milli else "alarm"
