"""The closing checklist in the reader's language, where each item is mended, and what a refusal means."""

from __future__ import annotations

from dataclasses import dataclass

from django.urls import reverse
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from billing.core.checklist import Item
from ledger.wording_sentences import in_words

Text = str | Promise

# Item of the checklist -> what to do when it is not clean.
REMEDIES: dict[str, Text] = {
    "order": _("Months close strictly in order: close the earlier one first."),
    "computed": _("The ledger computes by itself every minute; opening the review computes at once."),
    "batches": _("Wait for the worker, or see whether it runs."),
    "quarantine": _(
        "Correct the cause (often a missing pool or service), then retry; dismiss what shall never be booked."
    ),
    "quarantine_elsewhere": _(
        "What came later without a readable time, or is of an earlier month. Booked after the close it becomes "
        "an adjustment; dismiss what shall never be booked."
    ),
    "attribution": _("Map the identity to a tenant; its GPU time moves from suspense to that bill."),
    "exceptions": _(
        "Each exception on this page, or on that of the closed month that it names, says what to do about it."
    ),
    "prices": _("Add the price to the rate card; the amounts follow."),
    "conservation": _(
        "This is a defect of the ledger, not of the data: do not close over it; tell who runs it."
    ),
    "complete": _("Wait for the source, or sign it off if nothing more will come."),
    "silence": _(
        "A silent source never ends or shortens anything: ask whether it still runs, or sign it off."
    ),
    "approvals": _("A draft changed after it was approved: look at it and approve it again."),
    "drafts": _("Look at the drafts and approve them; a close issues them either way."),
    "second_person": _(
        "Decide it before the close: what is agreed to later comes onto the statements of the next open month."
    ),
    "reconciliation": _("Give the cause of each difference, or correct the facts it comes from."),
}

STEPS: dict[str, Text] = {
    "compute": _("Compute the month and what late facts change"),
    "check": _("Go through the checklist"),
    "issue": _("Issue the statements and chain their hashes"),
    "announce": _("Tell the contacts and open the next month"),
}

# Code of a refusal -> what happened and what to do.
REFUSALS: dict[str, Text] = {
    "closed": _(
        "Nothing was changed: the month is closed. What comes late is an adjustment in the next open month."
    ),
    "not_over": _("Nothing was changed: the month is not over yet. Open the review after its last instant."),
    "out_of_order": _(
        "Nothing was changed: an earlier month comes first. Open its review, and close it, before this one."
    ),
    "not_in_review": _(
        "Nothing was closed: the month has to be in review first. Open the review, look at the drafts, then close."
    ),
    "cannot_be_waived": _(
        "Nothing was asked for: something blocks that no reason can override. Mend it first; it is marked in "
        "the checklist."
    ),
    "no_reason": _("Nothing was asked for: an override needs a reason. It stays on record."),
    "changed": _(
        "Nothing was approved: a draft has changed since you looked. Look at the drafts again, then approve them."
    ),
    "issued": _("Nothing was approved: the statements are issued already."),
    "decided": _("Nothing was changed: somebody has decided this already."),
    "same_person": _("Nothing was approved: a second person has to agree. Whoever asked can only withdraw."),
    "no_months": _("Nothing was changed: there is no month with facts yet."),
    "no_change": _("It is so already; nothing would change."),
    "unknown_version": _("There is no such version any more."),
    "ends_before_it_begins": _("It cannot end before it begins."),
    "ended": _("It has ended by then already."),
    "not_month_start": _("A contract changes only at the start of a month, in the billing zone."),
    "needed": _("Reserved throughput of a contract needs it: end the contract first."),
}


@dataclass(frozen=True)
class ShownItem:
    """An item of the checklist, with the place where it is mended."""

    item: Item
    title: str
    remedy: Text
    url: str
    evidence: list[str]


def shown_items(items: list[Item], month: str) -> list[ShownItem]:
    places = _places(month)
    return [
        ShownItem(
            item,
            in_words(item.title),
            REMEDIES[item.code],
            places[item.code],
            [in_words(one) for one in item.evidence],
        )
        for item in items
    ]


def _places(month: str) -> dict[str, str]:
    ingest, here = reverse("ingest:overview"), reverse("billing:month", args=[month])
    return {
        "order": reverse("billing:months"),
        "computed": ingest,
        "batches": f"{ingest}#batches",
        "quarantine": reverse("ingest:quarantine"),
        "quarantine_elsewhere": reverse("ingest:quarantine"),
        "attribution": reverse("ingest:identities"),
        "exceptions": f"{here}#exceptions",
        "prices": f"{here}#exceptions",
        "conservation": f"{here}#proofs",
        "complete": f"{ingest}#sources",
        "silence": f"{ingest}#silence",
        "approvals": f"{here}#tenants",
        "drafts": f"{here}#tenants",
        "second_person": f"{reverse('billing:settings')}#waiting",
        "reconciliation": f"{here}#reconciliation",
    }


def refusal(error: Exception) -> str:
    """What happened and what to do, by the error's code; else the sentence that it has."""
    code, told = getattr(error, "code", ""), getattr(error, "told", None)
    return str(REFUSALS[code]) if code in REFUSALS else in_words(told or error)
