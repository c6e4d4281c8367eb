"""Quarantine: what could not be booked and why, trying it again, and settling what shall never be booked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django.http import QueryDict
from django.utils.functional import cached_property
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ingest.selectors.pages import open_quarantine
from ingest.selectors.quarantine import quarantine
from ingest.services.retrying import QuarantineProblem, dismiss_quarantine, send_again
from ingest.tables import quarantine_lines_table, quarantine_table
from ingest.tasks import request_booking
from ingest.views.tending import TendingPage
from ledger.services.audit import Actor
from ledger.views.acting import Refused, text_of
from ledger.views.tables import Table
from ledger.wording import QUARANTINE_PROBLEMS

MOST_IDS = 10_000


class QuarantinePage(TendingPage):
    """Lines that wait, by reason and one by one. To try again: `reason`: all of that reason; `all`: every line; `id`:
    those. To dismiss: `all_of` that reason, or `id`."""

    template = "ingest/quarantine.html"

    def tables(self) -> list[Table]:
        can_act = self.access.may_tend_sources
        return [
            quarantine_table(lambda: self.waiting, can_act=can_act),
            quarantine_lines_table(lambda: quarantine(state="all"), can_act=can_act),
        ]

    @cached_property
    def waiting(self) -> Sequence[Mapping[str, Any]]:
        return open_quarantine()

    def context(self) -> dict[str, Any]:
        reasons = sorted({row["reason"] for row in self.waiting})
        return {"can_act": self.access.may_tend_sources, "reasons": reasons}

    def do(self, form: QueryDict, by: Actor, **kwargs: Any) -> str:
        try:
            if form.get("deed") == "dismiss":
                return self._dismiss(form, by)
            return self._retry(form, by)
        except QuarantineProblem as problem:
            raise Refused(str(QUARANTINE_PROBLEMS.get(problem.code, problem))) from None

    def _dismiss(self, form: QueryDict, by: Actor) -> str:
        why, reason = text_of(form, "why"), text_of(form, "all_of")
        lines = (
            dismiss_quarantine(by, why, reasons=[reason])
            if reason
            else dismiss_quarantine(by, why, _ids(form))
        )
        told = ngettext("%(lines)s line is dismissed.", "%(lines)s lines are dismissed.", lines)
        return told % {"lines": lines}

    def _retry(self, form: QueryDict, by: Actor) -> str:
        reason = text_of(form, "reason")
        if reason:
            sent = send_again(by, reasons=[reason])
        elif form.get("deed") == "retry_all":
            sent = send_again(by)
        else:
            sent = send_again(by, ids=_ids(form))
        for one in sent:
            request_booking(one.batch.pk)
        lines = sum(one.lines for one in sent)
        told = ngettext(
            "%(lines)s line is tried again: batch %(batches)s.",
            "%(lines)s lines are tried again: batch %(batches)s.",
            lines,
        )
        return told % {"lines": lines, "batches": ", ".join(str(one.batch.pk) for one in sent)}


def _ids(form: QueryDict) -> list[int]:
    """Raises `Refused`."""
    texts = form.getlist("id")[:MOST_IDS]
    if not texts or not all(text.isascii() and text.isdigit() and len(text) < 19 for text in texts):
        raise Refused(_("Choose the lines first."))
    return [int(text) for text in texts]
