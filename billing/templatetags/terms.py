"""What is proposed, in the reader's language."""

from __future__ import annotations

from typing import Any

from django import template

from ledger.wording_sentences import kept_in_words

register = template.Library()


@register.filter
def change_words(kept: Any) -> str:
    """A change as it is kept with what was proposed."""
    return kept_in_words(kept)
