"""What every endpoint shares: who asks, known parameters only, and pages with a stable order."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from functools import cache
from typing import Any, ClassVar

from django.db.models import Model, QuerySet
from django.http import Http404
from django.utils.cache import get_conditional_response, patch_vary_headers
from django.utils.translation import get_language
from drf_spectacular.utils import OpenApiParameter
from rest_framework.exceptions import MethodNotAllowed, NotAuthenticated
from rest_framework.permissions import SAFE_METHODS
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from ledger.access import Access, access_of_user
from ledger.api import keyset, whole_lists
from ledger.api.parameters import CURSOR, ordering_by, refuse_malformed, some_of
from ledger.api.problems import Problem
from ledger.api.renderers import is_for_spreadsheets

# Understood by every list.
LIST_PARAMETERS = frozenset({"format", "excel", "fields", "ordering", "cursor", "page_size"})
PAGE_SIZE = 100
MAX_PAGE_SIZE = 10_000
MAX_SORTED = 10_000
FORMATS = ("json", "csv")


class LedgerView(APIView):
    """An endpoint. `parameters` names the query parameters it takes; any other is a 400 that names it."""

    parameters: ClassVar[frozenset[str]] = frozenset()
    allows: ClassVar[staticmethod[[Access], bool]] = staticmethod(lambda access: access.sees_anything)
    # A download is the file that its name says, whatever `?format=` or `Accept` would have.
    takes_format: ClassVar[bool] = True
    # Method -> an example of its body.
    examples: ClassVar[dict[str, Any]] = {}

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        if not request.user or not request.user.is_authenticated:
            raise NotAuthenticated
        method = str(request.method).lower()
        if method not in self.http_method_names or not hasattr(self, method):
            raise MethodNotAllowed(str(request.method))
        self.access = access_of_user(request.user)
        if not type(self).allows(self.access):
            raise Problem(403, "not_allowed", "Your role may not do this.")
        if any("\x00" in value for value in kwargs.values() if isinstance(value, str)):
            raise Http404  # nothing is called so, and PostgreSQL cannot even look for it
        self.refuse_unknown_parameters(request)

    def finalize_response(self, request: Request, response: Any, *args: Any, **kwargs: Any) -> Any:
        """What one may see another may not: no cache gives one's answer to another."""
        patch_vary_headers(response, ["Authorization", "Cookie"])
        return super().finalize_response(request, response, *args, **kwargs)

    def perform_content_negotiation(self, request: Request, force: bool = False) -> Any:
        if not force and self.takes_format:
            refuse_malformed([FORMAT], request.query_params)
        return super().perform_content_negotiation(request, force)

    def known_parameters(self) -> frozenset[str]:
        # What is written says everything in its body.
        own = self.parameters if self.reads else frozenset()
        return (own | {"format"}) if self.takes_format else frozenset(own)

    @property
    def reads(self) -> bool:
        return self.request.method in SAFE_METHODS

    def refuse_unknown_parameters(self, request: Request) -> None:
        """Raises Problem for a parameter that is unknown, given twice, or not of its declared form."""
        known = self.known_parameters()
        for name in request.query_params:
            if name not in known:
                raise Problem(
                    400,
                    "unknown_parameter",
                    f"Unknown query parameter '{name}'; known: {', '.join(sorted(known))}.",
                    parameter=name,
                )
            values = request.query_params.getlist(name)
            if len(values) > 1:
                raise Problem(400, "repeated_parameter", f"{name} is given more than once.", parameter=name)
            if any("\x00" in value for value in values):
                raise Problem(400, "bad_filter", f"{name} cannot contain NUL.", parameter=name)
        if self.reads and hasattr(self, "get"):
            refuse_malformed(_declared(type(self)), request.query_params)  # type: ignore[arg-type]


