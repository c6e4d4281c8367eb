"""What must always hold of the record itself, as a list of functions that return findings (domain.md section 11).

Each is a read that names every deviation it finds, and returns none when all is well. `billing.checks` adds what
needs rates and statements; the command, the page and the tests run the same lists.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from django.db import connection
from django.db.models import F, Sum

from ledger.core.record_sentences import Sentence, sentence
from ledger.core.transfers import posting_id
from ledger.models import Account, Booking, Transfer, Unit

# Tables whose rows nobody may change; triggers refuse it (migrations 0002_guards, 0003_audit, 0005_silence_waivers,
# 0017_never_emptied).
APPEND_ONLY = (
    "ledger_event",
    "ledger_level",
    "ledger_preemptionreport",
    "ledger_resumereport",
    "ledger_rejection",
    "ledger_quotalevel",
    "ledger_correction",
    "ledger_request",
    "ledger_transfer",
    "ledger_auditentry",
    "ledger_silencewaiver",
    "ledger_sourcetotal",
    "ledger_prunedday",
    "ledger_prunedrows",
)


@dataclass(frozen=True)
class Finding:
    """One deviation: the code of the invariant, where (a name, or nothing), and what is wrong with it."""

    invariant: str
    where: str
    problem: Sentence

    def told(self) -> Sentence:
        """As one sentence."""
        parts = {"invariant": sentence(self.invariant), "problem": self.problem}
        return (
            sentence("finding_somewhere", where=self.where, **parts)
            if self.where
            else sentence("finding", **parts)
        )

    def __str__(self) -> str:
        return str(self.told())


def transfers_net_to_zero(month: str | None) -> Iterator[Finding]:
    """11.2: over all accounts, what came in equals what went out, per unit."""
    for unit in Unit:
        out = Account.objects.filter(transfers_out__unit=unit).aggregate(sum=Sum("transfers_out__quantity"))
        into = Account.objects.filter(transfers_in__unit=unit).aggregate(sum=Sum("transfers_in__quantity"))
        net = (into["sum"] or 0) - (out["sum"] or 0)
        if net:
            yield Finding("transfers_net_to_zero", str(unit.label), sentence("accounts_off_zero", net=net))


def transfers_are_what_was_posted(month: str | None) -> Iterator[Finding]:
    """10: a transfer's id follows from its key and from all that was posted under it before.

    A changed quantity, a missing or an added transfer breaks the id of that transfer or of the next one.
    """
    rows = Transfer.objects.all() if month is None else Transfer.objects.filter(concerns=month)
    by_flow: defaultdict[tuple[str, int], list[Transfer]] = defaultdict(list)
    for transfer in rows.order_by("recorded_at").iterator(chunk_size=5000):
        by_flow[transfer.target_key, transfer.unit].append(transfer)
    for (key, unit), transfers in by_flow.items():
        for unexplained in _unexplained(key, unit, transfers):
            problem = sentence("transfer_does_not_follow", id=str(unexplained.id))
            yield Finding("transfers_are_what_was_posted", key, problem)


def _unexplained(key: str, unit: int, transfers: list[Transfer]) -> Iterator[Transfer]:
    """Transfers that do not continue their key's history. A flow may have been seen from either side."""
    label, debit = str(Unit(unit).label), transfers[0].debit_id
    stands, left = 0, list(transfers)
    for number in range(len(transfers)):
        for transfer in left:
            after = stands + (transfer.quantity if transfer.debit_id == debit else -transfer.quantity)
            explained = {
                posting_id(key, label, stands, after, number),
                posting_id(key, label, -stands, -after, number),
            }
            if transfer.id in explained:
                break
        else:
            yield from left
            return
        stands = after
        left.remove(transfer)


def batches_lose_nothing(month: str | None) -> Iterator[Finding]:
    """11.9: per batch, received = booked + duplicate + conflict + quarantined, and what was booked is there."""
    counted = F("booked") + F("duplicate") + F("conflict") + F("quarantined")
    for booking in Booking.objects.exclude(received=counted):
        problem = sentence("received_not_accounted_for", batch=booking.batch)
        yield Finding("no_event_is_lost", "", problem)
    with connection.cursor() as cursor:
        cursor.execute(_BOOKED_ROWS)
        for batch, booked, present in cursor.fetchall():
            problem = sentence("booked_not_in_record", batch=batch, booked=booked, present=present)
            yield Finding("no_event_is_lost", "", problem)


# Batches whose events are not all in the record. What was pruned with its partition was counted before; the replacement
# that a correction brings along stands on its correction's line and is not counted beside it.
_BOOKED_ROWS = """
WITH present AS (
    SELECT booking_id, sum(rows) AS rows FROM (
        SELECT booking_id, count(*) AS rows FROM ledger_event GROUP BY 1
        UNION ALL SELECT booking_id, count(*) FROM ledger_request GROUP BY 1
        UNION ALL SELECT booking_id, rows FROM ledger_prunedrows
        UNION ALL SELECT event.booking_id, -1
        FROM ledger_correction correction
        JOIN ledger_event event ON event.id = correction.event_id
        JOIN ledger_source source ON source.uri = correction.replacement_source
        WHERE EXISTS (
            SELECT 1 FROM ledger_event e WHERE e.source_id = source.id AND e.booking_id = event.booking_id
              AND e.event_id = correction.replacement_event_id AND e.line = event.line
        ) OR EXISTS (
            SELECT 1 FROM ledger_request r WHERE r.source_id = source.id AND r.booking_id = event.booking_id
              AND r.event_id = correction.replacement_event_id AND r.line = event.line)
    ) counted GROUP BY 1
)
SELECT booking.batch, booking.booked, coalesce(present.rows, 0)
FROM ledger_booking booking LEFT JOIN present ON present.booking_id = booking.id
WHERE booking.sequence IS NOT NULL AND booking.booked <> coalesce(present.rows, 0)
"""


def the_record_is_guarded(month: str | None) -> Iterator[Finding]:
    """Facts and transfers are append-only by triggers; one that was dropped or disabled is found, of partitions too."""
    guards: dict[str, set[str]] = {table: set() for table in APPEND_ONLY}
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT tgrelid::regclass::text, tgname, tgenabled <> 'D' FROM pg_trigger "
            "WHERE tgname IN ('append_only', 'never_emptied') ORDER BY 1"
        )
        for table, name, is_enabled in cursor.fetchall():
            guards.setdefault(table, set()).update([name] if is_enabled else [])
    for table, enabled in guards.items():
        if "never_emptied" not in enabled or (table in APPEND_ONLY and "append_only" not in enabled):
            yield Finding("facts_are_append_only", table, sentence("trigger_missing"))


Check = Callable[[str | None], Iterable[Finding]]

CHECKS: tuple[Check, ...] = (
    transfers_net_to_zero,
    transfers_are_what_was_posted,
    batches_lose_nothing,
    the_record_is_guarded,
)


def run_checks(checks: Iterable[Check], month: str | None = None) -> list[Finding]:
    """All findings, in the order of the checks. month: only what concerns it, where a check can tell."""
    return [finding for check in checks for finding in check(month)]
