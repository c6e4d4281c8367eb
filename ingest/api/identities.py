"""`identities/`: who maps to whom, whose facts wait in suspense, and saying whose they are."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import OpenApiExample, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from ingest.api.questions import InstantField
from ingest.api.sources import reads_ingest, refuse_readers
from ingest.selectors.identities import Attributed, Unmapped, mappings, unmapped_identities
from ingest.services.identities import IdentityProblem, attribute_identity
from ledger.api.actors import actor_of
from ledger.api.bodies import TextOfForm, body_of
from ledger.api.problems import Problem
from ledger.api.views import ListView
from ledger.core.contract_words import IDENTITY_KINDS
from ledger.models import IdentityMapping

_COUNTS = ("levels", "requests", "preemptions", "first_fact_at", "last_fact_at")


class MappingRow(serializers.Serializer[Any]):
    kind = serializers.CharField()
    value = serializers.CharField()
    tenant = serializers.CharField()
    valid_from = serializers.DateTimeField(allow_null=True)
    valid_to = serializers.DateTimeField(allow_null=True)
    recorded_at = serializers.DateTimeField()
    recorded_by = serializers.CharField()


class UnmappedRow(serializers.Serializer[Any]):
    kind = serializers.CharField()
    value = serializers.CharField()
    first_seen_at = serializers.DateTimeField()
    pools = serializers.ListField(child=serializers.CharField())
    levels = serializers.IntegerField()
    requests = serializers.IntegerField()
    preemptions = serializers.IntegerField()
    first_fact_at = serializers.DateTimeField()
    last_fact_at = serializers.DateTimeField()


class MapBody(serializers.Serializer[Any]):
    kind = TextOfForm(
        rf"^({'|'.join(sorted(IDENTITY_KINDS))}|label:[^\s\u0000]+)$",
        help_text="such as k8s_namespace, slurm_account, label:team",
    )
    value = serializers.CharField()
    tenant = serializers.CharField(help_text="slug")
    valid_from = InstantField(required=False, allow_null=True, help_text="RFC 3339; left out: always")
    valid_to = InstantField(required=False, allow_null=True, help_text="RFC 3339; left out: for ever")
    reason = serializers.CharField(allow_blank=True)


class AttributedRow(serializers.Serializer[Any]):
    pool = serializers.CharField()
    levels = serializers.IntegerField()
    requests = serializers.IntegerField()
    preemptions = serializers.IntegerField()
    first_fact_at = serializers.DateTimeField()
    last_fact_at = serializers.DateTimeField()


class MappedRow(serializers.Serializer[Any]):
    kind = serializers.CharField()
    value = serializers.CharField()
    tenant = serializers.CharField()
    valid_from = serializers.DateTimeField(allow_null=True)
    valid_to = serializers.DateTimeField(allow_null=True)
    changed = serializers.BooleanField(help_text="false: it was the tenant's already")
    attributed = AttributedRow(
        many=True, help_text="what the tenant has by it; these pools are computed again"
    )


class IdentitiesView(ListView):
    """Mappings of identities to tenants; `POST` adds one, and the books follow within minutes."""

    allows = staticmethod(reads_ingest)

    @extend_schema(operation_id="identities_list", responses=MappingRow(many=True))
    def get(self, request: Request) -> Response:
        found = mappings()
        return self.page(lambda offset, limit: list(found[offset : offset + limit]), _mapping)

    @extend_schema(
        operation_id="identities_map",
        request=MapBody,
        responses={200: MappedRow, 201: MappedRow},
        examples=[
            OpenApiExample(
                "from October on",
                {
                    "kind": "k8s_namespace",
                    "value": "team-a",
                    "tenant": "acme",
                    "valid_from": "2026-10-01T00:00:00+08:00",
                    "reason": "ticket 4711",
                },
                request_only=True,
            )
        ],
    )
    def post(self, request: Request) -> Response:
        refuse_readers(self.access)
        body = body_of(request, MapBody)
        try:
            mapped = attribute_identity(
                body["kind"],
                body["value"],
                body["tenant"],
                valid_from=body.get("valid_from"),
                valid_to=body.get("valid_to"),
                reason=body["reason"],
                by=actor_of(request),
            )
        except IdentityProblem as error:
            raise Problem(409 if error.code == "mapped_otherwise" else 422, error.code, str(error)) from None
        names = ("kind", "value", "tenant", "valid_from", "valid_to")
        row = {name: getattr(mapped, name) for name in names}
        row |= {"changed": mapped.is_new, "attributed": [_attributed(one) for one in mapped.facts]}
        return Response(row, status=201 if mapped.is_new else 200)


class UnmappedView(ListView):
    """Identities with facts that no mapping covers; their GPU time stands in suspense. Newest facts first."""

    allows = staticmethod(reads_ingest)

    @extend_schema(operation_id="identities_unmapped", responses=UnmappedRow(many=True))
    def get(self, request: Request) -> Response:
        return self.page(unmapped_identities, _unmapped)


def _mapping(mapping: IdentityMapping) -> dict[str, Any]:
    return {
        "kind": mapping.identity.kind,
        "value": mapping.identity.value,
        "tenant": mapping.tenant.slug,
        "valid_from": mapping.validity.lower,
        "valid_to": mapping.validity.upper,
        "recorded_at": mapping.recorded_at,
        "recorded_by": mapping.recorded_by,
    }


def _unmapped(row: Unmapped) -> dict[str, Any]:
    return {name: getattr(row, name) for name in ("kind", "value", "first_seen_at", "pools", *_COUNTS)}


def _attributed(row: Attributed) -> dict[str, Any]:
    return {name: getattr(row, name) for name in ("pool", *_COUNTS)}
