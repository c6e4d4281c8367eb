"""The codes under which billing tells what it found, did or refused, with their English (ledger.core.sentences)."""

from __future__ import annotations

from ledger.core.record_sentences import INVARIANTS as RECORD_INVARIANTS
from ledger.core.record_sentences import PROBLEMS as RECORD_PROBLEMS
from ledger.core.sentences import Sentence, declare, sentence

__all__ = ["INVARIANTS", "PROBLEMS", "Sentence", "sentence"]


def _(text: str) -> str:
    """Marks a text for the catalogue of translations; pages look it up there."""
    return text


# Verifications of the books (billing.checks).
INVARIANTS = RECORD_INVARIANTS | declare(
    {
        "capacity_is_conserved": _("capacity is conserved"),
        "slots_meet": _("slots meet"),
        "pairs_equal_lending": _("pairs equal lending"),
        "days_equal_slots": _("days equal slots"),
        "posted_is_target": _("posted is target"),
        "both_sides_agree": _("both sides of a movement agree"),
        "statements_add_up": _("statements add up"),
        "showback_is_nobodys_debt": _("showback is nobody's debt"),
        "chain_holds": _("the chain of statements holds"),
        "files_are_what_was_sealed": _("files are what was sealed"),
        "statements_are_what_was_sealed": _("statements are what was sealed"),
        "books_follow_from_facts": _("books follow from facts"),
    }
)

PROBLEMS = RECORD_PROBLEMS | declare(
    {
        "capacity_does_not_add_up": _("the parts do not add up to the capacity"),
        "lending_does_not_add_up": _("lent is not borrowed"),
        "holders_do_not_add_up": _("holders' rows do not add up to the pool's"),
        "rows_without_slot": _("rows of a slot that is not there"),
        "slots_do_not_meet": _("one ends at %(end_at)s, the next starts at %(start_at)s"),
        "pairs_do_not_add_up": _(
            "lent %(lent)s, in pairs %(pairs_lent)s; borrowed %(borrowed)s, in pairs %(pairs_borrowed)s (GPU-µs)"
        ),
        "days_do_not_add_up": _("the sums by day are not those of the slots"),
        "not_posted": _("not posted: %(quantity)s %(counted_in)s from %(debit)s to %(credit)s"),
        "transfers_do_not_balance": _("transfers between accounts sum to %(moved)s, not to 0"),
        "token_lines_do_not_balance": _("token lines sum to %(moved)s with the conversion account, not to 0"),
        "statement_does_not_add_up": _(
            "total %(total)s, lines %(lines)s, transfers %(posted)s (micro units); printed %(minor)s, printed lines "
            "%(lines_minor)s (minor units)"
        ),
        "shown_amount_stands": _("%(much)s stand on %(account)s"),
        "chain_of_tenant_broken": _("%(month)s %(tenant)s does not follow the tenant's previous statement"),
        "chain_of_ledger_broken": _("%(month)s %(tenant)s does not follow the ledger's previous statement"),
        "content_of_month_changed": _("%(month)s %(tenant)s: the content does not give its hash"),
        "content_changed": _("the content does not give its hash"),
        "rows_changed": _("rows differ from the sealed content"),
        "file_changed": _("file %(file)s does not give its hash"),
        "table_differs": _("%(table)s differ when computed again"),
        "transfers_missing": _("transfers missing: %(count)s"),
        "statements_differ": _("statements that differ when drafted again: %(count)s"),
    }
)

# Tables of the books, by the name that their fingerprints have (billing.sql.checks).
TABLES = declare(
    {
        "table_pool_slots": _("pool slots"),
        "table_allocations": _("allocations"),
        "table_allocation_days": _("allocations by day"),
        "table_lending": _("lending"),
        "table_tokens": _("tokens"),
        "table_preemptions": _("preemptions"),
        "table_preemption_shares": _("preemptions' shares"),
    }
)