class ListView(LedgerView):
    """A list endpoint: `?page_size`, `?cursor`, `?fields`, `?ordering`, `?format=csv`.

    CSV without `page_size` and `cursor` is the whole list."""

    # What the rows' own source can order by; by any other field of the rows the view sorts, if they are not too many.
    orderings: ClassVar[frozenset[str]] = frozenset()
    default_ordering: ClassVar[str] = ""
    # What `by` means where it is not given: fields that are not required stand in the rows if they are named there.
    default_by: ClassVar[str] = ""
    # The pattern of columns beyond the fields of the serializer.
    more_columns: ClassVar[str] = ""

    def known_parameters(self) -> frozenset[str]:
        known = super().known_parameters()
        return known | LIST_PARAMETERS if self.reads else known

    def row_columns(self) -> list[str]:
        """The fields of the rows, known without any row: from the serializer that the schema shows."""
        fields = _row_fields(self)
        by = [name for name in self.request.query_params.get("by", self.default_by).split(",") if name]
        found: list[str] = []
        for name, field in fields.items():
            if field.required or name in by:
                found.append(name)
        labels = [name for name in by if name.startswith("label:")]
        return found[:1] + labels + found[1:] if labels else found

    def ordering(self) -> tuple[str, bool]:
        """The field to order by, and whether it is descending."""
        text = self.request.query_params.get("ordering") or self.default_ordering
        field = text.removeprefix("-")
        if text and field not in self.orderings and text != self.default_ordering:
            self._refuse_unknown(field, "ordering", "bad_ordering")
            text = self.default_ordering
        return text.removeprefix("-"), text.startswith("-")

    def _refuse_unknown(self, name: str, parameter: str, code: str) -> None:
        columns = self.row_columns()
        if name not in columns:
            detail = f"There is no field '{name}' in these rows; there are {', '.join(columns)}."
            raise Problem(422, code, detail, parameter=parameter)

    def _sorted_by(self) -> tuple[str, bool] | None:
        """The field by which the view itself has to sort the rows; None where their source does it, or nobody asks."""
        text = self.request.query_params.get("ordering", "")
        field = text.removeprefix("-")
        if not text or field in self.orderings or text == self.default_ordering:
            return None
        self._refuse_unknown(field, "ordering", "bad_ordering")
        return field, text.startswith("-")

    def page(
        self, fetch: Callable[[int, int], Sequence[Any]], to_row: Callable[[Any], dict[str, Any]]
    ) -> Response:
        """One page, or as CSV without a page asked for all. `fetch(offset, limit)` gives rows in a total, stable
        order."""
        size = self._page_size()
        offset = self._offset()
        sort = self._sorted_by()
        if whole_lists.is_wanted(self.request):
            size = MAX_SORTED if sort else whole_lists.COMPUTED_AT_ONCE
        if sort is None:
            found = list(fetch(offset, size + 1))
            rows = [to_row(item) for item in found[:size]]
            if len(found) > size and whole_lists.is_wanted(self.request):
                # Made here, not while it is sent: what `fetch` reads may stand in a transaction of the view's.
                return Response(self._whole(found[0], to_row, lambda: whole_lists.computed(fetch)).made())
        else:
            found = self._sorted([to_row(item) for item in fetch(0, MAX_SORTED + 1)], *sort)[
                offset : offset + size + 1
            ]
            rows = found[:size]
        following = self._link(offset + size) if len(found) > size else None
        previous = self._link(max(offset - size, 0)) if offset else None
        return self._page_answer(rows, following, previous)

    def _page_answer(
        self, rows: list[dict[str, Any]], following: str | None, previous: str | None
    ) -> Response:
        response = Response({"next": following, "previous": previous, "results": self._pick(rows)})
        links = [f'<{url}>; rel="{name}"' for url, name in ((following, "next"), (previous, "prev")) if url]
        if links:
            response["Link"] = ", ".join(links)
        return response

    def page_of(
        self,
        rows: QuerySet[Any],
        to_row: Callable[[Any], dict[str, Any]],
        also: Collection[type[Model]] | None = None,
    ) -> Response:
        """One page of rows in a total order; by cursors that name a row (`keyset`) where the order allows it.

        also: the tables that `to_row` reads beside the rows' own, but for what never changes; with them the whole list
        has an ETag before it is read. None: there are too many to look at, or it computes. A tenant gets none that is
        of whole tables: it would tell when something of others changes.
        """
        cursor = self.request.query_params.get("cursor", "")
        is_ours = not cursor or keyset.is_key(cursor)
        if self._sorted_by() is not None or not is_ours or not keyset.suits(rows):
            return self.page(lambda offset, limit: list(rows[offset : offset + limit]), to_row)
        size = self._page_size()
        tag = ""
        if whole_lists.is_wanted(self.request):
            size = whole_lists.ROWS_AT_ONCE
            if also is not None and (self.access.sees_all_tenants or not also):
                # Taken first: rows that change meanwhile are newer than their tag, and are sent again.
                tag = whole_lists.tag_of(rows, also, self._asked())
                if get_conditional_response(self.request._request, etag=tag) is not None:
                    return Response(whole_lists.Streamed((), tag))  # the middleware makes it the 304
        try:
            place = keyset.read(rows, cursor) if cursor else None
        except keyset.BadCursor:
            raise Problem(422, "bad_cursor", "This cursor is not one of ours.", parameter="cursor") from None
        found = keyset.page_at(rows, place, size + 1)
        is_more = len(found) > size
        if is_more and whole_lists.is_wanted(self.request):
            return Response(self._whole(found[0], to_row, lambda: whole_lists.stored(rows), tag))
        is_backwards = place is not None and place.is_backwards
        shown = found[-size:] if is_backwards else found[:size]
        has_next, has_previous = (True, is_more) if is_backwards else (is_more, place is not None)
        following = previous = None
        if shown and has_next:
            following = self._address(keyset.written(rows, shown[-1], backwards=False))
        if shown and has_previous:
            previous = self._address(keyset.written(rows, shown[0], backwards=True))
        answer = self._page_answer([to_row(item) for item in shown], following, previous)
        if tag:
            answer["ETag"] = tag
        return answer

    def _asked(self) -> tuple[object, ...]:
        """What an answer depends on beside its rows: the question, who asks it, in which language."""
        access = self.access
        who = (access.name, sorted(access.roles), sorted(access.tenant_ids))
        return self.request.get_full_path(), *who, get_language(), self.shown_columns()

    def _whole(
        self,
        first: Any,
        to_row: Callable[[Any], dict[str, Any]],
        items: Callable[[], Iterable[Any]],
        etag: str = "",
    ) -> whole_lists.Streamed:
        """A list of more rows than are held at once, as CSV."""
        columns = list(self._pick([to_row(first)])[0])
        excel = is_for_spreadsheets(self.request)
        return whole_lists.file_of(lambda: map(to_row, items()), columns, excel=excel, etag=etag)

    def finalize_response(self, request: Request, response: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(response, Response) and isinstance(response.data, whole_lists.Streamed):
            response = response.data.response()
        return super().finalize_response(request, response, *args, **kwargs)

    def _sorted(self, rows: list[dict[str, Any]], field: str, descending: bool) -> list[dict[str, Any]]:
        """By what is shown, so that an order tells nothing of what is not."""
        if len(rows) > MAX_SORTED:
            detail = f"More than {MAX_SORTED} rows cannot be ordered by '{field}': ask for fewer."
            raise Problem(422, "too_many_to_order", detail, parameter="ordering")
        known = [row for row in rows if row.get(field) not in (None, "")]
        unknown = [row for row in rows if row.get(field) in (None, "")]
        return (
            sorted(known, key=_sort_key([row[field] for row in known], field), reverse=descending) + unknown
        )

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
        cursor = self.request.query_params.get("cursor") or "o0"
        if not cursor.startswith("o"):
            raise Problem(422, "bad_cursor", "This cursor is not one of ours.", parameter="cursor")
        return int(cursor[1:])

    def _link(self, offset: int) -> str:
        return self._address(f"o{offset}" if offset else "")

    def _address(self, cursor: str) -> str:
        parameters = self.request.query_params.copy()
        parameters.pop("cursor", None)
        if cursor:
            parameters["cursor"] = cursor
        query = parameters.urlencode()
        return self.request.build_absolute_uri(self.request.path + (f"?{query}" if query else ""))

    def _pick(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        wanted = self.request.query_params.get("fields")
        if not wanted:
            return rows
        names = wanted.split(",")
        for name in names:
            self._refuse_unknown(name, "fields", "unknown_field")
        return [{name: row[name] for name in names} for row in rows]

    def shown_columns(self) -> list[str]:
        """The columns of a CSV without rows."""
        wanted = self.request.query_params.get("fields")
        return wanted.split(",") if wanted else self.row_columns()


FORMAT = OpenApiParameter("format", str, enum=FORMATS)


def list_parameters(view: ListView) -> list[OpenApiParameter]:
    """What every list understands, as its rows' own fields allow."""
    names = list(_row_fields(view))
    return [
        OpenApiParameter("cursor", str, pattern=CURSOR, description="from `next` or `previous`"),
        OpenApiParameter(
            "page_size",
            {"type": "integer", "minimum": 1, "maximum": MAX_PAGE_SIZE, "default": PAGE_SIZE},
            description=f"1 to {MAX_PAGE_SIZE}; CSV with neither this nor `cursor` is the whole list",
        ),
        OpenApiParameter(
            "fields",
            str,
            pattern=some_of(names, view.more_columns, may_be_empty=True),
            description="only these fields of the rows, comma-separated",
        ),
        OpenApiParameter(
            "ordering",
            str,
            pattern=ordering_by(names, view.more_columns),
            description="a field of the rows, descending with `-` before it",
        ),
        OpenApiParameter(
            "excel", str, enum=["0", "1"], description="of CSV, 1: byte-order mark and translated headings"
        ),
    ]


@cache
def _declared(view: Any) -> tuple[OpenApiParameter, ...]:
    """The query parameters that the schema shows of a view's `get`."""
    schema, made = view.get.kwargs["schema"](), view()
    made.request, made.kwargs = None, {}  # the declaration hangs on no request
    schema.view, schema.method = made, "GET"
    return tuple(one for one in schema.get_override_parameters() if isinstance(one, OpenApiParameter))


def _row_fields(view: ListView) -> dict[str, Any]:
    schema = view.get.kwargs["schema"]()  # type: ignore[attr-defined]  # set by extend_schema
    schema.view, schema.method = view, "GET"
    serializer = schema.get_response_serializers()
    return dict(getattr(serializer, "child", serializer).fields)


def _sort_key(values: Sequence[Any], field: str) -> Callable[[dict[str, Any]], Any]:
    """Decimal strings by their number, all else by itself, and what has no order by its text."""
    try:
        numbers = {value: Decimal(value) for value in values if isinstance(value, str)}
        if all(isinstance(value, str) for value in values) and all(
            number.is_finite() for number in numbers.values()
        ):
            return lambda row: numbers[row[field]]
    except InvalidOperation:
        pass
    kinds = {type(value) for value in values}
    if len(kinds) == 1 and kinds <= {int, bool, datetime, date, str}:
        return lambda row: row[field]
    return lambda row: str(row[field])
