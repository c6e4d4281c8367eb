"""Users with their roles: who there is, a new one, and what can be done to one (interfaces.md, Roles)."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponseBase, QueryDict
from django.urls import reverse
from django.utils.functional import cached_property
from django.utils.html import format_html_join
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from billing.services.approvals import ApprovalError
from billing.services.grants import ask_for_finance
from billing.views.api_tokens import create_from_form, token_form, tokens_table
from billing.views.audit import deeds_table
from billing.views.closing_words import refusal
from ledger.access import Access
from ledger.models import ApiToken, AuditEntry, Role, Tenant, User
from ledger.models.access import TENANT_ROLES
from ledger.selectors.people import (
    may_manage,
    may_take,
    roles_to_give,
    tenants_to_give,
    tokens_for,
    users_for,
    users_with,
)
from ledger.services.audit import Actor
from ledger.services.users import (
    UserError,
    activate_user,
    create_user,
    deactivate_user,
    give_role,
    reset_password,
    take_role,
)
from ledger.templatetags.figures import moment
from ledger.views.acting import ActingPage, Refused, text_of
from ledger.views.tables import INSTANT, TEXT_FILTER, Column, Filter, Table, words
from ledger.wording import ROLES

USER_PROBLEMS = {
    "bad_name": gettext_lazy(
        "That name cannot be used. Letters, digits and @ . + - _ can; if it has only those, choose another."
    ),
    "bad_email": gettext_lazy("That is no e-mail address."),
    "oneself": gettext_lazy("Nobody changes its own roles or account here: ask somebody else who may."),
    "outside": gettext_lazy("This account is of whoever runs the machine; it is changed there."),
    "second_person": gettext_lazy(
        "Whoever is of finance approves what others in finance ask for, so none of them sets its password. "
        "Whoever runs the machine does: manage.py changepassword."
    ),
}
USER_STATES = {
    "active": gettext_lazy("active"),
    "new": gettext_lazy("has to choose a password"),
    "ended": gettext_lazy("cannot sign in"),
}


class _PeoplePage(ActingPage):
    allows = staticmethod(lambda access: access.sees_people)
    refused = (UserError, ApprovalError)
    # What is shown once, in the answer to the form: what it is, whose, and itself.
    secret: dict[str, str] | None = None

    def may_act(self) -> bool:
        return self.access.manages_people or self.access.is_platform

    def words_for(self, error: Exception) -> str:
        code = getattr(error, "code", "")
        return str(USER_PROBLEMS[code]) if code in USER_PROBLEMS else refusal(error)

    def show_once(self, what: str, whose: str, secret: str, **kwargs: Any) -> HttpResponseBase:
        """The page with a secret that no address leads to again."""
        self.secret = {"what": what, "whose": whose, "text": secret}
        response = self.get(self.request, **kwargs)
        response["Cache-Control"] = "no-store"
        return response

    def give(self, user: User, role: Role, tenant: Tenant | None, by: Actor, reason: str) -> str:
        """A role, at once or, for finance, once a second person agrees; says what was done."""
        names = {"who": user.get_username(), "role": role_words(role, tenant)}
        if role == Role.FINANCE:
            if ask_for_finance(user, reason, by) is not None:
                return _("It is asked for: a second person in finance decides in the settings.")
        elif not give_role(user, role, tenant, by, reason):
            return _("It was so already: %(who)s is %(role)s.") % names
        return _("%(who)s is now %(role)s.") % names


def role_words(role: str, tenant: Tenant | None) -> str:
    name = str(ROLES[role])
    return name if tenant is None else f"{name} · {tenant.slug}"


def _role_of(form: QueryDict, access: Access) -> tuple[Role, Tenant | None]:
    """The role asked for, of the tenant asked for; what the asker may not give is no choice."""
    role = next((one for one in roles_to_give(access) if one == form.get("role")), None)
    if role is None:
        raise Refused(_("Choose a role."))
    if role not in TENANT_ROLES:
        return role, None
    slug = text_of(form, "tenant")
    tenant = next((one for one in tenants_to_give(access) if one.slug == slug), None)
    if tenant is None:
        raise Refused(_("Choose a tenant: this role is of one."))
    return role, tenant


class UsersPage(_PeoplePage):
    """Everybody whom the asker may know of, the tokens, and a form for a new one of each."""

    template = "billing/users.html"

    def tables(self) -> list[Table]:
        return [users_table(self.access), tokens_table(self.access)]

    def context(self) -> dict[str, Any]:
        tenants = tenants_to_give(self.access)
        return {
            "secret": self.secret,
            "roles": [(role, ROLES[role]) for role in roles_to_give(self.access)],
            "tenants": tenants,
            "manages_people": self.access.manages_people,
            **token_form(self.access, tenants),
        }

    def do(self, form: QueryDict, by: Actor, **_kwargs: Any) -> str | HttpResponseBase:
        if form.get("deed") == "token":
            token, secret = create_from_form(form, self.access, self.request.user, by)
            return self.show_once("token", token.name, secret)
        if form.get("deed") != "user":
            raise Http404
        if not self.access.manages_people:
            raise PermissionDenied
        role, tenant = _role_of(form, self.access)
        with transaction.atomic():
            name, email = text_of(form, "name", 151), text_of(form, "email", 254)
            user, password = create_user(name, by, email=email)
            self.give(user, role, tenant, by, text_of(form, "reason"))
        return self.show_once("password", user.get_username(), password)


def users_table(access: Access) -> Table:
    def with_role(rows: QuerySet[Any], role: str) -> QuerySet[Any]:
        return users_with(rows, access, Q(role=role))

    def of_tenant(rows: QuerySet[Any], slug: str) -> QuerySet[Any]:
        return users_with(rows, access, Q(tenant__holder__slug__icontains=slug))

    return Table(
        "users",
        lambda: users_for(access),
        [
            Column(
                "user",
                _("User"),
                of="username",
                field="username",
                filter=TEXT_FILTER,
                link=lambda row: reverse("billing:user", args=[row.pk]),
            ),
            Column("email", _("E-mail"), field="email", filter=TEXT_FILTER),
            Column(
                "roles",
                _("Roles"),
                of=_roles_text,
                html=_roles_shown,
                filter=Filter(lambda: [(role, ROLES[role]) for role in Role], where=with_role),
            ),
            Column(
                "tenant",
                _("Tenant"),
                of=_tenants_text,
                on_page=False,
                filter=Filter(where=of_tenant),
            ),
            Column(
                "state",
                _("State"),
                words(USER_STATES.__getitem__),
                of=user_state,
                filter=Filter(lambda: list(USER_STATES.items()), where=_in_state),
            ),
            Column(
                "last_sign_in",
                _("Last sign-in"),
                INSTANT,
                of="last_login",
                field="last_login",
                html=lambda row: moment(row.last_login),
            ),
            Column(
                "since",
                _("Since"),
                INSTANT,
                of="date_joined",
                field="date_joined",
                html=lambda row: moment(row.date_joined),
            ),
        ],
        label=_("Users"),
        empty=_("Nobody has a role here yet."),
    )


def _roles_text(user: User) -> str:
    return " ".join(
        one.role if one.tenant is None else f"{one.role}:{one.tenant.slug}" for one in user.memberships.all()
    )


def _tenants_text(user: User) -> str:
    return " ".join(one.tenant.slug for one in user.memberships.all() if one.tenant is not None)


def _roles_shown(user: User) -> Any:
    shown = [(role_words(one.role, one.tenant),) for one in user.memberships.all()]
    return format_html_join("; ", "{}", shown) or "—"


def user_state(user: User) -> str:
    if not user.is_active:
        return "ended"
    return "new" if user.must_change_password else "active"


def _in_state(rows: QuerySet[Any], state: str) -> QuerySet[Any]:
    if state == "ended":
        return rows.filter(is_active=False)
    return rows.filter(is_active=True, must_change_password=state == "new")


class UserPage(_PeoplePage):
    """One account: its roles, what it did and what was done to it, the tokens it made, and forms for the rest."""

    template = "billing/user.html"

    def get(self, request: HttpRequest, **kwargs: Any) -> HttpResponseBase:
        self.user = self._user(kwargs["user_id"])
        return super().get(request, **kwargs)

    def may_act(self) -> bool:
        return self.access.manages_people

    def _user(self, user_id: int) -> User:
        user = users_for(self.access).filter(pk=user_id).first()
        if user is None:
            raise Http404
        return user

    @cached_property
    def made(self) -> QuerySet[ApiToken]:
        return tokens_for(self.access).filter(created_by=self.user)

    def tables(self, user_id: int) -> list[Table]:
        tables = [tokens_table(self.access, lambda: self.made, _("Tokens that it made"))]
        if self.access.sees_all_tenants:  # the trail names tenants
            name = self.user.get_username()
            entries = AuditEntry.objects.filter(Q(object_type="user", object_id=name) | Q(actor=name))
            tables.append(deeds_table(lambda: entries.order_by("-pk")))
        return tables

    def context(self, user_id: int) -> dict[str, Any]:
        acts = self.may_act()
        return {
            "secret": self.secret,
            "shown": self.user,
            "state": user_state(self.user),
            "state_words": USER_STATES[user_state(self.user)],
            "has_password": self.user.has_usable_password(),
            "memberships": [
                (one, role_words(one.role, one.tenant), acts and may_take(self.access, one))
                for one in self.user.memberships.all()
            ],
            "is_oneself": self.user.pk == self.request.user.pk,
            "roles": [(role, ROLES[role]) for role in roles_to_give(self.access)] if acts else [],
            "tenants": tenants_to_give(self.access) if acts else [],
            "manages": acts and may_manage(self.access, self.user),
        }

    def do(self, form: QueryDict, by: Actor, **kwargs: Any) -> str | HttpResponseBase:
        user, reason = self._user(kwargs["user_id"]), text_of(form, "reason")
        deed = form.get("deed", "")
        if deed == "give":
            role, tenant = _role_of(form, self.access)
            return self.give(user, role, tenant, by, reason)
        if deed == "take":
            return self._take(user, form, by, reason)
        if deed not in ("end", "open", "password"):
            raise Http404
        if not may_manage(self.access, user):
            raise PermissionDenied
        name = user.get_username()
        if deed == "password":
            return self.show_once("password", name, reset_password(user, by), **kwargs)
        if deed == "open":
            activate_user(user, by, reason)
            return _("%(who)s can sign in again.") % {"who": name}
        count = deactivate_user(user, by, reason)
        ended = _("%(who)s cannot sign in any more; tokens ended with the account: %(count)s.")
        return ended % {"who": name, "count": count}

    def _take(self, user: User, form: QueryDict, by: Actor, reason: str) -> str:
        wanted = form.get("membership", "")
        found = next((one for one in user.memberships.all() if str(one.pk) == wanted), None)
        if found is None:
            raise Refused(_("That role is gone already; look again."))
        if not may_take(self.access, found):
            raise PermissionDenied
        count = take_role(found, by, reason)
        names = {"who": user.get_username(), "role": role_words(found.role, found.tenant), "count": count}
        return _("%(who)s is no longer %(role)s; tokens ended with that: %(count)s.") % names

    def way_back(self) -> str:
        """Whoever took the last role that it may know of does not see the account any more."""
        if users_for(self.access).filter(pk=self.kwargs["user_id"]).exists():
            return super().way_back()
        return reverse("billing:users")
