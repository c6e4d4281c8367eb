"""What all downloads share: they are streamed, and are the file that their name says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from django.http import HttpResponse, StreamingHttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema, extend_schema_view
from rest_framework.negotiation import DefaultContentNegotiation
from rest_framework.request import Request

from billing.exports.files import checksum
from ledger.api.views import LedgerView

V = TypeVar("V", bound=type[LedgerView])


class AnyAccept(DefaultContentNegotiation):
    """A download is the file that its name says, whatever the client prefers."""

    def select_renderer(self, request: Request, renderers: Any, format_suffix: str | None = None) -> Any:
        return renderers[0], renderers[0].media_type


def is_for_spreadsheets(request: Request) -> bool:
    """`?excel=1`."""
    return request.query_params.get("excel") == "1"


def csv_download(pieces: Iterator[bytes], name: str) -> StreamingHttpResponse:
    response = StreamingHttpResponse(pieces, content_type="text/csv; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="{name}"'
    return response


def checksum_download(pieces: Iterator[bytes], name: str) -> HttpResponse:
    """The file is made to be read over once; only its hash is sent."""
    response = HttpResponse(checksum(pieces, name), content_type="text/plain; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="{name}.sha256"'
    return response


def file_schema(operation_id: str) -> Callable[[V], V]:
    excel = OpenApiParameter(
        "excel", str, enum=["0", "1"], description="1: byte-order mark and translated headings"
    )
    schema = extend_schema(
        operation_id=operation_id, parameters=[excel], responses={(200, "text/csv"): OpenApiTypes.BINARY}
    )
    return extend_schema_view(get=schema)
