"""The tables of the settings: rates, policies, contracts and masters, each version with its validity."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import OuterRef, Subquery
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import mark_safe
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from billing.models import (
    Contract,
    GpuPrice,
    Policy,
    PoolCost,
    RateCard,
    ServicePolicy,
    Statement,
    TokenPrice,
)
from billing.views.effect import IDLE_PAYERS, LEND_CREDITS, preemption_payer
from ledger.access import Access
from ledger.core.figures import DASH, THIN_SPACE
from ledger.core.units import micro_text, parse_micro
from ledger.models import Pool, Service, ServiceClass, Tenant
from ledger.querysets import visible_to
from ledger.views.tables import (
    CATEGORY,
    CODE,
    COUNT,
    NOWRAP,
    PRICE,
    TEXT_FILTER,
    VALIDITY,
    Column,
    Kind,
    Table,
    words,
)
from ledger.wording import CONTRACT_KINDS, ON_PREEMPTION, SERVICE_CLASSES, TOKEN_KINDS

_STATES = {
    "current": gettext_lazy("in force"),
    "future": gettext_lazy("to come"),
    "past": gettext_lazy("over"),
}
SERVICE_KEYS = {
    "gpu_seconds": gettext_lazy("measured GPU time"),
    "tokens": gettext_lazy("tokens, by calibration"),
    "concurrency": gettext_lazy("requests in flight"),
    "shares": gettext_lazy("fixed shares"),
}
SERVICE_BASES = {
    "spread": gettext_lazy("all of the time"),
    "measured": gettext_lazy("measured time only"),
}
# A contract without a quota has none; nothing is unknown about it.
_TOKENS_IF_ANY = Kind(
    lambda value: DASH if value is None else COUNT.show(value), COUNT.export, is_number=True
)


@dataclass(frozen=True)
class _Version:
    """A dated version among those of the same thing: in force now, to come, or over."""

    row: Any
    state: str
    may_end: bool


def _versions(rows: Iterable[Any], thing: Callable[[Any], Any]) -> list[_Version]:
    now, rows = timezone.now(), list(rows)
    begun = [row for row in rows if row.valid_from <= now]
    newest: dict[Any, datetime] = {}
    for row in begun:
        newest[thing(row)] = max(row.valid_from, newest.get(thing(row), row.valid_from))

    def state(row: Any) -> str:
        if row.valid_from > now:
            return "future"
        is_over = (row.ended_at and row.ended_at <= now) or row.valid_from < newest[thing(row)]
        return "past" if is_over else "current"

    states = [state(row) for row in rows]
    return [_Version(row, str(_STATES[code]), code != "past") for row, code in zip(rows, states, strict=True)]


def end_link(table: str, version_id: int) -> str:
    """Where the settings ask from when on a version shall be in force no longer."""
    return f"{reverse('billing:settings')}?end={table}-{version_id}#end"


def _validity(table: str, may_end: bool) -> list[Column]:
    """Until when each version is in force, who said so and why; and, for finance, the way to end it."""
    columns = [
        Column("until", _("Until"), VALIDITY, of="row.ended_at"),
        Column("by", _("Recorded by"), of="row.recorded_by"),
        Column("reason", _("Reason"), of="row.reason"),
    ]
    if may_end:
        end = _("End it")
        columns.append(
            Column(
                "end",
                end,
                NOWRAP,
                of=lambda version: end if version.may_end else "",
                html=lambda version: end if version.may_end else "",
                link=lambda version: end_link(table, version.row.pk) if version.may_end else None,
                can_sort=False,
                in_csv=False,
            )
        )
    return columns


def _class_of(row: GpuPrice) -> str:
    return str(ServiceClass(row.service_class).label) if row.service_class else ""


def rate_cards_table(may_end: bool) -> Table:
    return Table(
        "rate_cards",
        lambda: _versions(RateCard.objects.order_by("-valid_from"), lambda row: "rate card"),
        [
            Column("card", _("Rate card"), of="row.name", filter=TEXT_FILTER),
            Column("state", _("State"), NOWRAP),
            Column("valid_from", _("From"), VALIDITY, of="row.valid_from"),
            *_validity("rate_card", may_end),
        ],
        label=_("Rate cards"),
        empty=_("There is no price list yet; a month without prices cannot close. Apply one:"),
    )


def pool_costs_table(may_end: bool) -> Table:
    return Table(
        "pool_costs",
        lambda: _versions(
            PoolCost.objects.select_related("pool").order_by("pool__slug", "-valid_from"),
            lambda row: row.pool_id,
        ),
        [
            Column(
                "pool",
                _("Pool"),
                CODE,
                of="row.pool.slug",
                link=lambda version: reverse("billing:pool", args=[version.row.pool.slug]),
                filter=TEXT_FILTER,
            ),
            Column("state", _("State"), NOWRAP),
            Column("valid_from", _("From"), VALIDITY, of="row.valid_from"),
            Column("cost", _("Cost"), PRICE, of="row.cost_micro_per_gpu_hour", unit=_("per GPU-hour")),
            *_validity("pool_cost", may_end),
        ],
        label=_("Costs of pools"),
        empty=_("No pool has a cost of its own."),
    )


def service_policies_table(may_end: bool) -> Table:
    return Table(
        "service_policies",
        lambda: _versions(
            ServicePolicy.objects.select_related("service__holder").order_by(
                "service__holder__slug", "-valid_from"
            ),
            lambda row: row.service_id,
        ),
        [
            Column("service", _("Service"), CODE, of="row.service.holder.slug", filter=TEXT_FILTER),
            Column("state", _("State"), NOWRAP),
            Column("valid_from", _("From"), VALIDITY, of="row.valid_from"),
            Column("key", _("Divided by"), words(SERVICE_KEYS.__getitem__), of="row.key"),
            Column("basis", _("What is divided"), words(SERVICE_BASES.__getitem__), of="row.basis"),
            Column(
                "shares",
                _("Shares"),
                of=lambda version: "; ".join(
                    f"{slug}: {share}" for slug, share in sorted(version.row.shares.items())
                ),
            ),
            *_validity("service_policy", may_end),
        ],
        label=_("How the time of shared services is divided"),
        empty=_("No service has a rule: its time is its owner's."),
    )


def gpu_prices_table() -> Table:
    return Table(
        "gpu_prices",
        lambda: list(
            GpuPrice.objects.select_related("rate_card", "pool").order_by(
                "-rate_card__valid_from", "pool__slug", "gpu_model", "category", "service_class"
            )
        ),
        [
            Column("card", _("Rate card"), of="rate_card.name", filter=TEXT_FILTER),
            Column("valid_from", _("From"), VALIDITY, of="rate_card.valid_from"),
            Column(
                "pool", _("Pool"), CODE, of=lambda row: row.pool.slug if row.pool else "", filter=TEXT_FILTER
            ),
            Column("gpu_model", _("GPU model"), CODE, filter=TEXT_FILTER),
            Column("category", _("Category"), CATEGORY),
            Column(
                "service_class",
                _("Class"),
                words(SERVICE_CLASSES.__getitem__),
                of=_class_of,
            ),
            Column("price", _("Price"), PRICE, of="price_micro", unit=_("per GPU-hour")),
        ],
        label=_("GPU prices"),
        empty=_("There is no price list yet; a month without prices cannot close. Apply one:"),
    )


def token_prices_table() -> Table:
    return Table(
        "token_prices",
        lambda: list(
            TokenPrice.objects.select_related("rate_card", "model").order_by(
                "-rate_card__valid_from", "model__name", "kind"
            )
        ),
        [
            Column("card", _("Rate card"), of="rate_card.name", filter=TEXT_FILTER),
            Column("valid_from", _("From"), VALIDITY, of="rate_card.valid_from"),
            Column("model", _("Model"), CODE, of="model.name", filter=TEXT_FILTER),
            Column("kind", _("Kind of token"), words(lambda code: TOKEN_KINDS.get(code, code))),
            Column("price", _("Price"), PRICE, of="price_micro", unit=_("per million tokens")),
        ],
        label=_("Token prices"),
        empty=_("No tokens have a price."),
    )


def policies_table(may_end: bool) -> Table:
    return Table(
        "policies",
        lambda: _versions(Policy.objects.order_by("-valid_from"), lambda row: "policy"),
        [
            Column("state", _("State"), NOWRAP),
            Column("valid_from", _("From"), VALIDITY, of="row.valid_from"),
            Column(
                "preemption_charged_to",
                _("Re-queued time is charged to"),
                words(preemption_payer),
                of="row.preemption_charged_to",
            ),
            Column(
                "unreserved_idle",
                _("Unreserved idle time is paid by"),
                words(lambda code: IDLE_PAYERS.get(code, code)),
                of="row.unreserved_idle",
            ),
            Column("lend_credit", _("Credit for lending"), words(lend_credit), of="row.lend_credit"),
            Column(
                "names_visible",
                _("Names across tenants"),
                of=lambda version: _("Shown") if version.row.names_visible else _("Aliases"),
            ),
            *_validity("policy", may_end),
        ],
        label=_("Policies"),
        empty=_("There is no policy; the defaults of the design hold."),
    )


def contracts_table(may_end: bool, access: Access) -> Table:
    """A tenant's own to a tenant."""
    return Table(
        "contracts",
        lambda: _versions(
            visible_to(Contract.objects.select_related("tenant__holder"), access)
            .annotate(billed=_billed("tenant"))
            .order_by("tenant__holder__slug", "-valid_from"),
            lambda row: row.tenant_id,
        ),
        [
            Column(
                "tenant",
                _("Tenant"),
                CODE,
                of="row.tenant.slug",
                link=lambda version: _bill(version.row.tenant.slug, version.row.billed),
                filter=TEXT_FILTER,
            ),
            Column("state", _("State"), NOWRAP),
            Column("valid_from", _("From"), VALIDITY, of="row.valid_from"),
            Column("kind", _("Kind of contract"), words(CONTRACT_KINDS.__getitem__), of="row.kind"),
            Column("token_quota", _("Token quota"), _TOKENS_IF_ANY, of="row.token_quota"),
            Column("committed_tokens", _("Committed tokens"), _TOKENS_IF_ANY, of="row.committed_tokens"),
            Column(
                "reserved_throughput",
                _("Reserved throughput"),
                of=lambda version: "; ".join(map(_throughput, version.row.reserved_throughput)),
                html=lambda version: _throughput_shown(version.row.reserved_throughput),
                can_sort=False,
                help=_("Tokens per minute; it becomes a reservation by the calibration at its start."),
            ),
            Column(
                "on_preemption",
                _("On preemption"),
                of="row.on_preemption",
                html=lambda version: ON_PREEMPTION[version.row.on_preemption],
            ),
            *_validity("contract", may_end),
        ],
        label=_("Contracts"),
        empty=_("No tenant has a contract of its own; GPU time at the rate card holds."),
    )


