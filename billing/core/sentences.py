"""The codes under which billing tells what it found, did or refused, with their English (ledger.core.sentences)."""

from __future__ import annotations

from ledger.core.record_sentences import INVARIANTS as RECORD_INVARIANTS
from ledger.core.record_sentences import PROBLEMS as RECORD_PROBLEMS
from ledger.core.sentences import Sentence, declare, sentence

__all__ = ["CHECKLIST", "EVIDENCE", "INVARIANTS", "PROBLEMS", "Sentence", "sentence"]


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

# Items of the closing checklist: what holds when one is clean (billing.core.checklist).
CHECKLIST = declare(
    {
        "checklist_order": _("Every earlier month is closed"),
        "checklist_computed": _("Computed up to the end of the month"),
        "checklist_batches": _("No batch waits to be booked"),
        "checklist_quarantine": _("No event of the month is in quarantine"),
        "checklist_attribution": _("All occupancy belongs to somebody"),
        "checklist_reconciliation": _("Every difference from others' totals is explained"),
        "checklist_exceptions": _("No other exception that blocks"),
        "checklist_prices": _("Every price is present"),
        "checklist_conservation": _("Conservation is proved"),
        "checklist_complete": _("Every source is complete past the end of the month"),
        "checklist_silence": _("No source is silent"),
        "checklist_approvals": _("Approved drafts are what was approved"),
        "checklist_drafts": _("Every draft is approved"),
        "checklist_second_person": _("Nothing waits for a second person"),
    }
)

# What blocks an item. A waiver names what was seen by a hash over the English, so these words stay as they are.
EVIDENCE = declare(
    {
        "month_not_closed": "%(month)s",
        "never_computed": _("never computed"),
        "computed_up_to": _("computed up to %(at)s"),
        "pool_not_computed": _("facts of %(pool)s are not computed yet"),
        "batch_waits": _("batch %(number)s"),
        "quarantined": "%(reason)s: %(count)s",
        "unattributed_hours": _("%(pool)s: %(hours)s GPU-hours"),
        "differs_by_hours": _("%(what)s: %(measure)s differs by %(hours)s GPU-hours"),
        "differs": _("%(what)s: %(measure)s differs by %(amount)s %(unit)s"),
        "exceptions_found": "%(exception)s: %(count)s",
        "exceptions_of_pool": "%(exception)s %(pool)s: %(count)s",
        "price_missing_for": "%(subject)s",
        "price_missing_in_month": "%(month)s: %(subject)s",
        "source_to_see_to": "%(source)s",
        "draft_changed": "%(statement)s",
        "drafts_not_approved": _("%(count)s of %(all)s are not approved"),
        "credit_asked_for": _("a credit of %(amount)s for %(tenant)s, asked for by %(who)s"),
        "override_asked_for": _("an override of this checklist, asked for by %(who)s"),
        "terms_asked_for": _("a change (%(table)s), asked for by %(who)s"),
    },
    on_pages={"exceptions_of_pool": _("%(exception)s, %(pool)s: %(count)s")},
)

# What a step of a close did, and how the close ended (billing.services.closing).
CLOSES = declare(
    {
        "close_computed": _(
            "adjustments: %(adjustments)s, transfers: %(transfers)s, statements changed: %(statements)s"
        ),
        "nothing_blocks": _("nothing blocks"),
        "statements_issued": _("statements issued: %(statements)s, up to booking %(cut)s"),
        "mails_sent": _("mails: %(count)s"),
        "mail_not_sent": _("mail could not be sent: %(why)s"),
        "month_closed": _("%(month)s is closed"),
        "item_blocks": _("%(item)s: %(evidence)s"),
        "override_waits": _("the override waits for a second person's approval"),
    }
)

# Why a mail did not leave (billing.services.mailing).
MAIL = declare(
    {
        "mail_server_not_reached": _("the mail server was not reached (%(error)s)"),
        "mail_sign_in_refused": _("the mail server refused the ledger's user or password"),
        "mail_recipients_refused": _("the mail server refused the recipients"),
        "mail_refused": _("the mail server answered %(status)s: %(answer)s"),
        "mail_failed": _("the mail server broke off (%(error)s)"),
    }
)
