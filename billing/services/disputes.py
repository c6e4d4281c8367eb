"""Disputes: a tenant says that a line is wrong, finance answers; all of it stays on record (domain.md section 10)."""

from __future__ import annotations

from django.db import IntegrityError, transaction
from django.utils.crypto import constant_time_compare

from billing.models import Dispute, DisputeEvent, DisputeState, Statement, StatementLine, StatementState
from billing.selectors.disputes import name_of_line
from billing.services.credits import request_credit
from ledger.services.audit import Actor, record

_UNSETTLED = (DisputeState.OPEN, DisputeState.ANSWERED)


class DisputeError(ValueError):
    """The dispute cannot take that step; `code` says why to programs."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@transaction.atomic
def dispute_named(statement: Statement, name: str, amount: str, reason: str, by: Actor) -> Dispute:
    """Dispute the line that a page showed, wherever it stands by now.

    name: what `name_of_line` says of it. amount: in micro currency units as it was shown; empty: it had no price.

    Raises:
        DisputeError: as `open_dispute`; `line_gone`; `line_changed`: its amount is another by now.
    """
    lines = _held(statement).lines.order_by("position")
    line = next((one for one in lines if constant_time_compare(name_of_line(one), name)), None)
    if line is None:
        raise DisputeError("line_gone", f"the line is no longer on {statement.number}")
    if amount != ("" if line.amount_micro is None else str(line.amount_micro)):
        raise DisputeError("line_changed", f"the line of {statement.number} has changed since it was shown")
    return open_dispute(line, reason, by)


@transaction.atomic
def dispute_numbered(statement: Statement, position: int, sha256: str, reason: str, by: Actor) -> Dispute:
    """Dispute the line that a program read. sha256: of the statement, as each of its rows says; numbers are of it.

    Raises:
        DisputeError: as `open_dispute`; `unknown_line`; `line_changed`: the statement has another hash by now;
            `sha256_needed`: without it, a number of a draft may be another line's by now.
    """
    held = _held(statement)
    if not sha256 and held.state == StatementState.DRAFT:
        raise DisputeError("sha256_needed", f"{held.number} is a draft: say the sha256 that its rows have")
    if sha256 and sha256 != held.sha256:
        raise DisputeError("line_changed", f"{held.number} has changed since: read its lines again")
    line = held.lines.filter(position=position).first()
    if line is None:
        raise DisputeError("unknown_line", f"{held.number} has no line {position}")
    return open_dispute(line, reason, by)


def _held(statement: Statement) -> Statement:
    """It is not drafted anew before the transaction ends."""
    rows = Statement.objects.select_for_update().only("number", "state", "sha256")
    return rows.get(pk=statement.pk)


def open_dispute(line: StatementLine, reason: str, by: Actor) -> Dispute:
    """Dispute a line of a draft or an issued statement.

    Raises:
        DisputeError: `no_reason`; `already_open`: the line has an unsettled dispute.
    """
    _need_text(reason)
    statement = line.statement
    try:
        with transaction.atomic():
            dispute = Dispute.objects.create(
                statement=statement,
                line_key=line.key,
                position=line.position,
                amount_micro=line.amount_micro,
                opened_by=by.name,
            )
            _say(dispute, DisputeState.OPEN, reason, by)
            after = {"statement": statement.number, "line": line.position}
            record(by, "open_dispute", "dispute", dispute.pk, after=after, reason=reason)
    except IntegrityError:
        raise DisputeError("already_open", "this line has a dispute that is not settled") from None
    return dispute


def answer_dispute(dispute: Dispute, text: str, by: Actor) -> Dispute:
    """Answer and leave it open. Raises DisputeError: `settled`, `no_reason`."""
    return _move(dispute, DisputeState.ANSWERED, text, by)


def reject_dispute(dispute: Dispute, text: str, by: Actor) -> Dispute:
    """Settle it without money. Raises DisputeError: `settled`, `no_reason`."""
    return _move(dispute, DisputeState.REJECTED, text, by)


@transaction.atomic
def adjust_dispute(dispute: Dispute, amount_micro: int, text: str, by: Actor) -> Dispute:
    """Settle it by giving `amount_micro` back, once a second person approves (at once where none is needed).

    Raises:
        DisputeError: `settled`, `no_reason`.  ApprovalError: `bad_amount`; `too_much`: more than the line's
            amount less earlier adjustments of the line.
    """
    dispute = _move(dispute, DisputeState.PROPOSED, text, by, amount_micro=amount_micro)
    statement = dispute.statement
    request_credit(statement.tenant, statement.period, amount_micro, text, by, dispute=dispute)
    dispute.refresh_from_db()
    return dispute


@transaction.atomic
def reopen_dispute(dispute: Dispute, text: str, by: Actor) -> Dispute:
    """A proposed adjustment was not approved: finance has to answer again."""
    locked = Dispute.objects.select_for_update().get(pk=dispute.pk)
    if locked.state == DisputeState.PROPOSED:
        _set(locked, DisputeState.OPEN, text or "The adjustment was not approved.", by)
    return locked


@transaction.atomic
def _move(
    dispute: Dispute, to: DisputeState, text: str, by: Actor, *, amount_micro: int | None = None
) -> Dispute:
    _need_text(text)
    locked = Dispute.objects.select_for_update().get(pk=dispute.pk)
    if locked.state not in _UNSETTLED:
        raise DisputeError("settled", f"the dispute is {locked.state} already")
    _set(locked, to, text, by, amount_micro)
    return locked


def _set(dispute: Dispute, to: DisputeState, text: str, by: Actor, amount_micro: int | None = None) -> None:
    before = dispute.state
    dispute.state = to
    dispute.save(update_fields=["state"])
    _say(dispute, to, text, by, amount_micro)
    record(
        by,
        "resolve_dispute",
        "dispute",
        dispute.pk,
        before={"state": before},
        after={"state": to},
        reason=text,
    )


def _say(dispute: Dispute, kind: DisputeState, text: str, by: Actor, amount_micro: int | None = None) -> None:
    DisputeEvent.objects.create(dispute=dispute, kind=kind, text=text, by=by.name, amount_micro=amount_micro)


def _need_text(text: str) -> None:
    if not text.strip():
        raise DisputeError("no_reason", "a reason is needed; it stays on record")
