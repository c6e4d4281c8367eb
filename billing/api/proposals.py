"""What endpoints share that propose a change of rates or policies to a second person."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from drf_spectacular.utils import extend_schema_serializer
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from billing.api.actors import actor_of
from billing.api.periods import refusals, soon
from billing.core.configuration import ConfigurationError
from billing.core.sentences import Sentence
from billing.models import Approval
from billing.services.proposals import propose, propose_end
from billing.tasks import recompute_open_months
from ledger.access import access_of_user
from ledger.api.bodies import checked_body
from ledger.api.problems import Problem
from ledger.api.sentences import SentenceRow
from ledger.core.sentences import kept_of


@extend_schema_serializer(many=False)
class ProposalBody(serializers.Serializer[Any]):
    """A row of the declarative file's table, and why."""

    reason = serializers.CharField(help_text="stays on record; the second person reads it")


@extend_schema_serializer(many=False)
class ProposalRow(serializers.Serializer[Any]):
    state = serializers.ChoiceField(
        choices=["waiting", "in_force"], help_text="waiting: for a second person's word"
    )
    approval = serializers.UUIDField(allow_null=True, help_text="decide it at approvals/{id}/decide/")
    changes = serializers.ListField(child=serializers.CharField())
    changes_codes = SentenceRow(many=True)


@contextmanager
def usable() -> Iterator[None]:
    """What cannot be applied is a 422 that says where and why."""
    try:
        with refusals():
            yield
    except ConfigurationError as error:
        raise Problem(422, "bad_terms", str(error)) from None


def table_body(request: Request, kind: type[serializers.Serializer[Any]]) -> tuple[dict[str, Any], str]:
    """The body as sent (JSON's own types, checked against `kind`), and the reason apart."""
    body = checked_body(request, kind)
    row = {name: value for name, value in dict(request.data).items() if name != "reason"}
    return row, str(body.validated_data.get("reason", ""))


def proposed(request: Request, table: str, kind: type[serializers.Serializer[Any]]) -> Response:
    """Propose the body as a version: 202 while it waits, 201 where it is in force at once. Finance only."""
    if not access_of_user(request.user).is_finance:
        raise Problem(403, "not_allowed", "Your role may not do this.")
    row, reason = table_body(request, kind)
    with usable():
        made = propose(table, row, reason, actor_of(request))
    return answer(*made)


class EndBody(ProposalBody):
    ended_at = serializers.DateTimeField(
        help_text="RFC 3339 with an offset; a contract ends at a month's start"
    )


def end_proposed(request: Request, table: str, version_id: int) -> Response:
    """Propose the end of a version: 202 while it waits, 201 where it holds at once. Finance only."""
    if not access_of_user(request.user).is_finance:
        raise Problem(403, "not_allowed", "Your role may not do this.")
    body = checked_body(request, EndBody).validated_data
    with usable():
        made = propose_end(table, version_id, body["ended_at"], body["reason"], actor_of(request))
    return answer(*made)


def changes_row(changes: list[Sentence]) -> dict[str, Any]:
    return {"changes": [str(one) for one in changes], "changes_codes": kept_of(changes)}


def answer(approval: Approval | None, changes: list[Sentence]) -> Response:
    """202 while it waits, 201 where it is in force at once."""
    if approval is None:
        soon(recompute_open_months.delay)
        return Response({"state": "in_force", "approval": None, **changes_row(changes)}, status=201)
    return Response({"state": "waiting", "approval": str(approval.pk), **changes_row(changes)}, status=202)
