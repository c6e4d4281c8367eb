"""`{% cells line.cells %}`: a row of a table. Loops and conditions of the template would take longer over the cells of
a page than all queries of it."""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import Any

from django import template
from django.template.base import render_value_in_context
from django.utils.safestring import SafeString, mark_safe

register = template.Library()


@register.simple_tag(takes_context=True)
def cells(context: template.Context, row: Iterable[Any]) -> SafeString:
    """Cells (`ledger.views.tables.Cell`) as the template would show them; the first one heads the row."""

    def shown(value: Any) -> str:
        if type(value) is SafeString:
            return value
        if type(value) is str:
            return html.escape(value)
        return str(render_value_in_context(value, context))

    drawn = []
    for number, cell in enumerate(row):
        begin, end = ('<th scope="row"', "</th>") if number == 0 else ("<td", "</td>")
        css = f' class="{shown(cell.css)}"' if cell.css else ""
        inside = f'<a href="{shown(cell.url)}">{shown(cell.shown)}</a>' if cell.url else shown(cell.shown)
        drawn.append(f"{begin}{css}>{inside}{end}")
    return mark_safe("".join(drawn))
