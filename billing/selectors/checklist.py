"""Reads what a month's closing checklist rests on (domain.md section 10)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import connection
from django.db.models import Count, F, Sum
from django.utils import timezone

from billing.checks import pairs_equal_lending, slots_conserve_capacity, slots_meet
from billing.core.checklist import (
    Item,
    MonthEvidence,
    SourceSeen,
    checklist,
    months_out_of_order,
    with_waivers,
)
from billing.core.configuration import instant_of
from billing.core.sentences import Sentence, sentence
from billing.models import (
    Allocation,
    Approval,
    ApprovalKind,
    BillingFinding,
    ChecklistWaiver,
    Decision,
    Statement,
    StatementApproval,
    StatementState,
)
from billing.selectors.reconciliation import unexplained_differences
from billing.services.periods import months_not_closed
from billing.sql.contradictions import TOLD_AFTER_CLOSE
from ledger.core.periods import to_ms
from ledger.core.units import gpu_hours_text, micro_text
from ledger.inbox import inbox_evidence
from ledger.models import DirtySpan, FactFinding, HolderKind, Period, Source
from ledger.selectors.silence import waived_until, with_silence_waivers

PROOFS = (slots_conserve_capacity, slots_meet, pairs_equal_lending)
_PRICE_MISSING, _UNATTRIBUTED = "price_missing", "unattributed"
_OF_ITEMS_OF_THEIR_OWN = (_PRICE_MISSING, _UNATTRIBUTED)
_OCCUPIED = ("reserved_used_gpu_us", "on_demand_gpu_us", "borrowed_gpu_us", "excess_gpu_us")


@dataclass(frozen=True, slots=True)
class _Unseen:
    """Findings of a closed month beyond what a close has seen. more: of their quantity."""

    month: str
    code: str
    pool: str
    subject: str
    more: int
    count: int


def month_checklist(
    period: Period, now: datetime | None = None, unproved: list[Sentence] | None = None
) -> list[Item]:
    """Every item of the month with its evidence, and what was waived. About a dozen queries.

    unproved: what `unproved_invariants` said of the month as it is now, where that is known; it reads every slot.
    """
    rows = ChecklistWaiver.objects.filter(period=period).values_list("item", "evidence_sha256", "reason")
    waivers = {(item, sha256): reason for item, sha256, reason in rows}
    seen = month_evidence(period, now or timezone.now(), unproved)
    return with_waivers(checklist(seen), waivers)


def unproved_invariants(period: Period) -> list[Sentence]:
    """Where the month's slots break section 4. Only computing the month changes them."""
    return [finding.told() for proof in PROOFS for finding in proof(period.month)]


def month_evidence(period: Period, now: datetime, unproved: list[Sentence] | None = None) -> MonthEvidence:
    inbox = inbox_evidence(period.starts_at, period.ends_at)
    not_closed = [str(month) for month in months_not_closed(now)]
    unseen = _unseen(period, not_closed)
    return MonthEvidence(
        ends_ms=to_ms(period.ends_at),
        now_ms=to_ms(now),
        earlier_open=months_out_of_order(period.month, not_closed),
        behind=_behind(period),
        unprocessed=[sentence("batch_waits", number=number) for number in inbox.unprocessed],
        quarantined=[
            sentence("quarantined", reason=reason, count=count) for reason, count in inbox.quarantined
        ],
        quarantined_elsewhere=[
            sentence("quarantined", reason=reason, count=count) for reason, count in inbox.elsewhere
        ],
        unattributed=_unattributed(period, unseen),
        unreconciled=unexplained_differences(period),
        exceptions=_exceptions(period, unseen),
        missing_prices=_missing_prices(period, unseen),
        unproved=unproved_invariants(period) if unproved is None else unproved,
        sources=_sources(),
        **_approvals(period),
        awaiting_approval=_awaiting_approval(period, not_closed),
    )


def _unseen(period: Period, not_closed: list[str]) -> list[_Unseen]:
    """What computing closed months again brought about, and no close has seen yet: asked of the first month that is
    not closed. Contradictions are told by `_told_after_close`, which knows when their sides came."""
    if not not_closed or period.month != not_closed[0]:
        return []
    found = BillingFinding.objects.filter(
        month__lt=period.month, blocks_close=True, quantity__gt=F("seen_quantity")
    ).exclude(code="level_conflict")
    rows = found.values_list("month", "code", "pool__slug", "subject").annotate(
        more=Sum(F("quantity") - F("seen_quantity")), count=Count("pk")
    )
    return [
        _Unseen(month, code, pool or "", subject, more, count)
        for month, code, pool, subject, more, count in rows.order_by("month", "code", "pool__slug", "subject")
    ]


def _missing_prices(period: Period, unseen: list[_Unseen]) -> list[Sentence]:
    """Of the month, and of closed months where later facts or terms left an adjustment without a price."""
    findings = BillingFinding.objects.filter(code=_PRICE_MISSING, month=period.month).order_by("subject")
    return [
        *(
            sentence("price_missing_in_month", month=one.month, subject=one.subject)
            for one in unseen
            if one.code == _PRICE_MISSING
        ),
        *(
            sentence("price_missing_for", subject=subject)
            for subject in findings.values_list("subject", flat=True)
        ),
    ]


def _behind(period: Period) -> list[Sentence]:
    if period.horizon_at is None:
        return [sentence("never_computed")]
    if period.horizon_at < period.ends_at:
        return [sentence("computed_up_to", at=period.horizon_at)]
    dirty = DirtySpan.objects.filter(span__overlap=(period.starts_at, period.ends_at))
    pools = (
        dirty.order_by(F("pool__slug").asc(nulls_first=True)).values_list("pool__slug", flat=True).distinct()
    )
    return [
        sentence("headings_not_drafted") if slug is None else sentence("pool_not_computed", pool=slug)
        for slug in pools
    ]


