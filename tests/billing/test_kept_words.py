"""What is kept in English is told in the reader's language, and every text that can come has words (issue: pages)."""

from __future__ import annotations

import re

import pytest
from django.utils import translation

from billing.views.kept_words import change_in_words

ENGLISH = re.compile(r"[A-Za-z]{3,} [a-z]{2,}")
AT = "2026-10-01T00:00:00+00:00"


@pytest.mark.parametrize(
    "change",
    [
        f"+ rate card 2026 from {AT}",
        f"~ policy from {AT} lend_credit_share: 1/2 -> 1/4",
        f"~ contract of acme from {AT} ended at {AT}",
        "~ alert rule h100-short enabled: True -> False",
        "+ tenant acme",
    ],
)
def test_a_change_that_a_person_decides_on_is_told_in_chinese(change: str) -> None:
    with translation.override("zh-hans"):
        told = change_in_words(change)
    assert told != change and not ENGLISH.search(told), told
