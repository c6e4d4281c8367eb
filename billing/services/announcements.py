"""Mail after a close: the head of the chain to finance, the total to a tenant's contacts (domain.md section 10)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from django.conf import settings
from django.core.mail import send_mass_mail
from django.utils.translation import gettext as _
from django.utils.translation import override

from billing.core.sentences import Sentence, sentence
from billing.models import CloseRun, Statement
from billing.services.mailing import MAIL_ERRORS, mail_problem
from ledger.core.currency import minor_places
from ledger.core.units import fixed_decimal
from ledger.models import Role, User
from ledger.selectors.settings import ledger_settings
from ledger.templatetags.figures import month_name

Mail = tuple[str, str, str | None, list[str]]


def announce_close(run: CloseRun) -> Sentence:
    """Send the mails of a close. A mail server that does not answer does not hold the books up.

    A worker killed between sending and noting it sends them again: a mail twice is better than none.
    """
    mails = [*_to_finance(run), *_to_contacts(run)]
    try:
        send_mass_mail(mails)
    except MAIL_ERRORS as error:
        return sentence("mail_not_sent", why=mail_problem(error))
    return sentence("mails_sent", count=len(mails))


def _to_finance(run: CloseRun) -> list[Mail]:
    to = User.objects.filter(memberships__role=Role.FINANCE, is_active=True).exclude(email="")
    mails: list[Mail] = []
    for language, addresses in _by_language(set(to.values_list("email", flat=True))):
        with override(language):
            closed = _("%(month)s is closed") % {"month": month_name(run.period_id)}
            body = [
                _("%(month)s is closed, asked for by %(who)s.")
                % {"month": month_name(run.period_id), "who": run.requested_by},
                _("Head of the chain of statements: %(hash)s") % {"hash": run.chain_head},
                _(
                    "Keep this mail: a ledger that shows another head for this month is not the one that was closed."
                ),
            ]
        mails += [(closed, "\n\n".join(body) + "\n", None, [address]) for address in addresses]
    return mails


def _to_contacts(run: CloseRun) -> list[Mail]:
    """Per tenant with contacts, one mail in each of their languages, addressed to all who read it."""
    statements = Statement.objects.filter(period=run.period_id).select_related("tenant").defer("content")
    mails: list[Mail] = []
    rows = list(statements.order_by("number"))
    languages = _languages({contact for row in rows for contact in _contacts(row)})
    for statement in rows:
        total = fixed_decimal(statement.total_minor, minor_places(statement.currency))
        by_language = defaultdict(list)
        for contact in _contacts(statement):
            by_language[languages[contact]].append(contact)
        for language, addresses in sorted(by_language.items()):
            with override(language):
                subject = _("Statement %(number)s is issued") % {"number": statement.number}
                body = [
                    _("Statement %(number)s: %(total)s %(currency)s")
                    % {"number": statement.number, "total": total, "currency": statement.currency},
                    _("Hash: %(hash)s") % {"hash": statement.sha256},
                ]
            mails.append((subject, "\n".join(body) + "\n", None, addresses))
    return mails


def _contacts(statement: Statement) -> list[str]:
    return [contact for contact in map(str, statement.tenant.contacts) if "@" in contact]


def _by_language(addresses: Iterable[str]) -> list[tuple[str, list[str]]]:
    found: defaultdict[str, list[str]] = defaultdict(list)
    for address, language in sorted(_languages(addresses).items()):
        found[language].append(address)
    return sorted(found.items())


def _languages(addresses: Iterable[str]) -> dict[str, str]:
    """Of each address: the language that its user has chosen, else the ledger's. One query."""
    chosen = User.objects.exclude(language="").filter(is_active=True, email__in=list(addresses))
    by_address = dict(chosen.order_by("pk").values_list("email", "language"))
    usual = ledger_settings().options.get("language")
    usual = usual if usual in dict(settings.LANGUAGES) else settings.LANGUAGE_CODE
    return {address: by_address.get(address, usual) for address in addresses}
