"""`{% shell as shell %}`: the frame of the page, from the request alone, so that error pages have it too."""

from __future__ import annotations

from typing import Any

from django import template

from ledger.views.shell import Shell

register = template.Library()


@register.simple_tag(takes_context=True)
def shell(context: dict[str, Any]) -> Shell | None:
    """None where there is no signed-in user, such as on the login page."""
    request = context.get("request")
    if request is None or not getattr(request, "user", None) or not request.user.is_authenticated:
        return None
    return Shell(request, context.get("month", ""), context.get("switchable_months"))
