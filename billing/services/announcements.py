"""Mail after a close: the head of the chain to finance, the total to a tenant's contacts (domain.md section 10)."""

from __future__ import annotations

from smtplib import SMTPException

from django.core.mail import send_mass_mail

from billing.models import CloseRun, Statement
from ledger.core.currency import minor_places
from ledger.core.units import fixed_decimal
from ledger.models import Role, User

Mail = tuple[str, str, str | None, list[str]]


def announce_close(run: CloseRun) -> str:
    """Send the mails of a close. A mail server that does not answer does not hold the books up.

    A worker killed between sending and noting it sends them again: a mail twice is better than none.
    """
    mails = [*_to_finance(run), *_to_contacts(run)]
    try:
        send_mass_mail(mails)
    except (SMTPException, OSError) as error:
        return f"mail could not be sent: {error}"
    return f"{len(mails)} mails"


def _to_finance(run: CloseRun) -> list[Mail]:
    to = User.objects.filter(memberships__role=Role.FINANCE, is_active=True).exclude(email="")
    addresses = sorted(set(to.values_list("email", flat=True)))
    body = (
        f"{run.period_id} is closed, asked for by {run.requested_by}.\n\n"
        f"Head of the chain of statements: {run.chain_head}\n\n"
        "Keep this mail: a ledger that shows another head for this month is not the one that was closed.\n"
    )
    return [(f"{run.period_id} is closed", body, None, [address]) for address in addresses]


def _to_contacts(run: CloseRun) -> list[Mail]:
    """One mail per tenant with contacts, addressed to all of them."""
    statements = Statement.objects.filter(period=run.period_id).select_related("tenant").defer("content")
    mails: list[Mail] = []
    for statement in statements.order_by("number"):
        addresses = [contact for contact in statement.tenant.contacts if "@" in str(contact)]
        if addresses:
            total = fixed_decimal(statement.total_minor, minor_places(statement.currency))
            body = f"Statement {statement.number}: {total} {statement.currency}\nHash: {statement.sha256}\n"
            mails.append((f"Statement {statement.number} is issued", body, None, addresses))
    return mails
