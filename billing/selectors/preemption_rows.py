"""`preemptions.csv`: every preemption of a tenant's month, as the victim and as the cause."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from django.db.models import Prefetch, Q, QuerySet

from billing.models import MonthLine, PreemptionRecord, PreemptionShare
from billing.selectors.names import Names
from ledger.core.instants import instant_text
from ledger.core.units import micro_text, milli_gpus_text
from ledger.models import Period, Tenant

COLUMNS = (
    "preemption",
    "role",
    "decided_at",
    "released_at",
    "resumed_at",
    "pool",
    "gpu_model",
    "gpus",
    "cause",
    "victim",
    "preemptor",
    "preemptor_source",
    "model",
    "entitled_gpus",
    "requests_in_flight",
    "requests_voided",
    "output_tokens_lost",
    "cached_prefix_tokens",
    "recompute_prefill_tokens",
    "drain_gpu_us",
    "waiting_gpu_us",
    "lost_gpu_us",
    "lost_evidence",
    "recompute_gpu_us",
    "recompute_evidence",
    "requeued_gpu_us",
    "charged_to",
    "amount",
    "currency",
    "resumed_pool",
    "resumed_cluster",
    "resumed_state",
    "idle_elsewhere_gpus",
)
VICTIM = "victim"
CAUSE = "cause"


Row = tuple[object, ...]
_LINE_CATEGORIES = ("preemption_lost", "preemption_recompute")


class Borne:
    """What preemptions move on the statements of some tenants, as the lines of their months say it."""

    def __init__(self, tenants: Collection[int], starts_at: datetime, ends_at: datetime) -> None:
        """tenants: ids. Of the months that overlap the stretch. One query."""
        self._found: defaultdict[tuple[int, str, str], list[int | None]] = defaultdict(list)
        lines = MonthLine.objects.filter(
            account__tenant__in=tenants,
            period__starts_at__lt=ends_at,
            period__ends_at__gt=starts_at,
            kind="transfer",
            category__in=_LINE_CATEGORIES,
        )
        wanted = lines.values_list("account__tenant", "preemptions", "amount_micro")
        for tenant, preemptions, amount in wanted:
            for preemption in preemptions:
                # The side that is relieved owes less, the payer more; without a price neither is known.
                roles = (VICTIM, CAUSE) if amount is None else (VICTIM,) if amount < 0 else (CAUSE,)
                for role in roles:
                    self._found[tenant, preemption, role].append(amount)

    def text(self, tenant: int, record: PreemptionRecord, role: str) -> str:
        """Exact amount in the ledger's currency; below 0 for a victim that is relieved; "" where a price is missing."""
        amounts = self._found.get((tenant, str(record.pk), role), [])
        known = [amount for amount in amounts if amount is not None]
        return micro_text(sum(known)) if len(known) == len(amounts) else ""


def preemption_rows(tenant: Tenant, period: Period, names: Names, currency: str) -> Iterator[Row]:
    """Rows by decision instant; a preemption inside one tenant stands twice, once per role."""
    borne = Borne([tenant.pk], period.starts_at, period.ends_at)
    for record in preemptions_of([tenant], period).iterator(chunk_size=2000):
        for role in roles_of(record, tenant):
            row = record_row(record, role, names, currency, tenant=tenant.pk, borne=borne)
            yield tuple(row[column] for column in COLUMNS)


def month_rows(
    tenants: Sequence[Tenant], period: Period, own: Mapping[int, Names], named: Names, currency: str
) -> Iterator[tuple[Tenant, Row, Row]]:
    """The rows of several tenants, with the tenant's `own` names and with the `named` ones. In the order in which
    each tenant's rows stand. Two queries, and one per thousand of records."""
    by_id = {tenant.pk: tenant for tenant in tenants}
    borne = Borne(by_id, period.starts_at, period.ends_at)
    for record in preemptions_of(tenants, period).iterator(chunk_size=1000):
        parties = _parties(record)
        for tenant in (by_id[pk] for pk in by_id if pk in parties):
            for role in roles_of(record, tenant):
                seen = record_row(record, role, own[tenant.pk], currency, tenant=tenant.pk, borne=borne)
                full = record_row(record, role, named, currency, tenant=tenant.pk, borne=borne)
                yield tenant, tuple(seen[name] for name in COLUMNS), tuple(full[name] for name in COLUMNS)


