"""What every endpoint shares: who asks, known parameters only, and pages with a stable order."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from rest_framework.exceptions import NotAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from ledger.access import Access, access_of_user
from ledger.api.problems import Problem

# Understood by every list.
LIST_PARAMETERS = frozenset({"format", "excel", "fields", "ordering", "cursor", "page_size"})
PAGE_SIZE = 100
MAX_PAGE_SIZE = 10_000


class LedgerView(APIView):
    """An endpoint. `parameters` names the query parameters it takes; any other is a 400 that names it."""

    parameters: ClassVar[frozenset[str]] = frozenset()
    allows: ClassVar[staticmethod[[Access], bool]] = staticmethod(lambda access: access.sees_anything)

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        if not request.user or not request.user.is_authenticated:
            raise NotAuthenticated
        self.access = access_of_user(request.user)
        if not type(self).allows(self.access):
            raise Problem(403, "not_allowed", "Your role may not do this.")
        self.refuse_unknown_parameters(request)

    def known_parameters(self) -> frozenset[str]:
        return self.parameters | {"format"}

    def refuse_unknown_parameters(self, request: Request) -> None:
        known = self.known_parameters()
        for name in request.query_params:
            if name not in known:
                raise Problem(
                    400,
                    "unknown_parameter",
                    f"Unknown query parameter '{name}'; known: {', '.join(sorted(known))}.",
                    parameter=name,
                )


class ListView(LedgerView):
    """A list endpoint: `?page_size`, `?cursor`, `?fields`, `?ordering`, `?format=csv`."""

    orderings: ClassVar[frozenset[str]] = frozenset()
    default_ordering: ClassVar[str] = ""

    def known_parameters(self) -> frozenset[str]:
        return self.parameters | LIST_PARAMETERS

    def ordering(self) -> tuple[str, bool]:
        """The field to order by, and whether it is descending."""
        text = self.request.query_params.get("ordering", self.default_ordering)
        field = text.removeprefix("-")
        if text and field not in self.orderings and text != self.default_ordering:
            raise Problem(
                400,
                "bad_ordering",
                f"Cannot order by '{field}'; possible: {', '.join(sorted(self.orderings))}.",
                parameter="ordering",
            )
        return field, text.startswith("-")

    def page(
        self, fetch: Callable[[int, int], Sequence[Any]], to_row: Callable[[Any], dict[str, Any]]
    ) -> Response:
        """One page. `fetch(offset, limit)` gives rows in a total, stable order."""
        size = self._page_size()
        offset = self._offset()
        found = list(fetch(offset, size + 1))
        rows = [to_row(item) for item in found[:size]]
        following = self._link(offset + size) if len(found) > size else None
        previous = self._link(max(offset - size, 0)) if offset else None
        response = Response({"next": following, "previous": previous, "results": self._pick(rows)})
        links = [f'<{url}>; rel="{name}"' for url, name in ((following, "next"), (previous, "prev")) if url]
        if links:
            response["Link"] = ", ".join(links)
        return response

    def _page_size(self) -> int:
        text = self.request.query_params.get("page_size", str(PAGE_SIZE))
        if not (
            text.isascii() and text.isdigit() and 1 <= len(text) <= 5 and 1 <= int(text) <= MAX_PAGE_SIZE
        ):
            raise Problem(
                400, "bad_page_size", f"page_size must be 1 to {MAX_PAGE_SIZE}.", parameter="page_size"
            )
        return int(text)

    def _offset(self) -> int:
        cursor = self.request.query_params.get("cursor")
        if not cursor:
            return 0
        try:
            text = base64.urlsafe_b64decode(cursor.encode("ascii") + b"==").decode("ascii")
            if not text.startswith("o:") or len(text) > 14:
                raise ValueError(text)
            offset = int(text[2:])
        except (ValueError, UnicodeError, binascii.Error):
            raise Problem(400, "bad_cursor", "This cursor is not one of ours.", parameter="cursor") from None
        if offset < 0:
            raise Problem(400, "bad_cursor", "This cursor is not one of ours.", parameter="cursor")
        return offset

    def _link(self, offset: int) -> str:
        parameters = self.request.query_params.copy()
        parameters.pop("cursor", None)
        if offset:
            parameters["cursor"] = base64.urlsafe_b64encode(f"o:{offset}".encode()).decode().rstrip("=")
        query = parameters.urlencode()
        return self.request.build_absolute_uri(self.request.path + (f"?{query}" if query else ""))

    def _pick(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        wanted = self.request.query_params.get("fields")
        if not wanted or not rows:
            return rows
        names = wanted.split(",")
        for name in names:
            if name not in rows[0]:
                raise Problem(
                    400, "unknown_field", f"There is no field '{name}' in these rows.", parameter="fields"
                )
        return [{name: row[name] for name in names} for row in rows]
