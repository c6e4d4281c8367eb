"""Mails after a close, each in its reader's language (domain.md section 10; issue: pages)."""

from __future__ import annotations

import re
import smtplib
from typing import Any

import pytest
from django.core import mail
from django.utils import translation

from billing.models import CloseRun, Statement
from billing.services import announcements
from billing.services.announcements import announce_close
from billing.services.mailing import mail_problem
from billing.services.periods import ensure_period
from ledger.core.periods import Month
from ledger.models import Ledger, Membership, Role, Tenant, User
from ledger.wording_sentences import in_words
from tests.billing.level_facts import make_tenants

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]
OCTOBER = Month.parse("2026-10")


@pytest.fixture
def run(db: None) -> CloseRun:
    make_tenants("acme")
    period = ensure_period(OCTOBER)
    tenant = Tenant.objects.get(holder__slug="acme")
    Tenant.objects.filter(pk=tenant.pk).update(contacts=["li@example.com", "ann@example.com", "no address"])
    Statement.objects.create(
        id="0192a000-0000-7000-8000-000000000001",
        tenant=tenant,
        period=period,
        number="2026-10-acme",
        currency="USD",
        total_micro=1_230_000,
        total_minor=123,
        content={},
        sha256="ab" * 32,
        computed_at=period.ends_at,
    )
    for name, language in (("li", "zh-hans"), ("ann", "en"), ("wei", "zh-hans"), ("bob", "")):
        user = User.objects.create_user(name, email=f"{name}@example.com", language=language)
        if name in ("wei", "bob"):
            Membership.objects.create(user=user, role=Role.FINANCE)
    return CloseRun.objects.create(period=period, requested_by="bob", chain_head="cd" * 32)


def by_address() -> dict[tuple[str, str], str]:
    return {(to, one.subject): str(one.body) for one in mail.outbox for to in one.to}


def test_each_reads_its_own_language_and_who_chose_none_the_ledgers(run: CloseRun) -> None:
    assert str(announce_close(run)) == "mails: 4"
    assert set(by_address()) == {
        ("bob@example.com", "October 2026 is closed"),
        ("wei@example.com", "2026年10月已关账"),
        ("ann@example.com", "Statement 2026-10-acme is issued"),
        ("li@example.com", "对账单 2026-10-acme 已出具"),
    }
    for (to, _subject), body in by_address().items():
        assert ("cd" * 32 in body) or ("ab" * 32 in body and "1.23 USD" in body)
        is_chinese = to[:2] in ("li", "we")
        assert bool(re.search("[一-鿿]", body)) == is_chinese
    mail.outbox.clear()
    Ledger.objects.update(options={"language": "zh-hans"})
    announce_close(run)
    assert ("bob@example.com", "2026年10月已关账") in by_address()


ERRORS = {
    "mail_server_not_reached": ConnectionRefusedError(111, "Connection refused"),
    "mail_sign_in_refused": smtplib.SMTPAuthenticationError(535, b"5.7.8 bad"),
    "mail_recipients_refused": smtplib.SMTPRecipientsRefused({}),
    "mail_refused": smtplib.SMTPSenderRefused(550, b"no\n such", "x"),
    "mail_failed": smtplib.SMTPServerDisconnected("gone away"),
}


def test_why_no_mail_left_is_told_in_the_readers_language(
    run: CloseRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    for code, error in ERRORS.items():

        def fails(*_args: Any, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr(announcements, "send_mass_mail", fails)
        told = announce_close(run)
        assert told.values["why"] == mail_problem(error) and mail_problem(error).code == code
        with translation.override("zh-hans"):
            words = in_words(told)
        assert not re.search(r"[A-Za-z]{3,} [a-z]{2,}", words.replace("no such", "")), words
