"""Closing a month: a job in steps that any worker can go on with (domain.md section 10).

Each step is one transaction under the lock of the books, so a kill leaves a step either done or not begun, and two
workers on one close do each step once. The books change hands in one step, `issue`: the cut, the last facts before
it, the seals of all statements and the state of the month are committed together or not at all.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import Max
from django.utils import timezone

from billing.core.checklist import blocked
from billing.core.sentences import Sentence, sentence
from billing.core.statement import GENESIS, seal
from billing.models import CloseRun, RunState, Statement, StatementAnnex, StatementState
from billing.selectors.checklist import month_checklist, unproved_invariants
from billing.selectors.undated import undated_terms
from billing.services.adjustments import adjust_closed_months
from billing.services.annexes import freeze_annexes
from billing.services.announcements import announce_close
from billing.services.findings import mark_findings_seen
from billing.services.months import compute_month
from billing.services.periods import PeriodError, ensure_period
from billing.services.snapshot import in_snapshot
from ledger.core.instants import instant_text
from ledger.core.periods import Month
from ledger.locks import Lock, acquire
from ledger.models import Booking, Period, PeriodState
from ledger.services.audit import Actor, record

Step = Callable[[CloseRun, datetime], Sentence]
_BATCH = 500


# Beginnings of a step that never ended, because its worker was killed or it broke: more would do no better. Several
# workers at one step are several beginnings.
ATTEMPTS = 5


class Blocked(Exception):
    """The close cannot go on, such as for items of the checklist; the run ends, and the step has changed nothing."""

    def __init__(self, reasons: list[Sentence]) -> None:
        self.reasons = reasons
        super().__init__("; ".join(map(str, self.reasons)))


def start_close(month: Month, by: Actor) -> CloseRun:
    """A run that closes the month: the one that is under way, else a new one. Nothing is closed yet.

    Raises:
        PeriodError: `closed` already, or `not_in_review`.
    """
    period = Period.objects.filter(month=str(month)).first()
    if period is None or period.state == PeriodState.OPEN:
        raise PeriodError("not_in_review", f"{month} has to be in review before it can be closed")
    if period.state == PeriodState.CLOSED:
        raise PeriodError("closed", f"{month} is closed")
    steps = [{"name": name, "state": "waiting"} for name in STEPS]
    try:
        with transaction.atomic():
            return CloseRun.objects.create(
                period=period, steps=steps, requested_by=by.name, request_id=by.request_id
            )
    except IntegrityError:
        return CloseRun.objects.get(period=period, state=RunState.RUNNING)


def run_close(
    run_id: int, *, now: datetime | None = None, say: Callable[[str], None] = lambda _: None
) -> CloseRun:
    """Go through the steps that are not done. Safe to kill and to run twice at once; a finished run is left alone, and
    one whose step was begun `ATTEMPTS` times without an end is given up."""
    for name in STEPS:
        say(name)
        _note_start(run_id, name)
        if not _do_step(run_id, name, now or timezone.now()):
            break
    return CloseRun.objects.select_related("period").get(pk=run_id)


def unfinished_closes() -> list[int]:
    """Runs that a worker left, or is still working on."""
    return list(CloseRun.objects.filter(state=RunState.RUNNING).order_by("pk").values_list("pk", flat=True))


@transaction.atomic
def _note_start(run_id: int, name: str) -> None:
    """Progress for whoever watches: committed before the step, so that it shows while the step runs."""
    run = CloseRun.objects.select_for_update().get(pk=run_id)
    step = _step_of(run, name)
    if run.state == RunState.RUNNING and step["state"] in ("waiting", "running"):
        begun = {"started_at": instant_text(timezone.now())} if step["state"] == "waiting" else {}
        step |= {**begun, "state": "running", "attempts": step.get("attempts", 0) + 1}
        run.save(update_fields=["steps"])


def _do_step(run_id: int, name: str, now: datetime) -> bool:
    """One step, once; False: the run is over."""
    in_one_transaction = _alone if name == "issue" else in_snapshot
    try:
        return in_one_transaction(Lock.COMPUTE, lambda: _once(run_id, name, now))
    except Blocked as reason:
        _note_blocked(run_id, name, reason.reasons)
        return False


def _alone(lock: Lock, work: Callable[[], bool]) -> bool:
    """Without a snapshot: `issue` lets nobody commit facts, and must see all that were committed until then."""
    with transaction.atomic():
        acquire(lock)
        return work()


def _once(run_id: int, name: str, now: datetime) -> bool:
    run = CloseRun.objects.select_for_update(of=("self",)).select_related("period").get(pk=run_id)
    if run.state != RunState.RUNNING:
        return False
    step = _step_of(run, name)
    if step["state"] != "done":
        if step.get("attempts", 0) > ATTEMPTS:
            raise Blocked([sentence("close_given_up", attempts=ATTEMPTS)])
        _end_step(run, name, "done", [STEPS[name](run, now)])
        if name == LAST_STEP:
            _end_run(run, RunState.DONE, [sentence("month_closed", month=run.period_id)])
        run.save()
    return True


@transaction.atomic
def _note_blocked(run_id: int, name: str, reasons: list[Sentence]) -> None:
    run = CloseRun.objects.select_for_update().get(pk=run_id)
    if run.state == RunState.RUNNING:
        _end_step(run, name, "blocked", reasons)
        _end_run(run, RunState.BLOCKED, reasons)
        run.save()


def _step_of(run: CloseRun, name: str) -> dict[str, Any]:
    return next(step for step in run.steps if step["name"] == name)


def _end_step(run: CloseRun, name: str, state: str, told: list[Sentence]) -> None:
    detail = [one.kept() for one in told]
    _step_of(run, name).update(state=state, detail=detail, ended_at=instant_text(timezone.now()))


def _end_run(run: CloseRun, state: RunState, told: list[Sentence]) -> None:
    run.state, run.outcome, run.ended_at = state, [one.kept() for one in told], timezone.now()


# The steps. Each is handed the locked run, and returns what it did.


def _compute(run: CloseRun, now: datetime) -> Sentence:
    """Late facts of closed months first: what they change belongs to this month."""
    adjusted = adjust_closed_months(now)
    done = compute_month(Month.parse(run.period_id), horizon=run.period.ends_at)
    counts = {"adjustments": adjusted, "transfers": done.transfers, "statements": done.statements}
    return sentence("close_computed", **counts)


def _check(run: CloseRun, now: datetime) -> Sentence:
    """Tell early what blocks. That facts have come since the month was computed does not: `issue` computes them. Nor
    are the proofs carried out here, which read every slot: those that count are of what `issue` seals."""
    _refuse_if_blocked(run.period, now, [], but_for="computed")
    return sentence("nothing_blocks")


def _issue(run: CloseRun, now: datetime) -> Sentence:
    """Nothing is booked or agreed between the cut and the commit: bookings wait for their place in the sequence, and
    changes of masters and terms for theirs. Files and proofs take longest, and are of what only computing the books
    changes: bookings go on meanwhile, and only where one of them mattered to the month are both made again."""
    acquire(Lock.MASTERS)
    period = Period.objects.select_for_update().get(pk=run.period_id)
    unproved = unproved_invariants(period)
    if unproved:  # no file can be made of books that contradict themselves, unless a person answers for it
        _refuse_if_blocked(period, now, unproved, but_for="computed")
    drafts, seen = _with_files(period), _last_booking()
    acquire(Lock.BOOKING_SEQUENCE)
    cut = _last_booking()
    if _bring_up_to_date(period, now, booked=cut != seen):
        StatementAnnex.objects.filter(statement__in=drafts).delete()
        drafts, unproved = _with_files(period), unproved_invariants(period)
    period.refresh_from_db()
    _refuse_if_blocked(period, now, unproved)
    issued, head = _seal_statements(period, drafts, now)
    mark_findings_seen(period)
    closed_with = undated_terms().now.as_json()
    closed = {"state": PeriodState.CLOSED, "cut_sequence": cut, "closed_at": now, "closed_with": closed_with}
    Period.objects.filter(pk=period.pk).update(**closed)
    run.chain_head = head
    record(
        Actor(run.requested_by, run.request_id),
        "close_month",
        "period",
        period.month,
        before={"state": "review"},
        after={"state": "closed", "cut_sequence": cut, "statements": issued, "chain_head": head},
    )
    return sentence("statements_issued", statements=issued, cut=cut)


def _last_booking() -> int:
    return Booking.objects.aggregate(last=Max("sequence"))["last"] or 0


def _bring_up_to_date(period: Period, now: datetime, *, booked: bool) -> bool:
    """Whether the month's books changed. Work that still waits is measured again in any case; without a booking it is
    measured the same."""
    adjusted = adjust_closed_months(now)
    done = compute_month(Month.parse(period.month), horizon=period.ends_at)
    # What was measured again just now may have moved something in a closed month, which belongs to this one too.
    adjusted += adjust_closed_months(now)
    changed = adjusted or done.allocation.spans or done.transfers or done.statements
    return bool(changed or (booked and done.preemptions))


def _with_files(period: Period) -> list[Statement]:
    """Every draft of the month with its files, in order of slugs."""
    drafts = Statement.objects.filter(period=period, state=StatementState.DRAFT)
    drafts = drafts.select_related("tenant__holder", "tenant__account", "period")
    rows = list(drafts.order_by("tenant__holder__slug"))
    freeze_annexes(rows)
    return rows


def _announce(run: CloseRun, now: datetime) -> Sentence:
    """The next month's draft opens; whoever should know gets the head of the chain by mail."""
    compute_month(Month.parse(run.period_id).next(), horizon=min(now, _next_end(run)))
    return announce_close(run)


