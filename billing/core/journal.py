"""A month's transfers as a journal for other books: CSV rows, or a beancount file (domain.md section 10).

Signs are the bookkeeper's: a debit adds to an account, a credit takes from it, so what a tenant owes is positive. A
month holds every transfer posted in it, whatever month it concerns.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date

from billing.core.rating_lines import MONEY, is_tenant
from ledger.core.units import micro_text

COLUMNS = (
    "transfer",
    "date",
    "posted_in",
    "concerns",
    "debit",
    "credit",
    "quantity",
    "unit",
    "reason",
    "key",
    "recorded_at",
)
# GPU time counts in whole GPU-microseconds, as a commodity of its own.
GPU_COMMODITY = "GPU-US"
# What is only shown to a tenant is nobody's debt: it stands on memo accounts, apart from what is billed.
MEMO = "memo:"
_MEMO_ROOTS = {"tenant": "Equity:Memo:T-", "pool": "Equity:Memo:P-"}
_ROOTS = {"tenant": "Assets:Receivable:T-", "pool": "Income:Pool:P-"}
_OTHERS = {
    "platform": "Income:Platform",
    "conversion": "Income:Conversion",
    "suspense": "Assets:Suspense",
}
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9]")


@dataclass(frozen=True, slots=True)
class Entry:
    """One transfer. quantity > 0, in gpu_us or micro units; accounts by the names of the core."""

    id: str
    posted_in: str
    concerns: str
    debit: str
    credit: str
    quantity: int
    unit: str
    reason: str
    key: str
    recorded_at: str


def csv_row(entry: Entry, booked_on: date, currency: str) -> tuple[str, ...]:
    amount, unit = amount_of(entry, currency)
    return (
        entry.id,
        booked_on.isoformat(),
        entry.posted_in,
        entry.concerns,
        entry.debit,
        entry.credit,
        amount,
        unit,
        entry.reason,
        entry.key,
        entry.recorded_at,
    )


def amount_of(entry: Entry, currency: str) -> tuple[str, str]:
    """Decimal text and commodity: money to the micro unit, GPU time in whole microseconds."""
    if entry.unit == MONEY:
        return micro_text(entry.quantity), currency
    return str(entry.quantity), GPU_COMMODITY


def account_name(name: str) -> str:
    """A beancount account: its parts hold letters, digits and dashes only, so anything else is spelled by code.

    Distinct names stay distinct: a dash, too, is doubled.
    """
    roots = _MEMO_ROOTS if name.startswith(MEMO) else _ROOTS
    own = name.removeprefix(MEMO)
    kind, _, slug = own.partition(":")
    if not slug:
        return f"Equity:Memo:{own.title()}" if name.startswith(MEMO) else _OTHERS[own]
    spelled = _NOT_IN_A_NAME.sub(lambda m: "--" if m[0] == "-" else f"-{ord(m[0]):X}-", slug)
    return roots[kind] + spelled


def on_memo(entry: Entry, shown_only: Collection[str]) -> Entry:
    """The entry with its money on memo accounts where a side is an account of `shown_only`.

    A transfer between such a tenant and one that is billed touches what is owed on the billed side alone. GPU time
    is no debt and stays where it is.
    """
    sides = (entry.debit, entry.credit)
    if entry.unit != MONEY or not any(side in shown_only for side in sides):
        return entry
    debit, credit = (
        side if is_tenant(side) and side not in shown_only else f"{MEMO}{side}" for side in sides
    )
    return replace(entry, debit=debit, credit=credit)


def beancount_lines(
    entries: Iterable[Entry], accounts: Sequence[str], opened_on: date, booked_on: date, currency: str
) -> Iterator[str]:
    """The file, line by line: options, every account, every transfer as a transaction of two postings."""
    yield f'option "title" "GPU ledger {opened_on:%Y-%m}"'
    yield f'option "operating_currency" "{currency}"'
    yield ""
    for account in accounts:
        yield f"{opened_on.isoformat()} open {account_name(account)} {currency},{GPU_COMMODITY}"
    for entry in entries:
        yield ""
        yield from _transaction(entry, booked_on, currency)


def _transaction(entry: Entry, booked_on: date, currency: str) -> Iterator[str]:
    amount, commodity = amount_of(entry, currency)
    yield f'{booked_on.isoformat()} * "{_quoted(entry.reason)}"'
    yield f'  transfer: "{entry.id}"'
    yield f'  concerns: "{entry.concerns}"'
    yield f'  key: "{_quoted(entry.key)}"'
    yield f"  {account_name(entry.debit)}  {amount} {commodity}"
    yield f"  {account_name(entry.credit)}  -{amount} {commodity}"


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