def lend_credit(value: str) -> str:
    """A rule by its name, or the part of the reserved rate that is credited."""
    if value in LEND_CREDITS:
        return str(LEND_CREDITS[value])
    share = f"{micro_text(parse_micro(value) * 100)}{THIN_SPACE}%"
    return _("%(share)s of the reserved rate") % {"share": share}


def _throughput(row: dict[str, Any]) -> str:
    """One row as a file tells it: model on pool, tokens per minute in + out."""
    rates = f"{row['input_tokens_per_minute']}+{row['output_tokens_per_minute']}"
    return f"{row['model']}@{row['pool']} {rates}"


def _throughput_shown(rows: list[dict[str, Any]]) -> Any:
    """A line per row: what is reserved, and the pool's page behind its name."""
    if not rows:
        return DASH
    line = _("{model} on {pool}: {into} in, {out} out")
    return format_html_join(
        mark_safe("<br>"),
        "{}",
        (
            (
                format_html(
                    line,
                    model=row["model"],
                    pool=format_html(
                        '<a href="{}">{}</a>', reverse("billing:pool", args=[row["pool"]]), row["pool"]
                    ),
                    into=COUNT.show(row["input_tokens_per_minute"]),
                    out=COUNT.show(row["output_tokens_per_minute"]),
                ),
            )
            for row in rows
        ),
    )


