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
        "hours_equal_requests": _("hours equal requests"),
        "tenant_days_equal_days": _("tenants' days equal those of pools"),
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
        "tenant_days_differ": _("the GPU time kept for forecasts is not that of the sums by day"),
        "tenant_amounts_differ": _(
            "the amounts kept for forecasts are not those of the sums by day at the rate card"
        ),
        "hours_differ": _("the hours of requests are not the sum of the requests, first at %(first_at)s"),
        "token_days_differ": _("the tokens by day are not those of the hours of requests"),
        "counted_tokens_differ": _("the tokens that sources counted are not those of the hours of requests"),
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
        "table_tenant_months": _("tenants' days"),
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
        "checklist_quarantine_elsewhere": _("Nothing of another month in quarantine may concern this one"),
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
        "headings_not_drafted": _(
            "what statements say beside their figures has changed and is not drafted yet"
        ),
        "batch_waits": _("batch %(number)s"),
        "quarantined": "%(reason)s: %(count)s",
        "unattributed_hours": _("%(pool)s: %(hours)s GPU-hours"),
        "unattributed_in_month": _("%(month)s, closed: %(pool)s: %(hours)s GPU-hours"),
        "differs_by_hours": _("%(what)s: %(measure)s differs by %(hours)s GPU-hours"),
        "differs": _("%(what)s: %(measure)s differs by %(amount)s %(unit)s"),
        "exceptions_found": "%(exception)s: %(count)s",
        "exceptions_of_pool": "%(exception)s %(pool)s: %(count)s",
        "exceptions_of_closed_month": "%(month)s, closed: %(exception)s %(pool)s: %(count)s",
        "price_missing_for": "%(subject)s",
        "price_missing_in_month": "%(month)s: %(subject)s",
        "source_to_see_to": "%(source)s",
        "draft_changed": "%(statement)s",
        "drafts_not_approved": _("%(count)s of %(all)s are not approved"),
        "credit_asked_for": _("a credit of %(amount)s for %(tenant)s, asked for by %(who)s"),
        "override_asked_for": _("an override of this checklist, asked for by %(who)s"),
        "terms_asked_for": _("a change (%(table)s), asked for by %(who)s"),
    },
    on_pages={
        "exceptions_of_pool": _("%(exception)s, %(pool)s: %(count)s"),
        "exceptions_of_closed_month": _("%(month)s, closed: %(exception)s, %(pool)s: %(count)s"),
    },
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
        "close_given_up": _("it was begun %(attempts)s times and never ended; the worker's log says why"),
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

# Why a document of terms cannot be used (billing.core.configuration and what applies it).
REFUSALS = declare(
    {
        "unusable_at": "%(place)s: %(problem)s",
        "unusable": "%(why)s",
        "not_toml": _("not TOML: %(why)s"),
        "unknown_key": "unknown key",
        "field_missing": _("the field “%(field)s” is missing"),
        "of_another_type": _("should be %(wanted)s and is %(got)s"),
        "out_of_bounds": _("should be %(wanted)s%(bound)s"),
        "no_instant": _("is no instant such as 2026-10-01T00:00:00Z"),
        "none_of_the_choices": _("%(value)s is none of the choices"),
        "not_a_decimal": _("'%(value)s' is not a decimal number"),
        "below_0": _("'%(value)s' must be a number of at least 0"),
        "too_many_places": _("'%(value)s' has more than 6 decimal places"),
        "not_a_share": _("'%(value)s' must lie between 0 and 1"),
        "not_a_duration": _("'%(value)s' is not a duration such as 30m or 2h"),
        "not_a_month": _("'%(value)s' is not a month such as 2026-10"),
        "not_a_currency": _("'%(value)s' is not an ISO 4217 code"),
        "not_a_zone": _("'%(value)s' is not an IANA time zone"),
        "not_a_slug": _("'%(value)s' is not a usable slug (a-z, 0-9, . _ -)"),
        "tenant_too": _("'%(value)s' is a tenant too; tenants and services share one space"),
        "already_a": _("'%(value)s' is already a %(kind)s"),
        "named_twice": _("'%(value)s' is named twice"),
        "bad_rule_name": _("'%(value)s' is empty, too long or named twice"),
        "kind_of_rule_stays": _("cannot change; name a new rule and disable this one"),
        "kind_reserved": _("'%(value)s' is reserved for slugs"),
        "unknown_kind_of_identity": _("'%(value)s' is not a kind of identity; known: %(known)s"),
        "unknown_adapter": _("no adapter is called '%(value)s'; known: %(known)s"),
        "unknown_tenant": "unknown tenant '%(value)s'",
        "unknown_pool": "unknown pool '%(value)s'",
        "unknown_model": "unknown model '%(value)s'",
        "no_calibration": _("no calibration of '%(value)s' on %(gpu)s is in force at %(at)s"),
        "either_amount_or_hours": _("name either amount or gpu_hours"),
        "either_pool_or_model": _("name either pool or gpu_model"),
        "must_be_above_0": _("must be above 0"),
        "needs_offset": _("needs an offset, such as Z"),
        "beyond_calendar": _("is out of reach of the calendar"),
        "belongs_to_tokens": _("belongs to a contract of kind 'tokens'"),
        "throughput_too_early": _("throughput is reserved from the year %(year)s on at the earliest"),
        "throughput_twice": _("'%(model)s' in '%(pool)s' is named twice"),
        "throughput_empty": _("name input_tokens_per_minute or output_tokens_per_minute, above 0"),
        "reservations_not_booked": _("of %(all)s reservations that follow only %(count)s could be booked"),
        "started_add_another": _("has started and cannot be edited; add another version"),
        "started": "has started and cannot be edited; give a later valid_from, or --retroactive",
        "begins_in_the_past": "begins in the past of existing versions; give a later valid_from, or --retroactive",
        "zone_stays": _(
            "is %(now)s and cannot change once a month has been computed; [ledger] states all settings, and here it "
            "means %(wanted)s"
        ),
        "budget_of_nothing": _("give either an amount or gpu_hours, above 0"),
        "bad_thresholds": _("thresholds are at most %(most)s percentages between 1 and 1000"),
    },
    on_pages={
        "unknown_key": _("there is no such field"),
        "unknown_tenant": _("there is no tenant '%(value)s'"),
        "unknown_pool": _("there is no pool '%(value)s'"),
        "unknown_model": _("there is no model '%(value)s'"),
        "started": _("has started and cannot be edited; begin later, or say that it holds for the past too"),
        "begins_in_the_past": _(
            "begins in the past of existing versions; begin later, or say that it holds for the past too"
        ),
    },
)

