"""What is kept in English is told in the reader's language, and every text that can come has words (issue: pages)."""

from __future__ import annotations

import re

import pytest
from django.utils import translation

from billing.core.configuration import ConfigurationError, from_document
from billing.views.kept_words import change_in_words, refusal_of_terms

ENGLISH = re.compile(r"[A-Za-z]{3,} [a-z]{2,}")
AT = "2026-10-01T00:00:00+00:00"


def refused(document: dict[str, object]) -> str:
    with pytest.raises(ConfigurationError) as error:
        from_document(document)
    return str(error.value)


CARD = {"name": "n", "valid_from": "2026-10-01T00:00:00Z"}


@pytest.mark.parametrize(
    "document",
    [
        {"rate_card": [{**CARD, "gpu_hour": [{"gpu_model": "H100", "on_demand": "dear"}]}]},
        {"rate_card": [{**CARD, "gpu_hour": [{"gpu_model": "H100", "on_demand": "-1"}]}]},
        {"rate_card": [{**CARD, "gpu_hour": [{"gpu_model": "H100", "on_demand": "1.2345678"}]}]},
        {"rate_card": [{**CARD, "gpu_hour": [{"on_demand": "1"}]}]},
        {"rate_card": [{**CARD, "valid_from": "2026-10-01T00:00:00"}]},
        {"rate_card": [{**CARD, "valid_from": "yesterday"}]},
        {"rate_card": [{**CARD, "valid_from": "9999-10-01T00:00:00Z"}]},
        {"rate_card": [{"name": "n"}]},
        {"rate_card": [{**CARD, "colour": "red"}]},
        {"rate_card": [{**CARD, "name": 4}]},
        {"policy": [{"valid_from": "2026-10-01T00:00:00Z", "min_confidence": "2"}]},
        {"budget": [{"tenant": "acme"}]},
        {"budget": [{"tenant": "acme", "amount": "0"}]},
        {"budget": [{"tenant": "acme", "amount": "1", "month": "October"}]},
        {"tenant": [{"slug": "Not OK", "name": "n"}]},
    ],
)
def test_why_terms_cannot_be_used_is_told_in_chinese(document: dict[str, object]) -> None:
    problem = refused(document)
    with translation.override("zh-hans"):
        told = refusal_of_terms(problem)
    place, _, words = told.partition(": ")
    assert problem.startswith(place)
    assert not ENGLISH.search(words), told


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
