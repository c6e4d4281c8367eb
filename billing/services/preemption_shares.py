"""Whose preempted time it was, and what moves for it (domain.md section 6), once the month is allocated."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from django.db import connection
from django.db.models import QuerySet

from billing.core.preemption_charges import (
    PLATFORM,
    Charge,
    Part,
    PreemptionPolicy,
    Served,
    Share,
    charges,
    split_share,
)
from billing.core.preemption_standing import Standing
from billing.core.rating_lines import tenant_account
from billing.models import PreemptionRecord, PreemptionShare
from billing.selectors.accounts import Accounts
from billing.selectors.serving_quotas import AskedQuota, serving_quotas
from billing.selectors.terms import MonthTerms
from billing.selectors.undated import UndatedTerms
from billing.services.allocation_facts import HolderIndex, holder_at, load_timeline
from billing.services.preemption_facts import VoidedRequests
from billing.services.preemption_prices import PreemptionPrices
from billing.services.preemption_records import taken_of
from billing.sql.preemptions import SLOT_SHARES
from ledger.core.apportion import largest_remainder
from ledger.core.periods import to_ms
from ledger.models import HolderKind, Purpose, ServiceClass

_BATCH = 1000

# What a record's `charged_to` says.
BY_VICTIM, BY_PREEMPTOR, BY_PLATFORM = "victim", "preemptor", "platform"


def share_preemptions(
    ids: Collection[uuid.UUID], terms: MonthTerms, accounts: Accounts, prices: PreemptionPrices
) -> None:
    """Write the shares of these records again, and the amount that each moves."""
    records = list(records_with_parties().filter(pk__in=ids))
    of_services = [record for record in records if record.victim.kind == HolderKind.SERVICE]
    by_slot = _by_slot(of_services, accounts)
    weights = by_slot | _by_voided_requests(of_services, accounts, prices.undated)
    served = _served(of_services, by_slot)
    PreemptionShare.objects.filter(record__in=ids).delete()
    rows = []
    for record in records:
        owners = prices.undated.at(to_ms(record.decided_at)).owners
        shares = split_share(
            _whole(record, accounts, owners), weights.get(record.pk, {}), served.get(record.pk)
        )
        rows += [_row(record, share, accounts) for share in shares]
        record.entitled_milli_gpus = sum(share.entitled_milli_gpus for share in shares)
        policy = terms.preemption_policy_at(to_ms(record.decided_at))
        if policy.charged_to == "entitlement" and not record.entitled_milli_gpus:
            record.charged_to = BY_VICTIM
        made = record_charges(record, shares, terms, accounts, prices)
        record.amount_micro = total_micro(made) if record.charged_to != BY_VICTIM else 0
    PreemptionShare.objects.bulk_create(rows, batch_size=_BATCH)
    changed = ["entitled_milli_gpus", "charged_to", "amount_micro"]
    PreemptionRecord.objects.bulk_update(records, changed, batch_size=_BATCH)


def records_with_parties() -> QuerySet[PreemptionRecord]:
    return PreemptionRecord.objects.select_related("pool", "resumed_pool", "victim", "preemptor")


def _whole(record: PreemptionRecord, accounts: Accounts, owners: Mapping[str, str]) -> Share:
    return Share(
        accounts.of_holder(record.victim.slug, owners),
        record.milli_gpus,
        record.entitled_milli_gpus,
        record.waiting_gpu_us,
        record.lost_gpu_us,
        record.recompute_gpu_us,
    )


def _row(record: PreemptionRecord, share: Share, accounts: Accounts) -> PreemptionShare:
    return PreemptionShare(
        record=record,
        account_id=accounts.ids[share.account],
        milli_gpus=share.milli_gpus,
        entitled_milli_gpus=share.entitled_milli_gpus,
        waiting_gpu_us=share.waiting_gpu_us,
        lost_gpu_us=share.lost_gpu_us,
        recompute_gpu_us=share.recompute_gpu_us,
        weight_before=share.part.before,
        weight_through=share.part.through,
        weight_total=share.part.total,
    )


def stored_share(row: PreemptionShare, accounts: Accounts) -> Share:
    return Share(
        accounts.names[row.account_id],
        row.milli_gpus,
        row.entitled_milli_gpus,
        row.waiting_gpu_us,
        row.lost_gpu_us,
        row.recompute_gpu_us,
        Part(row.weight_before, row.weight_through, row.weight_total),
    )


def record_charges(
    record: PreemptionRecord,
    shares: Sequence[Share],
    terms: MonthTerms,
    accounts: Accounts,
    prices: PreemptionPrices,
) -> list[Charge]:
    """What moves between accounts for one record, per share and measure."""
    decided_ms = to_ms(record.decided_at)
    payer = _payer(record, accounts, prices.undated.at(decided_ms).owners)
    if payer is None:
        return []
    policy: PreemptionPolicy = terms.preemption_policy_at(decided_ms)
    standing = Standing(
        on_demand=record.on_demand_milli_gpus,
        borrowed=record.borrowed_milli_gpus,
        excess=record.excess_milli_gpus,
    )
    service_class = str(ServiceClass(record.service_class).label)
    lost_prices = prices.at(record.pool.slug, decided_ms, service_class)
    recompute_prices = lost_prices
    if record.resumed_at is not None and record.resumed_pool is not None:
        at_ms = to_ms(record.resumed_at)
        recompute_prices = prices.at(record.resumed_pool.slug, at_ms, service_class)
    # Money moves back to whoever paid for the occupancy: of a load test that is the platform (section 8).
    rated = terms.rating.policy_at(decided_ms)
    payer_of_purpose = rated.payer_of_purpose(str(Purpose(record.purpose).label))
    bearer = PLATFORM if payer_of_purpose == PLATFORM else ""
    preemption = taken_of(record).preemption
    return [
        charge
        for share in shares
        for charge in charges(
            preemption, share, payer, policy, standing, lost_prices, recompute_prices, bearer
        )
    ]


def _payer(record: PreemptionRecord, accounts: Accounts, owners: Mapping[str, str]) -> str | None:
    if record.charged_to == BY_PLATFORM:
        return PLATFORM
    if record.charged_to == BY_PREEMPTOR and record.preemptor is not None:
        return accounts.of_holder(record.preemptor.slug, owners)
    return None


def total_micro(made: Iterable[Charge]) -> int | None:
    """What moves in all; None where a price is missing."""
    total = 0
    for charge in made:
        if charge.amount_micro is None:
            return None
        total += charge.amount_micro
    return total


def _served(
    records: Sequence[PreemptionRecord], by_slot: Mapping[uuid.UUID, Mapping[str, int]]
) -> dict[uuid.UUID, Served]:
    """record -> its tenants' serving quotas, and what each had of the service's GPUs just before."""
    asked = [AskedQuota(record.victim.slug, record.pool, to_ms(record.decided_at)) for record in records]
    found = {}
    for record, quotas in zip(records, serving_quotas(asked), strict=True):
        names, parts = (
            zip(*sorted(by_slot[record.pk].items()), strict=True) if by_slot[record.pk] else ((), ())
        )
        held = (
            dict(zip(names, largest_remainder(record.held_milli_gpus, parts), strict=True)) if names else {}
        )
        of_accounts = {tenant_account(tenant): quota for tenant, quota in quotas.items()}
        found[record.pk] = Served(of_accounts, held)
    return found


def _by_voided_requests(
    records: Sequence[PreemptionRecord], accounts: Accounts, undated: UndatedTerms
) -> dict[uuid.UUID, dict[str, int]]:
    """record -> account -> GPU time of its voided requests, of records where some are known."""
    if not records:
        return {}
    found = {
        record.pk: VoidedRequests.of_json(record.voided) for record in records if record.voided is not None
    }
    index = HolderIndex.load()
    timeline = load_timeline({identity for one in found.values() for identity in one.gpu_us_of}, index)
    weights = {}
    for record in records:
        requests = found.get(record.pk)
        if requests is None or not any(requests.gpu_us_of.values()):
            continue
        of: defaultdict[str, int] = defaultdict(int)
        for identity, gpu_us in requests.gpu_us_of.items():
            holder = index.holders.slugs[holder_at(timeline, identity, to_ms(record.decided_at))]
            of[accounts.of_holder(holder, undated.at(to_ms(record.decided_at)).owners)] += gpu_us
        weights[record.pk] = dict(of)
    return weights


def _by_slot(records: Sequence[PreemptionRecord], accounts: Accounts) -> dict[uuid.UUID, dict[str, int]]:
    """record -> account -> its GPU time of the service in the slot just before."""
    if not records:
        return {}
    with connection.cursor() as cursor:
        cursor.execute(
            SLOT_SHARES,
            {
                "pools": [record.pool_id for record in records],
                "holders": [record.victim_id for record in records],
                "instants": [record.decided_at for record in records],
            },
        )
        rows = cursor.fetchall()
    of: defaultdict[tuple[int, int, object], dict[str, int]] = defaultdict(dict)
    for pool_id, holder_id, instant, account_id, gpu_us in rows:
        of[pool_id, holder_id, instant][accounts.names[account_id]] = int(gpu_us)
    return {record.pk: of[record.pool_id, record.victim_id, record.decided_at] for record in records}
