"""Whose preempted time it was, and what moves for it (domain.md section 6), once the month is allocated."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from django.db import connection
from django.db.models import QuerySet

from billing.core.preemption_charges import PLATFORM, Charge, PreemptionPolicy, Share, charges, split_share
from billing.core.preemption_standing import Standing
from billing.models import PreemptionRecord, PreemptionShare
from billing.selectors.accounts import Accounts
from billing.selectors.terms import MonthTerms
from billing.services.allocation_facts import HolderIndex, holder_at, load_timeline
from billing.services.preemption_facts import Victim, VoidedRequests, voided_requests
from billing.services.preemption_prices import PreemptionPrices
from billing.services.preemption_records import taken_of
from billing.sql_preemptions import SLOT_SHARES
from ledger.core.periods import to_ms
from ledger.models import HolderKind

_BATCH = 1000

# What a record's `charged_to` says.
BY_VICTIM, BY_PREEMPTOR, BY_PLATFORM = "victim", "preemptor", "platform"


def share_preemptions(
    ids: Collection[uuid.UUID], terms: MonthTerms, accounts: Accounts, prices: PreemptionPrices
) -> None:
    """Write the shares of these records again, and the amount that each moves."""
    records = list(records_with_parties().filter(pk__in=ids))
    weights = _service_weights([record for record in records if _is_service(record)], accounts)
    PreemptionShare.objects.filter(record__in=ids).delete()
    rows = []
    for record in records:
        shares = split_share(_whole(record, accounts), weights.get(record.pk, {}))
        rows += [_row(record, share, accounts) for share in shares]
        made = record_charges(record, shares, terms, accounts, prices)
        record.amount_micro = _total(made) if record.charged_to != BY_VICTIM else 0
    PreemptionShare.objects.bulk_create(rows, batch_size=_BATCH)
    PreemptionRecord.objects.bulk_update(records, ["amount_micro"], batch_size=_BATCH)


def records_with_parties() -> QuerySet[PreemptionRecord]:
    return PreemptionRecord.objects.select_related("pool", "resumed_pool", "victim", "preemptor")


def _is_service(record: PreemptionRecord) -> bool:
    return record.victim.kind == HolderKind.SERVICE


def _whole(record: PreemptionRecord, accounts: Accounts) -> Share:
    return Share(
        accounts.of_holder(record.victim.slug),
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
    )


def stored_share(row: PreemptionShare, accounts: Accounts) -> Share:
    return Share(
        accounts.names[row.account_id],
        row.milli_gpus,
        row.entitled_milli_gpus,
        row.waiting_gpu_us,
        row.lost_gpu_us,
        row.recompute_gpu_us,
    )


def record_charges(
    record: PreemptionRecord,
    shares: Sequence[Share],
    terms: MonthTerms,
    accounts: Accounts,
    prices: PreemptionPrices,
) -> list[Charge]:
    """What moves between accounts for one record, per share and measure."""
    payer = _payer(record, accounts)
    if payer is None:
        return []
    decided_ms = to_ms(record.decided_at)
    policy: PreemptionPolicy = terms.preemption_policy_at(decided_ms)
    standing = Standing(
        on_demand=record.on_demand_milli_gpus,
        borrowed=record.borrowed_milli_gpus,
        excess=record.excess_milli_gpus,
    )
    lost_prices = prices.at(record.pool.slug, decided_ms)
    recompute_prices = lost_prices
    if record.resumed_at is not None and record.resumed_pool is not None:
        recompute_prices = prices.at(record.resumed_pool.slug, to_ms(record.resumed_at))
    preemption = taken_of(record).preemption
    return [
        charge
        for share in shares
        for charge in charges(preemption, share, payer, policy, standing, lost_prices, recompute_prices)
    ]


def _payer(record: PreemptionRecord, accounts: Accounts) -> str | None:
    if record.charged_to == BY_PLATFORM:
        return PLATFORM
    if record.charged_to == BY_PREEMPTOR and record.preemptor is not None:
        return accounts.of_holder(record.preemptor.slug)
    return None


def _total(made: Iterable[Charge]) -> int | None:
    total = 0
    for charge in made:
        if charge.amount_micro is None:
            return None
        total += charge.amount_micro
    return total


def _service_weights(
    records: Sequence[PreemptionRecord], accounts: Accounts
) -> dict[uuid.UUID, dict[str, int]]:
    """record -> account -> GPU time of its voided requests, else its share of the slot."""
    if not records:
        return {}
    voided = _by_voided_requests(records, accounts)
    rest = [record for record in records if record.pk not in voided]
    return voided | _by_slot(rest, accounts)


def _by_voided_requests(
    records: Sequence[PreemptionRecord], accounts: Accounts
) -> dict[uuid.UUID, dict[str, int]]:
    victims = {
        (record.cluster, record.preemption): Victim(
            record.cluster,
            record.victim_workload,
            to_ms(record.decided_at),
            to_ms(record.released_at or record.decided_at),
        )
        for record in records
        if record.victim_workload
    }
    found: Mapping[tuple[str, str], VoidedRequests] = voided_requests(victims)
    index = HolderIndex.load()
    timeline = load_timeline({identity for one in found.values() for identity in one.gpu_us_of}, index)
    weights = {}
    for record in records:
        requests = found.get((record.cluster, record.preemption))
        if requests is None or not any(requests.gpu_us_of.values()):
            continue
        of: defaultdict[str, int] = defaultdict(int)
        for identity, gpu_us in requests.gpu_us_of.items():
            holder = index.holders.slugs[holder_at(timeline, identity, to_ms(record.decided_at))]
            of[accounts.of_holder(holder)] += gpu_us
        weights[record.pk] = dict(of)
    return weights


def _by_slot(records: Sequence[PreemptionRecord], accounts: Accounts) -> dict[uuid.UUID, dict[str, int]]:
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
