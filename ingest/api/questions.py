"""Query parameters and bodies of the doors -> plain values; what cannot be understood is a 400 that names it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.http import Http404
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.request import Request

from ingest.core.fields import Refusal, instant_ms
from ingest.selectors.facts import KINDS, FactQuestion
from ingest.selectors.sources import find_source
from ledger.access import Access
from ledger.api.problems import Problem
from ledger.core.instants import instant_text
from ledger.core.periods import Span, to_datetime, to_ms
from ledger.core.windows import BadWindow, parse_window
from ledger.models import Pool, Source, Tenant
from ledger.selectors.settings import ledger_settings

MAX_ID = 2**63 - 1


@extend_schema_field(OpenApiTypes.DATETIME)
class InstantField(serializers.Field[Any, Any, Any, Any]):
    """RFC 3339 with an offset; the ledger guesses no zone."""

    is_instant = True

    def to_internal_value(self, data: Any) -> datetime:
        try:
            return to_datetime(instant_ms(data))
        except Refusal as refusal:
            raise serializers.ValidationError(refusal.detail) from None

    def to_representation(self, value: datetime) -> str:
        return instant_text(value)


def text_parameter(request: Request, name: str) -> str | None:
    """None: not asked for."""
    return request.query_params.get(name)


def number_parameter(request: Request, name: str) -> int | None:
    text = text_parameter(request, name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= MAX_ID):
        raise Problem(400, "bad_filter", f"{name} must be a number.", parameter=name)
    return int(text)


def source_or_404(name: str) -> Source:
    source = find_source(name)
    if source is None:
        raise Http404
    return source


def fact_question(request: Request, access: Access) -> FactQuestion:
    """`kind`, `pool`, `tenant`, `window` of `GET facts/`."""
    kind = text_parameter(request, "kind") or "level"
    if kind not in KINDS:
        raise Problem(400, "bad_kind", f"kind must be one of {', '.join(KINDS)}.", parameter="kind")
    span = _span(request)
    if kind in ("request", "usage") and span is None:
        raise Problem(
            422,
            "missing_parameter",
            f"window is required for kind={kind}, such as today.",
            parameter="window",
        )
    return FactQuestion(kind, _pool(request), _tenant_id(request, access), span)


def _span(request: Request) -> Span | None:
    text = text_parameter(request, "window")
    if text is None:
        return None
    ledger = ledger_settings()
    try:
        return parse_window(text, ledger.billing_time_zone, to_ms(timezone.now()))
    except (BadWindow, OverflowError) as error:
        raise Problem(422, "bad_window", str(error), parameter="window") from None


def _pool(request: Request) -> str | None:
    slug = text_parameter(request, "pool")
    if slug is not None and not Pool.objects.filter(slug=slug).exists():
        raise Problem(422, "unknown_pool", f"No pool is called '{slug}'.", parameter="pool")
    return slug


def _tenant_id(request: Request, access: Access) -> int | None:
    """Another's tenant is answered like one that does not exist."""
    slug = text_parameter(request, "tenant")
    if slug is None:
        return None
    found = Tenant.objects.filter(holder__slug=slug).values_list("pk", flat=True).first()
    if found is None or not access.sees_tenant(found):
        raise Http404
    return found
