"""OpenID Connect: who the identity provider says somebody is, and which roles its groups give.

The protocol is mozilla-django-oidc's; here is only what this ledger means by it. People are recognised by a claim
that the provider never reassigns and the person cannot edit (`sub` by default), never by an unverified e-mail address.
"""

from __future__ import annotations

import logging
from typing import Any

from django.conf import settings
from django.core.exceptions import SuspiciousOperation
from django.db import transaction
from django.db.models import QuerySet
from mozilla_django_oidc.auth import OIDCAuthenticationBackend
from requests import RequestException

from ledger.models import Membership, Role, Tenant, User
from ledger.models.access import TENANT_ROLES
from ledger.services.audit import Actor, record
from ledger.services.tokens import record_roles
from ledger.services.users import end_tokens_beyond, role_names

logger = logging.getLogger(__name__)


class OpenIdBackend(OIDCAuthenticationBackend):  # type: ignore[misc]
    """Finds or makes the user of a verified token, and brings its roles up to date where groups give them."""

    def authenticate(self, request: Any, **kwargs: Any) -> Any:
        if not settings.OIDC_RP_CLIENT_ID:
            return None
        try:
            return super().authenticate(request, **kwargs)
        except (RequestException, SuspiciousOperation, ValueError) as error:
            # The provider is away, or refused, or said what does not fit: nobody is let in, and no page breaks.
            logger.warning("OpenID Connect refused: %s", type(error).__name__)
            return None

    def verify_claims(self, claims: dict[str, Any]) -> bool:
        return bool(_name(claims))

    def filter_users_by_claims(self, claims: dict[str, Any]) -> QuerySet[User]:
        return User.objects.filter(username=_name(claims))

    @transaction.atomic
    def create_user(self, claims: dict[str, Any]) -> User:
        user = User(username=_name(claims), email=str(claims.get("email", ""))[:254])
        user.set_unusable_password()
        user.save()
        record(Actor("sign-in"), "create_user", "user", user.get_username())
        return self.update_user(user, claims)

    @transaction.atomic
    def update_user(self, user: User, claims: dict[str, Any]) -> User:
        """Whoever made the account here may know its password: from now on only the provider opens it."""
        if user.has_usable_password() or user.must_change_password:
            user.set_unusable_password()
            user.must_change_password = False
            user.save(update_fields=["password", "must_change_password"])
        if settings.OIDC_ROLES:  # otherwise people are given roles here
            _give_roles(user, _roles(claims.get(settings.OIDC_GROUPS_CLAIM) or []))
        return user


def _name(claims: dict[str, Any]) -> str:
    value = claims.get(settings.OIDC_USERNAME_CLAIM)
    return value[:150] if isinstance(value, str) else ""


def _roles(groups: Any) -> set[tuple[str, str]]:
    """(role, tenant or "") of everything that the groups give."""
    named = {groups} if isinstance(groups, str) else {group for group in groups if isinstance(group, str)}
    given = [settings.OIDC_ROLES[group] for group in named & settings.OIDC_ROLES.keys()]
    return {(role, tenant) for role, _, tenant in (text.partition(":") for text in given)}


def _give_roles(user: User, roles: set[tuple[str, str]]) -> None:
    """Exactly these: who leaves a group loses at the next sign-in what it gave."""
    tenants = {
        tenant.slug: tenant for tenant in Tenant.objects.filter(holder__slug__in={slug for _, slug in roles})
    }
    wanted = {
        (role, tenants[slug].pk if slug else None)
        for role, slug in roles
        if role in Role.values and (slug in tenants if role in TENANT_ROLES else not slug)
    }
    kept = set()
    before = role_names(user)
    for membership in user.memberships.all():
        key = (membership.role, membership.tenant_id)
        if key in wanted:
            kept.add(key)
        else:
            membership.delete()
    Membership.objects.bulk_create(
        Membership(user=user, role=role, tenant_id=tenant) for role, tenant in sorted(wanted - kept, key=str)
    )
    by = Actor("sign-in")
    record_roles(user, before, role_names(user), by)
    end_tokens_beyond(user, by)