def _billed(tenant: str) -> Subquery:
    """The newest month that the tenant has a statement of; `tenant` names its key in the row."""
    newest = Statement.objects.filter(tenant=OuterRef(tenant)).order_by("-period")
    return Subquery(newest.values("period")[:1])


def _bill(slug: str, month: str | None) -> str | None:
    return reverse("billing:statement", args=[month, slug]) if month else None


def tenants_table() -> Table:
    return Table(
        "tenants",
        lambda: list(
            Tenant.objects.select_related("holder", "parent__holder")
            .annotate(billed=_billed("pk"))
            .order_by("holder__slug")
        ),
        [
            Column(
                "tenant",
                _("Tenant"),
                CODE,
                of="slug",
                link=lambda row: _bill(row.slug, row.billed),
                filter=TEXT_FILTER,
            ),
            Column("name", _("Name"), filter=TEXT_FILTER),
            Column("parent", _("Part of"), CODE, of=lambda row: row.parent.slug if row.parent else ""),
            Column("cost_center", _("Cost centre"), CODE),
            Column("gl_code", _("GL code"), CODE),
        ],
        label=_("Tenants"),
        empty=_("No tenant yet."),
    )


def pools_table() -> Table:
    return Table(
        "pools",
        lambda: list(Pool.objects.order_by("slug")),
        [
            Column(
                "pool",
                _("Pool"),
                CODE,
                of="slug",
                link=lambda row: reverse("billing:pool", args=[row.slug]),
                filter=TEXT_FILTER,
            ),
            Column("cluster", _("Cluster"), CODE),
            Column("gpu_model", _("GPU model"), CODE),
            Column("meter", _("Meter"), CODE),
        ],
        label=_("Pools"),
        empty=_("No pool yet."),
    )


def services_table() -> Table:
    return Table(
        "services",
        lambda: list(Service.objects.select_related("holder", "owner__holder").order_by("holder__slug")),
        [
            Column("service", _("Service"), CODE, of="holder.slug", filter=TEXT_FILTER),
            Column("owner", _("Owner"), CODE, of=lambda row: row.owner.slug if row.owner else _("platform")),
        ],
        label=_("Shared services"),
        empty=_("No shared service."),
    )
