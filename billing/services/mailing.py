"""Why a mail did not leave, without the texts that the machine or the library has for it."""

from __future__ import annotations

from smtplib import SMTPAuthenticationError, SMTPException, SMTPRecipientsRefused, SMTPResponseException

from billing.core.sentences import Sentence, sentence

MAIL_ERRORS = (SMTPException, OSError)
ANSWER_CHARACTERS = 200


def mail_problem(error: Exception) -> Sentence:
    """Of one of `MAIL_ERRORS`. What the server itself answered is handed on: whoever runs it knows its words."""
    if isinstance(error, SMTPAuthenticationError):
        return sentence("mail_sign_in_refused")
    if isinstance(error, SMTPRecipientsRefused):
        return sentence("mail_recipients_refused")
    if isinstance(error, SMTPResponseException):
        answer = error.smtp_error
        text = answer.decode(errors="replace") if isinstance(answer, bytes) else str(answer)
        return sentence(
            "mail_refused", status=error.smtp_code, answer=" ".join(text.split())[:ANSWER_CHARACTERS]
        )
    code = "mail_failed" if isinstance(error, SMTPException) else "mail_server_not_reached"
    return sentence(code, error=type(error).__name__)
