"""Money that preemptions move: transfer and credit lines of a month, from its records (domain.md section 6)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import replace
from uuid import UUID

from django.db import connection
from django.db.models import Prefetch, Q, QuerySet

from billing.core.preemption_charges import LOST, Charge, Share, delay_credit_micro
from billing.core.rating_lines import GPU_US, Line
from billing.models import PreemptionRecord, PreemptionShare, PreemptionWait
from billing.selectors.accounts import Accounts
from billing.selectors.terms import MonthTerms
from billing.services.preemption_prices import PreemptionPrices
from billing.services.preemption_shares import (
    BY_VICTIM,
    record_charges,
    records_with_parties,
    stored_share,
    total_micro,
)
from billing.services.preemptions import Rebuilt
from billing.sql.preemptions import LINES_WITHOUT_RECORD
from ledger.core.periods import Span, to_datetime, to_ms, utc_days
from ledger.models import Period

_BATCH = 1000


def preemption_lines(
    terms: MonthTerms,
    span: Span,
    accounts: Accounts,
    prices: PreemptionPrices,
    only: Collection[UUID] | None = None,
) -> list[Line]:
    """Lost time moves in the month of the decision, recomputed time in that of the resume.

    only: what these records move, and all delay credits.
    """
    lines = []
    records = _records_of(span).exclude(charged_to__in=["", BY_VICTIM])
    for record in records if only is None else records.filter(pk__in=only):
        shares = [stored_share(row, accounts) for row in record.shares.all()]
        for charge in record_charges(record, shares, terms, accounts, prices):
            at = record.decided_at if charge.measure == LOST else record.resumed_at
            if at is not None and span.start_ms <= to_ms(at) < span.end_ms:
                lines += _both_sides(record, charge, to_ms(at))
    return lines + list(_delay_credits(terms, span, accounts))


def price_again(terms: MonthTerms, span: Span, accounts: Accounts, prices: PreemptionPrices) -> None:
    """Write what records of the month move, where that has changed: in cost recovery a price follows from all of the
    month, so that a late fact far from a preemption changes what it moves."""
    changed = []
    for record in _records_of(span).exclude(charged_to__in=["", BY_VICTIM]):
        shares = [stored_share(row, accounts) for row in record.shares.all()]
        amount = total_micro(record_charges(record, shares, terms, accounts, prices))
        if amount != record.amount_micro:
            record.amount_micro = amount
            changed.append(record)
    PreemptionRecord.objects.bulk_update(changed, ["amount_micro"], batch_size=_BATCH)


def records_that_moved(period: Period, rebuilt: Rebuilt) -> set[UUID]:
    """Records whose lines of the month may not be those that are stored: written again just now, or whose stretch
    reaches beyond the month, so that computing another one may have written them, or beyond the horizon up to which
    the month had been computed (`period` as it was), so that their time has come since; and those that lines tell of
    which have gone since, or moved to another instant."""
    known = period.horizon_at or period.starts_at
    inside = Q(decided_at__gte=period.starts_at, decided_at__lt=known, waits_until__lt=period.ends_at) & (
        Q(resumed_at__isnull=True) | Q(resumed_at__gte=period.starts_at, resumed_at__lt=known)
    )
    of_month = _during(Span(to_ms(period.starts_at), to_ms(period.ends_at)))
    reaching = PreemptionRecord.objects.filter(of_month).exclude(inside).values_list("pk", flat=True)
    with connection.cursor() as cursor:
        cursor.execute(LINES_WITHOUT_RECORD, {"month": period.month})
        lost = [record for (record,) in cursor.fetchall()]
    return {*rebuilt.ids, *rebuilt.gone, *reaching, *lost}


def _during(span: Span) -> Q:
    starts_at, ends_at = to_datetime(span.start_ms), to_datetime(span.end_ms)
    return Q(decided_at__gte=starts_at, decided_at__lt=ends_at) | Q(
        resumed_at__gte=starts_at, resumed_at__lt=ends_at
    )


def _records_of(span: Span) -> QuerySet[PreemptionRecord]:
    return (
        records_with_parties()
        .filter(_during(span))
        .prefetch_related(Prefetch("shares", PreemptionShare.objects.order_by("account_id")))
        .order_by("decided_at", "preemption", "pk")
    )


def _both_sides(record: PreemptionRecord, charge: Charge, at_ms: int) -> list[Line]:
    """The payer owes that much more, the victim that much less; each side names the other and the record."""
    sides = ((charge.payer, charge.victim, 1), (charge.victim, charge.payer, -1))
    return [
        Line(
            account=account,
            kind="transfer",
            category=f"preemption_{charge.measure}",
            quantity=charge.gpu_us,
            unit=GPU_US,
            version_from_ms=at_ms,
            amount_micro=None if charge.amount_micro is None else sign * charge.amount_micro,
            pool=record.pool.slug,
            counter_account=other,
            preemptions=(str(record.pk),),
        )
        for account, other, sign in sides
    ]


def _delay_credits(terms: MonthTerms, span: Span, accounts: Accounts) -> Iterator[Line]:
    """One credit line per tenant and day for entitled GPU time that waited or was lost."""
    if not terms.delay_credit_micro:
        return
    hurt = _hurt_by_day(span, accounts, set(terms.delay_credit_micro))
    for (account, day_ms), parts in sorted(hurt.items()):
        amount = delay_credit_micro(
            [share for share, _ in parts], [waited for _, waited in parts], terms.delay_credit_micro[account]
        )
        if amount:
            yield Line(
                account=account,
                kind="credit",
                category="delay_credit",
                quantity=sum(waited + (share.lost_gpu_us or 0) for share, waited in parts),
                unit=GPU_US,
                version_from_ms=day_ms,
                amount_micro=-amount,
            )


def _hurt_by_day(
    span: Span, accounts: Accounts, names: set[str]
) -> dict[tuple[str, int], list[tuple[Share, int]]]:
    """(account, day) -> its shares with what each waited in that day; lost only in the day of the decision.

    What a share waited up to the end of a day is its part of what the record did, as reports of the month say it: the
    days of a share add up to the share of the days.
    """
    starts_at, ends_at = to_datetime(span.start_ms), to_datetime(span.end_ms)
    records = (
        PreemptionRecord.objects.filter(decided_at__lt=ends_at, queued_only=False)
        .filter(Q(decided_at__gte=starts_at) | Q(waits_until__isnull=True) | Q(waits_until__gt=starts_at))
        .prefetch_related("shares", Prefetch("waits", PreemptionWait.objects.all()))
        .order_by("decided_at", "pk")
    )
    found: defaultdict[tuple[str, int], list[tuple[Share, int]]] = defaultdict(list)
    for record in records:
        rows = sorted(record.shares.all(), key=lambda row: row.account_id)
        shares = [stored_share(row, accounts) for row in rows]
        until = 0
        for day in utc_days(span):
            decided_here = day.start_ms <= to_ms(record.decided_at) < day.end_ms
            waited = sum(_waited(wait, day, span) for wait in record.waits.all())
            if not waited and not decided_here:
                continue
            before, until = until, until + waited
            for share in shares:
                if share.account in names:
                    lost = share.lost_gpu_us if decided_here else None
                    part = share.part.of(until) - share.part.of(before)
                    found[share.account, day.start_ms].append((replace(share, lost_gpu_us=lost), part))
    return found


def _waited(wait: PreemptionWait, day: Span, span: Span) -> int:
    ends_ms = span.end_ms if wait.ends_at is None else to_ms(wait.ends_at)
    return wait.milli_gpus * max(min(ends_ms, day.end_ms) - max(to_ms(wait.starts_at), day.start_ms), 0)
