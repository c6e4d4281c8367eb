"""Reads of a month on its way to being closed: the checklist, approvals, and how far the close is."""

from __future__ import annotations

from dataclasses import dataclass

from billing.core.checklist import Item, blocked
from billing.models import Approval, ApprovalKind, CloseRun, Decision, RunState, Statement, StatementApproval
from billing.selectors.checklist import month_checklist
from billing.services.approvals import digest_of, second_person_needed
from ledger.models import Period, PeriodState


@dataclass(frozen=True)
class Closing:
    """A month's close as a person sees it. `digest` names all drafts as they are now.

    run: the latest attempt. overrides: what was asked of a second person for this month, newest first.
    """

    period: Period
    items: list[Item]
    run: CloseRun | None
    overrides: list[Approval]
    drafts: int
    approved: int
    digest: str
    needs_second_person: bool

    @property
    def is_running(self) -> bool:
        return self.run is not None and self.run.state == RunState.RUNNING

    @property
    def blocked(self) -> list[Item]:
        return blocked(self.items)

    @property
    def can_override(self) -> bool:
        """Whether a reason can get past everything that blocks."""
        return bool(self.blocked) and all(item.can_be_waived for item in self.blocked)

    @property
    def waiting(self) -> list[Approval]:
        return [approval for approval in self.overrides if approval.decision == Decision.PENDING]


def closing_of(period: Period) -> Closing:
    """A closed month has no checklist any more: what let it through stands in its run. About twenty queries."""
    is_closed = period.state == PeriodState.CLOSED
    run = last_run(period)
    drafts = draft_hashes(period)
    approved = dict(
        StatementApproval.objects.filter(statement__period=period)
        .order_by("approved_at", "pk")
        .values_list("statement__number", "sha256")
    )
    return Closing(
        period=period,
        items=[] if is_closed else month_checklist(period),
        run=run,
        overrides=list(
            Approval.objects.filter(kind=ApprovalKind.OVERRIDE, payload__month=period.month).order_by(
                "-requested_at"
            )
        ),
        drafts=len(drafts),
        approved=sum(1 for number, sha256 in drafts if approved.get(number) == sha256),
        digest=digest_of(drafts),
        needs_second_person=second_person_needed(),
    )


def last_run(period: Period) -> CloseRun | None:
    return CloseRun.objects.filter(period=period).order_by("-pk").first()


def draft_hashes(period: Period) -> list[tuple[str, str]]:
    """(number, hash) of the month's statements, by number."""
    return list(Statement.objects.filter(period=period).order_by("number").values_list("number", "sha256"))