def _unattributed(period: Period, unseen: list[_Unseen]) -> list[Sentence]:
    """Per pool: GPU-hours that were occupied by identities which map to nobody; of closed months those that came."""
    held = (
        Allocation.objects.filter(
            holder__kind=HolderKind.UNATTRIBUTED,
            starts_at__gte=period.starts_at,
            starts_at__lt=period.ends_at,
        )
        .values("pool__slug")
        .annotate(gpu_us=Sum(F(_OCCUPIED[0]) + F(_OCCUPIED[1]) + F(_OCCUPIED[2]) + F(_OCCUPIED[3])))
        .order_by("pool__slug")
    )
    return [
        sentence("unattributed_hours", pool=row["pool__slug"], hours=gpu_hours_text(row["gpu_us"]))
        for row in held
        if row["gpu_us"]
    ] + [
        sentence("unattributed_in_month", month=one.month, pool=one.pool, hours=gpu_hours_text(one.more))
        for one in unseen
        if one.code == _UNATTRIBUTED
    ]


def _exceptions(period: Period, unseen: list[_Unseen]) -> list[Sentence]:
    """Blocking findings of the facts and of the computation, counted by code and pool; those with an item of their
    own on the checklist stand there."""
    of_facts = FactFinding.objects.filter(
        blocks_close=True, occurred_at__gte=period.starts_at, occurred_at__lt=period.ends_at
    )
    of_books = BillingFinding.objects.filter(month=period.month, blocks_close=True).exclude(
        code__in=_OF_ITEMS_OF_THEIR_OWN
    )
    counts = Counter[tuple[str, str]]()
    for rows in (of_facts, of_books):
        for code, pool, count in rows.values_list("code", "pool__slug").annotate(count=Count("pk")):
            counts[code, pool or ""] += count
    return [
        sentence("exceptions_of_pool", exception=code, pool=pool, count=count)
        if pool
        else sentence("exceptions_found", exception=code, count=count)
        for (code, pool), count in sorted(counts.items())
    ] + _told_after_close(period, unseen)


def _told_after_close(period: Period, unseen: list[_Unseen]) -> list[Sentence]:
    """Contradictions and findings of closed months that no close has seen yet, counted by month, code and pool."""
    with connection.cursor() as cursor:
        cursor.execute(TOLD_AFTER_CLOSE, {"month": period.month})
        rows = cursor.fetchall()
    counts = Counter({(month, code, pool): count for month, code, pool, count in rows})
    for one in unseen:
        if one.code not in _OF_ITEMS_OF_THEIR_OWN:
            counts[one.month, one.code, one.pool] += one.count
    return [
        sentence("exceptions_of_closed_month", month=month, exception=code, pool=pool, count=count)
        for (month, code, pool), count in sorted(counts.items())
    ]


def _sources() -> list[SourceSeen]:
    return [
        SourceSeen(
            name=str(source),
            watermark_ms=_ms(source.watermark_at),
            complete_until_ms=_ms(source.complete_until),
            silence_after_ms=None if source.silence_after_s is None else source.silence_after_s * 1000,
            waived_until_ms=_ms(waived_until(source)),
        )
        for source in with_silence_waivers(Source.objects.filter(retired_at__isnull=True)).order_by("uri")
    ]


def _ms(instant: datetime | None) -> int | None:
    return None if instant is None else to_ms(instant)


def _approvals(period: Period) -> dict[str, Any]:
    """Statements whose draft is no longer the one that was approved last, and how many nobody approved.

    What is issued has another hash than its draft, whose approval the close has compared.
    """
    approved: dict[UUID, str] = {}
    for approval in StatementApproval.objects.filter(statement__period=period).order_by("approved_at", "pk"):
        approved[approval.statement_id] = approval.sha256
    rows = Statement.objects.filter(period=period).order_by("number")
    statements = list(rows.values_list("pk", "number", "sha256", "state"))
    stale = [
        number
        for pk, number, sha256, state in statements
        if state == StatementState.DRAFT and approved.get(pk, sha256) != sha256
    ]
    missing = sum(1 for pk, *_ in statements if pk not in approved)
    told = [sentence("drafts_not_approved", count=missing, all=len(statements))] if missing else []
    return {"stale_approvals": stale, "unapproved": told}


def _awaiting_approval(period: Period, not_closed: list[str]) -> list[Sentence]:
    """What a second person has yet to decide and what changes amounts that this month shows, oldest first."""
    pending = Approval.objects.filter(decision=Decision.PENDING).order_by("requested_at", "pk")
    told = (_what_waits(approval, period, not_closed) for approval in pending)
    return [one for one in told if one is not None]


def _what_waits(approval: Approval, period: Period, not_closed: list[str]) -> Sentence | None:
    """None where it does not concern the month."""
    said, who = approval.payload, approval.requested_by
    if approval.kind == ApprovalKind.OVERRIDE:
        return sentence("override_asked_for", who=who) if said["month"] == period.month else None
    if approval.kind == ApprovalKind.CREDIT:
        # A closed month's credit is posted in the first one that is not closed.
        month = said["concerns"] if said["concerns"] in not_closed else next(iter(not_closed), "")
        amount = micro_text(int(said["amount_micro"]))
        told = sentence("credit_asked_for", tenant=said["tenant"], amount=amount, who=who)
        return told if month == period.month else None
    if approval.kind == ApprovalKind.TERMS:
        begins = said["ended_at"] if "ends" in said else said["row"].get("valid_from")
        is_later = begins is not None and instant_of(begins) >= period.ends_at
        return None if is_later else sentence("terms_asked_for", table=said["table"], who=who)
    return None
