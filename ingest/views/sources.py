"""One source: how far it is, what is missing, who holds GPUs by its last word, and what people say about it."""

from __future__ import annotations

from typing import Any

from django.http import Http404, HttpRequest, HttpResponseBase, QueryDict
from django.utils import timezone
from django.utils.functional import cached_property
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ingest.selectors.sources import SourceRow, gaps_of, known_sources, source_rows, totals_of
from ingest.services.silence import end_holders
from ingest.tables import gaps_table, holders_table, totals_table
from ingest.views.tending import TendingPage, instant_of, needed_instant
from ledger.services.audit import Actor
from ledger.services.sources import SourceProblem, sign_off_source, waive_silence
from ledger.views.acting import Refused, text_of
from ledger.views.tables import Table
from ledger.wording import SOURCE_PROBLEMS


class SourcePage(TendingPage):
    """Its forms: sign off, answer for its silence, end what it left open."""

    template = "ingest/source.html"

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        self.source_id = kwargs["source_id"]
        return super().dispatch(request, *args, **kwargs)

    @cached_property
    def row(self) -> SourceRow:
        found = known_sources().filter(pk=self.source_id).first()
        if found is None:
            raise Http404
        return source_rows([found])[0]

    def tables(self, **_: Any) -> list[Table]:
        silent = self.row.silent
        return [
            gaps_table(lambda: gaps_of(self.row.source)),
            totals_table(lambda: totals_of(self.row.source)),
            holders_table(
                lambda: silent.holders if silent is not None else (), can_act=self.access.may_tend_sources
            ),
        ]

    def context(self, **_: Any) -> dict[str, Any]:
        return {"row": self.row}

    def do(self, form: QueryDict, by: Actor, **kwargs: Any) -> str:
        assert self.row  # else 404
        reason = text_of(form, "reason")
        try:
            if form.get("deed") == "sign_off":
                return self._sign_off(form, reason, by)
            if form.get("deed") == "waive":
                waive_silence(self.source_id, instant_of(form, "until") or timezone.now(), reason, by)
                return _("Its silence is answered for. No level has changed.")
            if form.get("deed") == "end":
                return self._end(form, reason, by)
        except SourceProblem as problem:
            raise Refused(str(SOURCE_PROBLEMS.get(problem.code, problem))) from None
        raise Refused(_("Nothing was chosen."))

    def _sign_off(self, form: QueryDict, reason: str, by: Actor) -> str:
        is_back = form.get("move_back") == "1"
        until = instant_of(form, "complete_until") if is_back else needed_instant(form, "complete_until")
        sign_off_source(self.source_id, until, reason, by, move_back=is_back)
        return _("Signed off.") if until is not None else _("The sign-off is taken back.")

    def _end(self, form: QueryDict, reason: str, by: Actor) -> str:
        keys = form.getlist("holder")
        if not keys:
            raise Refused(_("Choose the workloads that hold nothing any more."))
        receipt = end_holders(self.source_id, keys, needed_instant(form, "ends_at"), reason, by)
        told = ngettext(
            "%(count)s workload was ended, as batch %(batch)s. The books follow.",
            "%(count)s workloads were ended, as batch %(batch)s. The books follow.",
            receipt.booked,
        )
        return told % {"count": receipt.booked, "batch": receipt.batch}
