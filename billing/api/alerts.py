"""`alerts/` with acknowledge and resolve, `alert-rules/`, `alert-subscriptions/`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar
from uuid import UUID

from django.db.models import QuerySet
from django.http import Http404
from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from billing.api.actors import actor_of
from billing.api.questions import filters_of
from billing.models import Alert, AlertKind, AlertRule, AlertState, Channel, Severity
from billing.selectors.alerts import (
    alert_row,
    alerts_for,
    may_act_on,
    may_change_rules,
    rule_row,
    rules_for,
    subscription_row,
    subscriptions_for,
)
from billing.services.alert_settings import (
    change_rule,
    change_subscription,
    create_rule,
    create_subscription,
)
from billing.services.alerts import AlertError, acknowledge_alert, resolve_alert
from ledger.access import Access
from ledger.api.bodies import body_of
from ledger.api.parameters import some_of
from ledger.api.problems import Problem
from ledger.api.views import LedgerView, ListView
from ledger.core.units import parse_micro
from ledger.models import Holder, Pool, Tenant
from ledger.services.audit import Actor

FILTERS = {
    "state": "state",
    "kind": "kind",
    "severity": "severity",
    "rule": "rule__name",
    "pool": "pool__slug",
    "tenant": "tenant__holder__slug",
}
CHOICES = {"state": AlertState.values, "kind": AlertKind.values, "severity": Severity.values}


class FigureRow(serializers.Serializer[Any]):
    value = serializers.CharField()
    unit = serializers.CharField()


class AlertRow(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    kind = serializers.ChoiceField(choices=AlertKind.choices)
    severity = serializers.ChoiceField(choices=Severity.choices)
    state = serializers.ChoiceField(choices=AlertState.choices)
    rule = serializers.CharField()
    subject = serializers.CharField(help_text="names what it is about within its rule")
    pool = serializers.CharField(allow_null=True)
    tenant = serializers.CharField(allow_null=True)
    started_at = serializers.DateTimeField(help_text="since when it holds, by the facts")
    opened_at = serializers.DateTimeField(help_text="when it had held as long as the rule asks")
    recorded_at = serializers.DateTimeField(help_text="when the ledger knew")
    last_seen_at = serializers.DateTimeField()
    resolved_at = serializers.DateTimeField(allow_null=True)
    acknowledged_at = serializers.DateTimeField(allow_null=True)
    acknowledged_by = serializers.CharField()
    resolved_by = serializers.CharField(help_text="empty: the condition ended")
    note = serializers.CharField()
    evidence = serializers.DictField(child=FigureRow())
    link = serializers.CharField(help_text="its page")


class ReasonBody(serializers.Serializer[Any]):
    reason = serializers.CharField(max_length=1000)


class RuleRow(serializers.Serializer[Any]):
    name = serializers.CharField()
    kind = serializers.ChoiceField(choices=AlertKind.choices)
    pool = serializers.CharField(allow_null=True)
    tenant = serializers.CharField(allow_null=True)
    threshold = serializers.CharField(help_text="decimal, in the unit of the kind")
    lasting_s = serializers.IntegerField()
    severity = serializers.ChoiceField(choices=Severity.choices)
    enabled = serializers.BooleanField()


class RuleChange(serializers.Serializer[Any]):
    threshold = serializers.CharField(required=False, max_length=40)
    lasting_s = serializers.IntegerField(required=False, min_value=0, max_value=400 * 86_400)
    severity = serializers.ChoiceField(required=False, choices=Severity.choices)
    enabled = serializers.BooleanField(required=False)


class RuleBody(RuleChange):
    name = serializers.RegexField(r"^[\w .:-]+$", max_length=100)
    kind = serializers.ChoiceField(choices=AlertKind.choices)
    pool = serializers.CharField(required=False, allow_null=True)
    tenant = serializers.CharField(required=False, allow_null=True)


class SubscriptionRow(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    name = serializers.CharField()
    tenant = serializers.CharField(allow_null=True)
    channel = serializers.ChoiceField(choices=Channel.choices)
    host = serializers.CharField(help_text="of the address, which itself is never shown")
    addresses = serializers.ListField(child=serializers.CharField())
    has_secret = serializers.BooleanField()
    kinds = serializers.ListField(child=serializers.CharField())
    min_severity = serializers.ChoiceField(choices=Severity.choices)
    language = serializers.CharField()
    enabled = serializers.BooleanField()


class SubscriptionChange(serializers.Serializer[Any]):
    url = serializers.CharField(required=False, max_length=500, write_only=True)
    secret = serializers.CharField(required=False, max_length=200, allow_blank=True, write_only=True)
    addresses = serializers.ListField(
        child=serializers.CharField(max_length=254), required=False, max_length=20
    )
    kinds = serializers.ListField(child=serializers.ChoiceField(choices=AlertKind.choices), required=False)
    min_severity = serializers.ChoiceField(required=False, choices=Severity.choices)
    language = serializers.ChoiceField(required=False, choices=["en", "zh-hans"])
    enabled = serializers.BooleanField(required=False)


class SubscriptionBody(SubscriptionChange):
    name = serializers.CharField(max_length=100)
    channel = serializers.ChoiceField(choices=Channel.choices)
    tenant = serializers.CharField(
        required=False, allow_null=True, help_text="of what this tenant sees; a tenant's admin has to name it"
    )


@contextmanager
def _refusals() -> Iterator[None]:
    """What a service refuses: 409 where the state is in the way, 422 where the body is."""
    try:
        yield
    except AlertError as error:
        status = 409 if error.code in ("resolved", "acknowledged", "exists") else 422
        raise Problem(status, error.code, str(error)) from None


class AlertsView(ListView):
    """Alerts, newest first; a tenant sees its own and those of pools that it reserves in."""

    parameters = frozenset(FILTERS)
    orderings = frozenset({"opened_at", "started_at", "resolved_at"})
    default_ordering = "-opened_at"

    @extend_schema(
        operation_id="alerts_list",
        parameters=[
            OpenApiParameter(
                name,
                str,
                pattern=some_of(CHOICES[name]) if name in CHOICES else None,
                description="only these, comma-separated",
            )
            for name in FILTERS
        ],
        responses=AlertRow(many=True),
    )
    def get(self, request: Request) -> Response:
        rows: QuerySet[Alert] = alerts_for(self.access)
        for name, values in filters_of(request, tuple(FILTERS)).items():
            rows = rows.filter(**{f"{FILTERS[name]}__in": values})
        field, descending = self.ordering()
        rows = rows.order_by(f"{'-' if descending else ''}{field}", "pk")
        return self.page_of(rows, alert_row, also=(AlertRule, Pool, Tenant, Holder))


class AlertView(LedgerView):
    """One alert."""

    @extend_schema(operation_id="alerts_read", responses=AlertRow)
    def get(self, request: Request, alert_id: UUID) -> Response:
        return Response(alert_row(_alert(self.access, alert_id)))


def _alert(access: Access, alert_id: UUID) -> Alert:
    alert = alerts_for(access).filter(pk=alert_id).first()
    if alert is None:
        raise Http404
    return alert


class _ActView(LedgerView):
    """Somebody acts on an alert that it sees: platform and finance on any, a tenant's admin on its own."""

    examples = {"post": {"reason": "node 7 is being replaced"}}

    def act(
        self, request: Request, alert_id: UUID, deed: Callable[[UUID, str, Actor, Any], Alert]
    ) -> Response:
        alert = _alert(self.access, alert_id)
        if not may_act_on(alert, self.access):
            raise Problem(403, "not_allowed", "Your role may not do this.")
        reason = body_of(request, ReasonBody)["reason"]
        with _refusals():
            deed(alert.pk, reason, actor_of(request), timezone.now())
        return Response(alert_row(_alert(self.access, alert_id)))