def _next_end(run: CloseRun) -> datetime:
    return ensure_period(Month.parse(run.period_id).next()).ends_at


STEPS: dict[str, Step] = {"compute": _compute, "check": _check, "issue": _issue, "announce": _announce}
LAST_STEP = "announce"


def _refuse_if_blocked(period: Period, now: datetime, unproved: list[Sentence], but_for: str = "") -> None:
    items = blocked(month_checklist(Period.objects.get(pk=period.pk), now, unproved))
    items = [item for item in items if item.code != but_for]
    if items:
        raise Blocked([item.told() for item in items])


def _seal_statements(period: Period, rows: list[Statement], now: datetime) -> tuple[int, str]:
    """Put every draft into both chains, in order of slugs; returns how many there are and the last hash."""
    head, of_tenant = chain_heads(period)
    for statement in rows:
        statement.previous_of_ledger = head
        statement.previous_of_tenant = of_tenant.get(statement.tenant_id, GENESIS)
        statement.sha256 = head = seal(
            statement.content, statement.previous_of_tenant, statement.previous_of_ledger
        )
        statement.state, statement.issued_at = StatementState.ISSUED, now
    fields = ["content", "previous_of_ledger", "previous_of_tenant", "sha256", "state", "issued_at"]
    Statement.objects.bulk_update(rows, fields, batch_size=_BATCH)
    return len(rows), head


def chain_heads(before: Period) -> tuple[str, dict[int, str]]:
    """The last hash of the ledger and of each tenant before a month; 64 zeros where there is none."""
    issued = Statement.objects.filter(state=StatementState.ISSUED, period__month__lt=before.month)
    last = issued.order_by("-period", "-tenant__holder__slug").values_list("sha256", flat=True).first()
    by_tenant = issued.order_by("tenant", "-period").distinct("tenant").values_list("tenant", "sha256")
    return last or GENESIS, dict(by_tenant)
