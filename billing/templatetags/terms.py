"""What is proposed, in the reader's language."""

from __future__ import annotations

from django import template

from billing.views.kept_words import change_in_words

register = template.Library()


@register.filter
def change_words(text: str) -> str:
    """A change as `apply_config` says it."""
    return change_in_words(text)
