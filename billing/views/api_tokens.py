"""API tokens: what there is, a new one whose secret is shown once, and the end of one (interfaces.md, Roles)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponseBase, QueryDict
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from billing.views.audit import deeds_table
from ledger.access import Access, may_give_token
from ledger.models import ApiToken, AuditEntry, Role, Source, Tenant, User
from ledger.models.access import TENANT_ROLES
from ledger.selectors.people import (
    TOKEN_STATES,
    may_end_token,
    tenants_to_give,
    token_roles_to_give,
    token_state,
    tokens_for,
    tokens_in_state,
)
from ledger.services.audit import Actor
from ledger.services.tokens import create_api_token, revoke_token
from ledger.templatetags.figures import moment
from ledger.views.acting import ActingPage, Refused, text_of
from ledger.views.tables import CODE, INSTANT, TEXT_FILTER, Column, Filter, Table
from ledger.wording import ROLES

USUAL_DAYS, MOST_DAYS = 90, 3650
_STATES = {
    "in use": gettext_lazy("in use"),
    "expired": gettext_lazy("expired"),
    "revoked": gettext_lazy("revoked"),
}


def tokens_table(
    access: Access, rows: Callable[[], QuerySet[ApiToken]] | None = None, label: str = ""
) -> Table:
    return Table(
        "tokens",
        rows or (lambda: tokens_for(access)),
        [
            Column(
                "name",
                _("API token"),
                field="name",
                filter=TEXT_FILTER,
                link=lambda row: reverse("billing:token", args=[row.pk]),
            ),
            Column("prefix", _("Begins with"), CODE, field="prefix", filter=TEXT_FILTER),
            Column(
                "role",
                _("Role"),
                field="role",
                html=lambda row: ROLES[row.role],
                filter=Filter(lambda: [(role, ROLES[role]) for role in Role]),
            ),
            Column("for", _("For"), of=scope_of),
            Column("made_by", _("Made by"), of=_maker, field="created_by__username", filter=TEXT_FILTER),
            Column(
                "created_at",
                _("Created"),
                INSTANT,
                field="created_at",
                html=lambda row: moment(row.created_at),
            ),
            Column(
                "expires_at",
                _("Expires"),
                INSTANT,
                field="expires_at",
                html=lambda row: moment(row.expires_at) if row.expires_at else _("never"),
            ),
            Column(
                "last_used_at",
                _("Last used"),
                INSTANT,
                field="last_used_at",
                html=lambda row: moment(row.last_used_at),
            ),
            Column(
                "state",
                _("State"),
                of=token_state,
                html=state_shown,
                filter=Filter(
                    lambda: [(state, _STATES[state]) for state in TOKEN_STATES], where=tokens_in_state
                ),
            ),
        ],
        label=label or _("API tokens"),
        empty=_("No token yet. A program that reads bills or sends events needs one."),
    )


def scope_of(token: ApiToken) -> str:
    """The tenants or the sources it is for; empty: the whole ledger."""
    tenants = sorted(tenant.slug for tenant in token.tenants.all())
    return " ".join(tenants or sorted(source.name or source.uri for source in token.sources.all()))


def _maker(token: ApiToken) -> str:
    return token.created_by.get_username() if token.created_by is not None else ""


def state_shown(token: ApiToken) -> Any:
    state = token_state(token)
    return format_html(
        '<span class="state{}">{}</span>', " firm" if state == "in use" else "", _STATES[state]
    )


def token_form(access: Access, tenants: list[Tenant]) -> dict[str, Any]:
    """What the form for a new token offers."""
    roles = token_roles_to_give(access)
    return {
        "token_roles": [(role, ROLES[role]) for role in roles],
        "token_tenants": tenants if set(roles) & set(TENANT_ROLES) else [],
        "token_sources": list(Source.objects.exclude(name=None).order_by("name"))
        if Role.INGEST in roles
        else [],
        "usual_days": USUAL_DAYS,
    }


def create_from_form(form: QueryDict, access: Access, maker: Any, by: Actor) -> tuple[ApiToken, str]:
    """A token and its secret; never one that may do more than its maker.

    Raises:
        Refused
    """
    name = text_of(form, "name", 101)
    if not name or len(name) > 100:
        raise Refused(_("Say what the token is for, in at most 100 characters."))
    role = next((one for one in token_roles_to_give(access) if one == form.get("role")), None)
    if role is None:
        raise Refused(_("Choose a role."))
    tenants, sources = _tenants_of(form, access, role), _sources_of(form, role)
    if not may_give_token(access, role, {tenant.pk for tenant in tenants}):
        raise PermissionDenied
    if tokens_in_state(tokens_for(access), "in use").filter(name=name).exists():
        raise Refused(_("A token in use has that name already. Revoke it first, or choose another name."))
    return create_api_token(
        name,
        role,
        tenants=tenants,
        sources=sources,
        expires_at=timezone.now() + timedelta(days=_days_of(form)),
        created_by=maker if isinstance(maker, User) else None,
        by=by,
    )


def _tenants_of(form: QueryDict, access: Access, role: Role) -> list[Tenant]:
    wanted = set(form.getlist("tenants"))
    if role not in TENANT_ROLES:
        if wanted:
            raise Refused(_("Tenants go with the roles of a tenant only."))
        return []
    tenants = [tenant for tenant in tenants_to_give(access) if tenant.slug in wanted]
    if not wanted or len(tenants) != len(wanted):
        raise Refused(_("Choose a tenant: this role is of one."))
    return tenants


def _sources_of(form: QueryDict, role: Role) -> list[Source]:
    wanted = set(form.getlist("sources"))
    if role != Role.INGEST:
        if wanted:
            raise Refused(_("Sources go with the role ingest only."))
        return []
    sources = list(Source.objects.filter(name__in=wanted))
    if len(sources) != len(set(form.getlist("sources"))):
        raise Refused(_("There is no such source; look again."))
    return sources


def _days_of(form: QueryDict) -> int:
    text = text_of(form, "days", 10)
    days = int(text) if text.isascii() and text.isdigit() else 0
    if not 1 <= days <= MOST_DAYS:
        raise Refused(_("A token holds for 1 to 3650 days."))
    return days


class TokenPage(ActingPage):
    """One token: what it may do, who made it, when it was last used, and its end."""

    template = "billing/token.html"
    allows = staticmethod(lambda access: access.sees_people)

    def get(self, request: HttpRequest, **kwargs: Any) -> HttpResponseBase:
        self.token = self._token(kwargs["token_id"])
        return super().get(request, **kwargs)

    def _token(self, token_id: int) -> ApiToken:
        token = tokens_for(self.access).filter(pk=token_id).first()
        if token is None:
            raise Http404
        return token

    def may_act(self) -> bool:
        return bool(token_roles_to_give(self.access))

    def tables(self, token_id: int) -> list[Table]:
        prefix = self.token.prefix
        entries = AuditEntry.objects.filter(object_type="api_token", object_id=prefix)
        by_it = AuditEntry.objects.filter(actor=f"token:{self.token.name}")
        return (
            [deeds_table(lambda: (entries | by_it).order_by("-pk"))] if self.access.sees_all_tenants else []
        )

    def context(self, token_id: int) -> dict[str, Any]:
        token = self.token
        return {
            "token": token,
            "role": ROLES[token.role],
            "scope": scope_of(token),
            "state": state_shown(token),
            "is_in_use": token.revoked_at is None,
            "may_end": may_end_token(self.access, token),
        }

    def do(self, form: QueryDict, by: Actor, **kwargs: Any) -> str:
        token = self._token(kwargs["token_id"])
        if form.get("deed") != "revoke":
            raise Http404
        if not may_end_token(self.access, token):
            raise PermissionDenied
        if not revoke_token(token, by, text_of(form, "reason")):
            raise Refused(_("It is revoked already."))
        return _("The token %(name)s opens nothing any more.") % {"name": token.name}