def preemptions_of(tenants: Sequence[Tenant], period: Period) -> QuerySet[PreemptionRecord]:
    """Preemptions decided in the month that hit one of the tenants or that it (or a service of its) caused."""
    holders = [tenant.pk for tenant in tenants]
    return (
        PreemptionRecord.objects.filter(decided_at__gte=period.starts_at, decided_at__lt=period.ends_at)
        .filter(
            Q(pk__in=PreemptionShare.objects.filter(account__tenant__in=holders).values("record"))
            | Q(preemptor__in=holders)
            | Q(preemptor__service__owner__in=holders)
        )
        .select_related("pool", "resumed_pool", "preemptor__service", "victim")
        .prefetch_related(Prefetch("shares", PreemptionShare.objects.select_related("account")))
        .order_by("decided_at", "preemption")
    )


def roles_of(record: PreemptionRecord, tenant: Tenant) -> list[str]:
    roles = []
    if any(share.account.tenant_id == tenant.pk for share in record.shares.all()):
        roles.append(VICTIM)
    if tenant.pk in causes_of(record):
        roles.append(CAUSE)
    return roles


def causes_of(record: PreemptionRecord) -> set[int | None]:
    """Holder ids of the preemptor and, where it is a service, of its owner."""
    service = getattr(record.preemptor, "service", None) if record.preemptor_id else None
    return {record.preemptor_id, service.owner_id if service is not None else None}


def _parties(record: PreemptionRecord) -> set[int | None]:
    """Ids of every tenant on whose statement the preemption stands."""
    return causes_of(record) | {share.account.tenant_id for share in record.shares.all()}


def record_row(
    record: PreemptionRecord,
    role: str,
    names: Names,
    currency: str,
    *,
    tenant: int | None = None,
    borne: Borne | None = None,
) -> dict[str, Any]:
    """One record as CSV, API and pages print it; unknown measures are empty.

    For a tenant as the victim of a shared service's preemption GPUs and their time are its share; what is counted of
    requests and tokens is the whole preemption's. amount: of the whole preemption, or what the tenant bears of it.
    """
    measures: Any = record
    if tenant is not None and role == VICTIM:
        measures = next(share for share in record.shares.all() if share.account.tenant_id == tenant)
    lost, recompute = measures.lost_gpu_us, measures.recompute_gpu_us
    requeued = None if lost is None and recompute is None else (lost or 0) + (recompute or 0)
    # Another tenant's work is told by what it did to you, not by its own ids.
    hidden = names.is_other(record.victim_id)
    return {
        "preemption": str(record.pk) if hidden else record.preemption,
        "role": role,
        "decided_at": instant_text(record.decided_at),
        "released_at": instant_text(record.released_at),
        "resumed_at": instant_text(record.resumed_at),
        "pool": record.pool.slug,
        "gpu_model": record.pool.gpu_model,
        "gpus": milli_gpus_text(measures.milli_gpus),
        "cause": record.cause,
        "victim": names.shown(record.victim_id),
        "preemptor": names.shown(record.preemptor_id),
        "preemptor_source": record.preemptor_source,
        "model": record.model,
        "entitled_gpus": milli_gpus_text(measures.entitled_milli_gpus),
        "requests_in_flight": _known(record.requests_in_flight),
        "requests_voided": _known(record.requests_voided),
        "output_tokens_lost": _known(record.output_tokens_lost),
        "cached_prefix_tokens": _known(record.cached_prefix_tokens),
        "recompute_prefill_tokens": _known(record.recompute_prefill_tokens),
        "drain_gpu_us": _known(_drained(record, measures.milli_gpus)),
        "waiting_gpu_us": _known(measures.waiting_gpu_us),
        "lost_gpu_us": _known(lost),
        "lost_evidence": record.lost_evidence,
        "recompute_gpu_us": _known(recompute),
        "recompute_evidence": record.recompute_evidence,
        "requeued_gpu_us": _known(requeued),
        "charged_to": record.charged_to,
        "amount": _amount(record, role, tenant, borne),
        "currency": currency,
        "resumed_pool": record.resumed_pool.slug if record.resumed_pool else "",
        "resumed_cluster": record.resumed_pool.cluster if record.resumed_pool else "",
        "resumed_state": record.resumed_state,
        "idle_elsewhere_gpus": (
            ""
            if record.idle_elsewhere_milli_gpus is None
            else milli_gpus_text(record.idle_elsewhere_milli_gpus)
        ),
    }


def _drained(record: PreemptionRecord, milli_gpus: int) -> int | None:
    """Of the GPUs of a share: draining is GPUs x time, so it divides without a remainder."""
    if not record.drain_gpu_us or milli_gpus == record.milli_gpus:
        return record.drain_gpu_us
    return record.drain_gpu_us * milli_gpus // record.milli_gpus


def _amount(record: PreemptionRecord, role: str, tenant: int | None, borne: Borne | None) -> str:
    if tenant is not None and borne is not None:
        return borne.text(tenant, record, role)
    return "" if record.amount_micro is None else micro_text(record.amount_micro)


def _known(value: int | None) -> str:
    return "" if value is None else str(value)
