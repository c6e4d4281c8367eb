"""What a page of the ledger says, apart from how it is marked up."""

from __future__ import annotations

import re
from typing import Any


def shown_text(response: Any) -> str:
    """The page as it reads: no tags, runs of white space as one space."""
    body = re.sub(r"<script.*?</script>", "", response.content.decode(), flags=re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", body))


def figures(response: Any) -> list[str]:
    """Exact values of the figures of a page, in order."""
    return re.findall(r'<data class="figure" value="([^"]*)"', response.content.decode())