class AlertAcknowledgeView(_ActView):
    """Somebody is at it: the alert stays, and says who."""

    @extend_schema(operation_id="alerts_acknowledge", request=ReasonBody, responses=AlertRow)
    def post(self, request: Request, alert_id: UUID) -> Response:
        return self.act(request, alert_id, acknowledge_alert)


class AlertResolveView(_ActView):
    """Settled; it opens again once its condition has not held and holds again."""

    @extend_schema(operation_id="alerts_resolve", request=ReasonBody, responses=AlertRow)
    def post(self, request: Request, alert_id: UUID) -> Response:
        return self.act(request, alert_id, resolve_alert)


def _rule_values(body: dict[str, Any]) -> dict[str, Any]:
    values = dict(body)
    if "threshold" in values:
        try:
            values["threshold_micro"] = parse_micro(values.pop("threshold"))
        except ValueError as error:
            raise Problem(422, "bad_threshold", str(error), parameter="threshold") from None
    if "pool" in values:
        values["pool"] = _named(Pool.objects.filter(slug=values["pool"]), values["pool"], "pool")
    if "tenant" in values:
        rows = Tenant.objects.filter(holder__slug=values["tenant"])
        values["tenant"] = _named(rows, values["tenant"], "tenant")
    return values


def _named(rows: QuerySet[Any], slug: str | None, what: str) -> Any:
    found = rows.first() if slug is not None else None
    if slug is not None and found is None:
        raise Problem(422, f"unknown_{what}", f"There is no such {what}.", parameter=what)
    return found


