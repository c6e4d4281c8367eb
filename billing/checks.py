"""What must always hold of the books, as a list of functions that return findings (domain.md section 11)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any
from uuid import UUID

from django.db import connection, transaction
from django.db.models.fields.json import KeyTransform

from billing.core.journal import MEMO
from billing.core.posting import INVARIANTS as POSTING_INVARIANTS
from billing.core.posting import targets_of
from billing.core.rating_lines import MONEY, tenant_account
from billing.core.sentences import sentence
from billing.core.statement import GENESIS, Link, broken_links, seal
from billing.models import Statement, StatementAnnex, StatementLine, StatementState
from billing.selectors.accounts import accounts
from billing.selectors.annexes import annex_hashes, annex_is_whole
from billing.selectors.journal import entries
from billing.selectors.terms import month_terms
from billing.selectors.undated import undated_terms
from billing.services.adjustments import computed_again, months_with_unposted_credits
from billing.services.months import compute_month
from billing.services.posting import posted_for
from billing.services.rating import rate_month
from billing.services.tenant_months import NO_DAYS, kept_tenant_months, tenant_month_rows
from billing.sql.checks import (
    COUNTED_TOKENS_THAT_DIFFER,
    DAYS_THAT_DO_NOT_ADD_UP,
    FINGERPRINTS,
    HOURS_THAT_DIFFER,
    PAIRS_THAT_DO_NOT_ADD_UP,
    ROWS_WITHOUT_SLOT,
    SLOTS_THAT_DO_NOT_ADD_UP,
    SLOTS_THAT_DO_NOT_MEET,
    STATEMENTS_THAT_DO_NOT_ADD_UP,
    TOKEN_DAYS_THAT_DIFFER,
)
from ledger.checks import CHECKS as RECORD_CHECKS
from ledger.checks import Check, Finding
from ledger.core.periods import Month, Span, to_ms
from ledger.core.transfers import postings
from ledger.models import DirtySpan, Holder, Period, PeriodState
from ledger.selectors.corrections import void_facts


def _periods(month: str | None) -> list[Period]:
    """Months that were ever computed."""
    rows = Period.objects.filter(horizon_at__isnull=False).order_by("starts_at")
    return list(rows if month is None else rows.filter(month=month))


def _rows(statement: str, parameters: dict[str, Any]) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)
        return cursor.fetchall()


def _during(period: Period) -> dict[str, Any]:
    return {"from": period.starts_at, "to": period.ends_at, "month": period.month}


def slots_conserve_capacity(month: str | None) -> Iterator[Finding]:
    """11.1: per pool and slot, capacity = where all of it went, and the holders' rows add up to it."""
    for period in _periods(month):
        for pool, starts_at, capacity, lending in _rows(SLOTS_THAT_DO_NOT_ADD_UP, _during(period)):
            what = (
                "capacity_does_not_add_up"
                if capacity
                else "lending_does_not_add_up"
                if lending
                else "holders_do_not_add_up"
            )
            yield Finding("capacity_is_conserved", f"{pool} {starts_at:%Y-%m-%dT%H:%MZ}", sentence(what))
        for pool, starts_at in _rows(ROWS_WITHOUT_SLOT, _during(period)):
            where = f"{pool} {starts_at:%Y-%m-%dT%H:%MZ}"
            yield Finding("capacity_is_conserved", where, sentence("rows_without_slot"))


def slots_meet(month: str | None) -> Iterator[Finding]:
    """11.8: a month is the sum of its slots, across changes of the clock too."""
    for period in _periods(month):
        for pool, ends_at, starts_at in _rows(SLOTS_THAT_DO_NOT_MEET, _during(period)):
            problem = sentence("slots_do_not_meet", end_at=ends_at, start_at=starts_at)
            yield Finding("slots_meet", pool, problem)


def pairs_equal_lending(month: str | None) -> Iterator[Finding]:
    """4: rows and columns of lender x borrower equal what was lent and borrowed."""
    for period in _periods(month):
        for pool, holder, lent, pairs_lent, borrowed, pairs_borrowed in _rows(
            PAIRS_THAT_DO_NOT_ADD_UP, _during(period)
        ):
            sums = {"lent": lent, "pairs_lent": pairs_lent, "borrowed": borrowed}
            problem = sentence("pairs_do_not_add_up", **sums, pairs_borrowed=pairs_borrowed)
            yield Finding("pairs_equal_lending", f"{period.month} {pool} {holder}", problem)


# Kept added up by day -> what names pools and tenants of whom it differs from what it is added up from, and whether
# that follows facts at once: where some are not computed yet, the days are behind, not wrong.
_DAYS = {
    "days_do_not_add_up": (DAYS_THAT_DO_NOT_ADD_UP, False),
    "token_days_differ": (TOKEN_DAYS_THAT_DIFFER, True),
    "counted_tokens_differ": (COUNTED_TOKENS_THAT_DIFFER, True),
}


