"""The journal of a month: what bean-check accepts, with the balances of the ledger (domain.md section 10)."""

from __future__ import annotations

import csv
import io
from collections import Counter
from pathlib import Path

import pytest
from beancount import loader
from beancount.core.data import Open, Transaction
from django.core.management import call_command

from billing.core.journal import GPU_COMMODITY, account_name
from billing.selectors.accounts import accounts
from billing.services.adjustments import adjust_closed_months
from ledger.core.instants import instant_text
from ledger.core.units import MICRO_PER_UNIT
from ledger.management.base import BadInput
from ledger.models import Pool, Tenant, Transfer, Unit
from tests.billing.closed_months import NOVEMBER_5, closable_ledger, close, findings, hold
from tests.billing.test_periods_api import client, get

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]


@pytest.fixture
def pool() -> Pool:
    pool = closable_ledger()
    close()
    return pool


def ledger_balances(month: str) -> dict[tuple[str, str], int]:
    """(account, commodity) -> debits less credits of the transfers posted in the month."""
    names = accounts().names
    found: Counter[tuple[str, str]] = Counter()
    for transfer in Transfer.objects.filter(posted_in=month):
        commodity = "USD" if transfer.unit == Unit.AMOUNT_MICRO else GPU_COMMODITY
        found[account_name(names[transfer.debit_id]), commodity] += transfer.quantity
        found[account_name(names[transfer.credit_id]), commodity] -= transfer.quantity
    return dict(found)


def beancount_balances(path: Path) -> dict[tuple[str, str], int]:
    entries, errors, _ = loader.load_file(str(path))
    assert errors == []
    found: Counter[tuple[str, str]] = Counter()
    for entry in entries:
        if isinstance(entry, Transaction):
            for posting in entry.postings:
                units = posting.units
                scale = MICRO_PER_UNIT if units.currency == "USD" else 1
                assert units.number * scale == int(units.number * scale)
                found[posting.account, units.currency] += int(units.number * scale)
    assert any(isinstance(entry, Open) for entry in entries)
    return dict(found)


def test_beancount_reads_it_and_says_what_the_ledger_says(pool: Pool, tmp_path: Path) -> None:
    path = tmp_path / "october.beancount"
    call_command("export_journal", "2026-10", "--format", "beancount", "-o", str(path))
    balances = beancount_balances(path)
    assert balances == ledger_balances("2026-10")
    assert balances["Assets:Receivable:T-beta", "USD"] == 120 * MICRO_PER_UNIT
    assert sum(value for (_, unit), value in balances.items() if unit == "USD") == 0


def test_adjustments_are_in_the_month_they_are_posted_in(pool: Pool, tmp_path: Path) -> None:
    hold(pool, "wl-9", "beta", 1, 3, 1_000)
    adjust_closed_months(NOVEMBER_5)
    path = tmp_path / "november.beancount"
    call_command("export_journal", "2026-11", "--format", "beancount", "-o", str(path))
    assert beancount_balances(path) == ledger_balances("2026-11")
    assert 'concerns: "2026-10"' in path.read_text()


def test_csv_has_every_transfer_once(pool: Pool) -> None:
    out = io.StringIO()
    call_command("export_journal", "2026-10", stdout=out)
    rows = list(csv.DictReader(io.StringIO(out.getvalue(), newline="")))
    assert {row["transfer"] for row in rows} == {
        str(pk) for pk in Transfer.objects.filter(posted_in="2026-10").values_list("pk", flat=True)
    }
    money = [row for row in rows if row["unit"] == "USD" and row["debit"] == "tenant:beta"]
    assert [(row["credit"], row["quantity"], row["date"]) for row in money] == [
        ("pool:bj-h100", "120", "2026-10-31")
    ]
    known_at = {instant_text(one) for one in Transfer.objects.values_list("recorded_at", flat=True)}
    assert {row["recorded_at"] for row in rows} <= known_at
    assert all(one.endswith("Z") for one in known_at)


def test_an_unknown_month_is_one_clear_line() -> None:
    with pytest.raises(BadInput, match="nothing was ever computed"):
        call_command("export_journal", "1999-01")


@pytest.mark.parametrize(
    ("one", "other"), [("a-b", "a_b"), ("a-2D-b", "a-b"), ("a--b", "a-b"), ("0a", "a"), ("a.b", "a-2E-b")]
)
def test_accounts_that_differ_stay_apart(one: str, other: str) -> None:
    assert account_name(f"tenant:{one}") != account_name(f"tenant:{other}")
    assert account_name(f"tenant:{one}") != account_name(f"pool:{one}")


def test_what_is_only_shown_stands_on_memo_accounts(tmp_path: Path) -> None:
    """beta is in showback: its 120 are nobody's debt; what acme owes is what it owed before."""
    closable_ledger()
    Tenant.objects.filter(holder__slug="beta").update(showback=True)
    close()
    path = tmp_path / "october.beancount"
    call_command("export_journal", "2026-10", "--format", "beancount", "-o", str(path))
    money = {
        account: value // MICRO_PER_UNIT
        for (account, unit), value in beancount_balances(path).items()
        if unit == "USD" and value
    }
    assert money == {
        "Assets:Receivable:T-acme": 100,
        # 16 GPUs for 744 hours, less the 80 GPU-hours that acme reserved and the 40 that beta held, are unsold.
        "Income:Platform": 16 * 744 - 80 - 40,
        "Income:Pool:P-bj--h100": -100 - (16 * 744 - 80 - 40),
        "Equity:Memo:T-beta": 120,
        "Equity:Memo:P-bj--h100": -120,
    }
    assert findings() == []
    # The bill was sealed as information; another word in its rows does not make it a debt.
    Tenant.objects.filter(holder__slug="beta").update(showback=False)
    assert [finding for finding in findings() if "2026-11" not in finding] == []
    assert {
        row["tenant"] for row in get(client("finance"), "statements/")["results"] if row["informational"]
    } == {"beta"}