class _RulesView(ListView):
    def need_rights(self) -> None:
        if not may_change_rules(self.access):
            raise Problem(403, "not_allowed", "Your role may not do this.")


class AlertRulesView(_RulesView):
    """What is looked for. Platform and finance may add rules."""

    examples = {
        "post": {
            "name": "short of H100",
            "kind": "shortage",
            "pool": "bj-h100",
            "threshold": "4",
            "lasting_s": 300,
            "severity": "critical",
        }
    }

    orderings: ClassVar[frozenset[str]] = frozenset({"name"})
    default_ordering = "name"

    @extend_schema(operation_id="alert_rules_list", responses=RuleRow(many=True))
    def get(self, request: Request) -> Response:
        rows = rules_for(self.access).order_by(f"{'-' if self.ordering()[1] else ''}name")
        return self.page_of(rows, rule_row, also=(Pool, Tenant, Holder))

    @extend_schema(operation_id="alert_rules_create", request=RuleBody, responses={201: RuleRow})
    def post(self, request: Request) -> Response:
        self.need_rights()
        with _refusals():
            rule = create_rule(_rule_values(body_of(request, RuleBody)), actor_of(request))
        return Response(rule_row(rule), status=201)


class AlertRuleView(_RulesView):
    """Change a rule, or switch it off and on."""

    examples = {"patch": {"threshold": "8", "enabled": True}}

    @extend_schema(operation_id="alert_rules_change", request=RuleChange, responses=RuleRow)
    def patch(self, request: Request, name: str) -> Response:
        self.need_rights()
        rule = rules_for(self.access).filter(name=name).first()
        if rule is None:
            raise Http404
        change_rule(rule, _rule_values(body_of(request, RuleChange)), actor_of(request))
        return Response(rule_row(rule))


class AlertSubscriptionsView(ListView):
    """Who is told. The ledger's own by platform and finance, a tenant's by its admins; addresses are write-only."""

    examples = {
        "post": {
            "name": "on call",
            "channel": "webhook",
            "url": "https://hooks.example.com/gpu",
            "min_severity": "warning",
            "tenant": "acme",
        }
    }

    orderings: ClassVar[frozenset[str]] = frozenset({"name"})
    default_ordering = "name"

    @extend_schema(operation_id="alert_subscriptions_list", responses=SubscriptionRow(many=True))
    def get(self, request: Request) -> Response:
        rows = subscriptions_for(self.access)
        rows = rows.order_by(f"{'-' if self.ordering()[1] else ''}name", "pk")
        return self.page_of(rows, subscription_row, also=(Tenant, Holder))

    @extend_schema(
        operation_id="alert_subscriptions_create", request=SubscriptionBody, responses={201: SubscriptionRow}
    )
    def post(self, request: Request) -> Response:
        if not may_change_rules(self.access) and not self.access.admin_of:
            raise Problem(403, "not_allowed", "Your role may not do this.")
        values = body_of(request, SubscriptionBody)
        rows = Tenant.objects.filter(holder__slug=values.get("tenant"))
        if not may_change_rules(self.access):
            rows = rows.filter(pk__in=self.access.admin_of)
            if values.get("tenant") is None:
                raise Problem(422, "missing_tenant", "Name the tenant.", parameter="tenant")
        values["tenant"] = _named(rows, values.get("tenant"), "tenant")
        with _refusals():
            one = create_subscription(values, actor_of(request))
        return Response(subscription_row(one), status=201)


class AlertSubscriptionView(LedgerView):
    """Change a subscription, or switch it off and on."""

    examples = {"patch": {"min_severity": "critical", "enabled": False}}

    @extend_schema(
        operation_id="alert_subscriptions_change", request=SubscriptionChange, responses=SubscriptionRow
    )
    def patch(self, request: Request, subscription_id: UUID) -> Response:
        one = subscriptions_for(self.access).filter(pk=subscription_id).first()
        if one is None:
            raise Http404
        if not may_change_rules(self.access) and one.tenant_id not in self.access.admin_of:
            raise Problem(403, "not_allowed", "Your role may not do this.")
        with _refusals():
            change_subscription(one, body_of(request, SubscriptionChange), actor_of(request))
        return Response(subscription_row(one))