def days_equal_slots(month: str | None) -> Iterator[Finding]:
    """4, 7, 9: what is kept added up by day is the sum of the slots, and of the hours of requests."""
    for period in _periods(month):
        values = {**_during(period), "horizon": period.horizon_at}
        for problem, (statement, follows_facts) in _DAYS.items():
            if follows_facts and _is_behind(period):
                continue
            for pool, tenant in _rows(statement, values):
                where = f"{period.month} {pool} {tenant}".rstrip()
                yield Finding("days_equal_slots", where, sentence(problem))


def hours_equal_requests(month: str | None) -> Iterator[Finding]:
    """7: the hours that requests are billed by are the sum of the requests, wherever those are still there."""
    void = void_facts().parameters()
    for period in _periods(month):
        for pool, hour in _rows(HOURS_THAT_DIFFER, {**_during(period), **void}):
            where = f"{period.month} {pool}"
            yield Finding("hours_equal_requests", where, sentence("hours_differ", first_at=hour))


def tenant_days_equal_days(month: str | None) -> Iterator[Finding]:
    """9: what is kept of tenants' days, for forecasts and budgets, is what was added up by day, at the rate card.

    Of a month that terms changed and that is not computed since, amounts are behind, not wrong.
    """
    zone = undated_terms().zone
    for period in _periods(month):
        window = Span(to_ms(period.starts_at), to_ms(period.horizon_at or period.starts_at))
        made, kept = tenant_month_rows(window, zone, None), kept_tenant_months(period)
        slugs = dict(Holder.objects.filter(pk__in=made.keys() | kept.keys()).values_list("pk", "slug"))
        is_behind = _is_behind(period)
        for tenant, slug in sorted(slugs.items(), key=lambda one: one[1]):
            amounts, held = zip(made.get(tenant, NO_DAYS), kept.get(tenant, NO_DAYS), strict=True)
            where = f"{period.month} {slug}"
            if held[0] != held[1]:
                yield Finding("tenant_days_equal_days", where, sentence("tenant_days_differ"))
            if amounts[0] != amounts[1] and not is_behind:
                yield Finding("tenant_days_equal_days", where, sentence("tenant_amounts_differ"))


def posted_is_target(month: str | None) -> Iterator[Finding]:
    """11.3: for every open month, at its horizon, what stands posted is what facts, rates and policies say."""
    undated, books = undated_terms(), accounts()
    for period in _periods(month):
        if period.state == PeriodState.CLOSED or period.horizon_at is None:
            continue
        terms = month_terms(Month.parse(period.month), undated.zone)
        span = Span(to_ms(period.starts_at), to_ms(period.horizon_at))
        lines = rate_month(undated, terms, span, books)
        for posting in postings(targets_of(period.month, lines), posted_for(period.month, books)):
            flow = {"counted_in": posting.unit, "debit": posting.debit, "credit": posting.credit}
            problem = sentence("not_posted", quantity=posting.quantity, **flow)
            yield Finding("posted_is_target", posting.key, problem)
        for invariant in POSTING_INVARIANTS:
            for problem in invariant(lines):
                yield Finding("both_sides_agree", period.month, problem)


def statements_add_up(month: str | None) -> Iterator[Finding]:
    """11.4: sum of lines = total = the tenant's transfers, exactly and as printed."""
    for period in _periods(month):
        for number, total, lines, posted, minor, lines_minor in _rows(
            STATEMENTS_THAT_DO_NOT_ADD_UP, {"month": period.month}
        ):
            problem = sentence(
                "statement_does_not_add_up",
                total=total,
                lines=lines,
                posted=posted,
                minor=minor,
                lines_minor=lines_minor,
            )
            yield Finding("statements_add_up", number, problem)


def showback_is_nobodys_debt(month: str | None) -> Iterator[Finding]:
    """8: in the month's journal what a statement only shows stands on memo accounts, and what it bills does not."""
    for period in _periods(month):
        net: defaultdict[str, int] = defaultdict(int)
        for entry in entries(period):
            if entry.unit == MONEY:
                net[entry.debit] += entry.quantity
                net[entry.credit] -= entry.quantity
        statements = Statement.objects.filter(period=period).select_related("tenant__holder")
        for statement in statements.only("number", "total_micro", "tenant").annotate(
            shown_only=KeyTransform("informational", "content")
        ):
            account = tenant_account(statement.tenant.slug)
            wrong = account if statement.shown_only else f"{MEMO}{account}"
            if net[wrong]:
                problem = sentence("shown_amount_stands", much=net[wrong], account=wrong)
                yield Finding("showback_is_nobodys_debt", statement.number, problem)


def statements_are_what_was_sealed(month: str | None) -> Iterator[Finding]:
    """11.5: every statement's hash recomputes, its rows say what its content says, and both chains hold."""
    rows = Statement.objects.select_related("tenant__holder").order_by("period", "tenant__holder__slug")
    annexes: defaultdict[UUID, list[StatementAnnex]] = defaultdict(list)
    for annex in StatementAnnex.objects.defer("compressed").order_by("name"):
        annexes[annex.statement_id].append(annex)
    links: list[Link] = []
    contents = {}
    for statement in rows.prefetch_related("lines").iterator(chunk_size=200):
        if month in (None, statement.period_id):
            yield from _statement_findings(statement, annexes[statement.pk])
        if statement.state == StatementState.ISSUED:
            slug = statement.tenant.slug
            contents[statement.period_id, slug] = statement.content
            links.append(
                Link(
                    slug,
                    statement.period_id,
                    statement.sha256,
                    statement.previous_of_tenant or GENESIS,
                    statement.previous_of_ledger or GENESIS,
                )
            )
    for problem in broken_links(links, contents):
        yield Finding("chain_holds", "", problem)