# Why terms cannot be compared, or a proposal not be put in force (billing.services).
PROPOSALS = declare(
    {
        "no_such_version": _("there is no %(table)s %(id)s"),
        "splits_time": _("%(what)s changes how time is split, not who bears it"),
        "splits_time_leave_out": _(
            "%(what)s changes how time is split, not who bears it; compare without it"
        ),
        "month_not_computed": _("%(month)s has not been computed yet"),
        "books_at_work": _("the books are being computed; try again in a minute"),
        "worker_killed": _("its worker was killed %(count)s times"),
        "database_error": _("the database could not answer (%(error)s)"),
        "propose_again": _("propose it again: %(why)s"),
        "role_not_given": _("'%(value)s' is not an account that can be given this role"),
        "no_active_account": _("no active account is called '%(value)s'"),
    }
)

# What a change of masters and terms is of (billing.services.configuration and its likes).
NAMES = declare(
    {
        "the_ledger": _("ledger"),
        "the_policy": _("policy"),
        "tenant_named": _("tenant %(name)s"),
        "pool_named": _("pool %(name)s"),
        "pool_of_cluster": _("pool %(name)s (%(gpu)s in %(cluster)s)"),
        "service_named": _("service %(name)s"),
        "source_named": _("source %(name)s"),
        "identity_of": _("identity %(kind)s:%(value)s is %(name)s"),
        "rate_card_named": _("rate card %(name)s"),
        "cost_of_pool": _("cost of pool %(name)s"),
        "contract_of": _("contract of %(name)s"),
        "policy_of_service": _("policy of service %(name)s"),
        "calibration_of": _("calibration of %(name)s on %(gpu)s"),
        "calibration_of_model": _("calibration of %(name)s"),
        "alert_rule_named": _("alert rule %(name)s"),
        "budget_of_month": _("budget of %(name)s for %(month)s"),
        "budget_of_every_month": _("budget of %(name)s for every month"),
        "reservation_named": _("reservation %(name)s"),
        "reservation_of": _("reservation %(name)s of %(gpus)s GPUs in %(pool)s"),
        "version_from": _("%(what)s from %(at)s"),
    }
)

# What is changed, line by line: as `apply_config` prints it, and as people read it.
CHANGES = declare(
    {
        "added": "+ %(what)s",
        "changed": "~ %(what)s %(field)s: %(was)s -> %(now)s",
        "withdrawn": "- %(what)s",
        "version_added": "+ %(what)s from %(at)s",
        "version_changed": "~ %(what)s from %(at)s %(field)s: %(was)s -> %(now)s",
        "version_replaced": "~ %(what)s from %(at)s",
        "version_ended": "~ %(what)s from %(at)s ended at %(end_at)s",
        "role_given": "+ %(name)s: %(role)s",
    },
    on_pages={
        "added": _("new: %(what)s"),
        "changed": _("%(what)s: %(field)s %(was)s → %(now)s"),
        "withdrawn": _("withdrawn: %(what)s"),
        "version_added": _("new: %(what)s, from %(at)s"),
        "version_changed": _("%(what)s, from %(at)s: %(field)s %(was)s → %(now)s"),
        "version_replaced": _("changed: %(what)s, from %(at)s"),
        "version_ended": _("%(what)s, from %(at)s, ends at %(end_at)s"),
        "role_given": _("%(name)s gets the role %(role)s"),
    },
)

# Why a subscriber of alerts was not told (billing.services.alert_delivery).
DELIVERIES = declare(
    {
        "subscription_off": _("the subscription is switched off"),
        "not_reached": _("not reached: %(error)s"),
        "host_without_address": _("not reached: the host has no address"),
        "answered_http": "HTTP %(status)s",
        "answered_code": _("code %(number)s: %(said)s"),
        "answered_no_json": _("an answer that is not JSON"),
        "answered_no_object": _("an answer that is no object"),
        "address_with_spaces": _("the address holds spaces or control characters"),
        "address_unreadable": _("the address cannot be read"),
        "address_not_http": _("the address must begin with http:// or https://"),
        "address_with_password": _("the address must not hold a user or password"),
        "address_without_host": _("the address names no host"),
        "address_private": _("the address leads into a private network (LEDGER_WEBHOOK_PRIVATE_NETWORKS)"),
    }
)

# What a calibration that a re-fit became goes by (billing.services.recalibration); others name their load tests.
REFITS = declare({"refit_over": _("re-fit over %(window)s")})