def annexes_are_what_was_sealed(month: str | None) -> Iterator[Finding]:
    """11.5: every file of an issued statement is the one whose hash its content names. One file in memory at once."""
    annexes = StatementAnnex.objects.select_related("statement").order_by("statement__number", "name")
    if month is not None:
        annexes = annexes.filter(statement__period=month)
    for annex in annexes.iterator(chunk_size=1):
        if not annex_is_whole(annex):
            problem = sentence("file_changed", file=annex.name)
            yield Finding("files_are_what_was_sealed", annex.statement.number, problem)


def _statement_findings(statement: Statement, annexes: list[StatementAnnex]) -> Iterator[Finding]:
    sealed = seal(statement.content, statement.previous_of_tenant, statement.previous_of_ledger)
    if sealed != statement.sha256:
        yield Finding("statements_are_what_was_sealed", statement.number, sentence("content_changed"))
    if not _rows_match(statement, annexes):
        yield Finding("statements_are_what_was_sealed", statement.number, sentence("rows_changed"))


def _rows_match(statement: Statement, annexes: list[StatementAnnex]) -> bool:
    content = statement.content
    if content.get("annexes", {}) != annex_hashes(annexes):
        return False
    said = (content.get("number"), content.get("total_micro"), content.get("total_minor"))
    if said != (statement.number, str(statement.total_micro), str(statement.total_minor)):
        return False
    lines = sorted(statement.lines.all(), key=lambda line: line.position)
    return [_said_of(line) for line in content.get("lines", ())] == [_row_of(line) for line in lines]


_PRINTED = ("key", "kind", "pool", "service", "model", "category", "unit", "concerns_month")
_NUMBERS = ("quantity", "unit_price_micro", "amount_micro", "amount_minor", "rounding_micro")


def _said_of(line: dict[str, Any]) -> tuple[Any, ...]:
    return (*(line.get(name) for name in (*_PRINTED, *_NUMBERS)), list(line.get("preemptions", ())))


def _row_of(line: StatementLine) -> tuple[Any, ...]:
    numbers = (getattr(line, name) for name in _NUMBERS)
    texts = (None if number is None else str(int(number)) for number in numbers)
    return (*(getattr(line, name) for name in _PRINTED), *texts, list(line.preemptions))


def books_follow_from_facts(month: str | None) -> Iterator[Finding]:
    """Every month computed again from all of its facts gives the books as they stand; of a closed month those are what
    it was issued with and what was posted for it later.

    Works in a transaction that is taken back. A month with facts or credits that are not computed yet is left out: its
    books are behind, not wrong.
    """
    unposted = months_with_unposted_credits()
    for period in _periods(month):
        if _is_behind(period) or period.month in unposted:
            continue
        with transaction.atomic():
            before = _fingerprints(period)
            transfers, statements = _computed_again(period)
            after = _fingerprints(period)
            transaction.set_rollback(True)
        for table in before:
            if before[table] != after[table]:
                problem = sentence("table_differs", table=sentence(table))
                yield Finding("books_follow_from_facts", period.month, problem)
        if transfers:
            problem = sentence("transfers_missing", count=transfers)
            yield Finding("books_follow_from_facts", period.month, problem)
        if statements:
            problem = sentence("statements_differ", count=statements)
            yield Finding("books_follow_from_facts", period.month, problem)


def _computed_again(period: Period) -> tuple[int, int]:
    """How many transfers and drafts that would take; of a closed month the transfers in the next open one."""
    if period.state == PeriodState.CLOSED:
        lines, books = computed_again(period, everything=True)
        return len(list(postings(targets_of(period.month, lines), posted_for(period.month, books)))), 0
    done = compute_month(Month.parse(period.month), horizon=period.horizon_at, everything=True)
    return done.transfers, done.statements


def _is_behind(period: Period) -> bool:
    return DirtySpan.objects.filter(span__overlap=(period.starts_at, period.horizon_at)).exists()


def _fingerprints(period: Period) -> dict[str, str]:
    return {table: _rows(statement, _during(period))[0][0] for table, statement in FINGERPRINTS.items()}


CHECKS: tuple[Check, ...] = (
    *RECORD_CHECKS,
    slots_conserve_capacity,
    slots_meet,
    pairs_equal_lending,
    days_equal_slots,
    hours_equal_requests,
    tenant_days_equal_days,
    posted_is_target,
    statements_add_up,
    showback_is_nobodys_debt,
    statements_are_what_was_sealed,
    annexes_are_what_was_sealed,
    books_follow_from_facts,
)
