"""Accounts of people and their roles (interfaces.md, Roles): every change is one transaction with its audit entry."""

from __future__ import annotations

import secrets

from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from django.db import transaction

from ledger.access import access_of_user, may_give_token
from ledger.models import ApiToken, Membership, Role, Tenant, User
from ledger.services.audit import SYSTEM, Actor, record
from ledger.services.tokens import record_roles, revoke_token

# Names of the ledger itself in the audit trail: nobody signs in as one of them.
RESERVED = {SYSTEM, "sign-in", "create_api_token", "revoke_api_token"}
_PASSWORD_BYTES = 12


class UserError(ValueError):
    """It cannot be done to that account; `code` says why to programs."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@transaction.atomic
def create_user(name: str, by: Actor, *, email: str = "") -> tuple[User, str]:
    """A new account without a role, and a password that opens nothing but the choice of another.

    Raises:
        UserError: `bad_name`: not usable or taken; `bad_email`.
    """
    name = User.normalize_username(name.strip())
    is_taken = name.casefold() in RESERVED or User.objects.filter(username__iexact=name).exists()
    if is_taken or not _is_valid(name, email):
        raise UserError("bad_name", f"the name {name!r} cannot be used")
    user = User(username=name, email=email)
    password = _hand_over(user)
    record(by, "create_user", "user", name, after={"email": email})
    return user, password


def _is_valid(name: str, email: str) -> bool:
    field = User._meta.get_field("username")
    try:
        field.run_validators(name)
    except ValidationError:
        return False
    if email:
        try:
            validate_email(email)
        except ValidationError:
            raise UserError("bad_email", f"{email!r} is no e-mail address") from None
    return bool(name)


def _hand_over(user: User) -> str:
    password = secrets.token_urlsafe(_PASSWORD_BYTES)
    user.set_password(password)
    user.must_change_password = True
    user.save()
    return password


def role_names(user: User) -> list[str]:
    """Its roles as the audit trail writes them: `finance`, `tenant_viewer:acme`."""
    rows = user.memberships.values_list("role", "tenant__holder__slug")
    return [role if tenant is None else f"{role}:{tenant}" for role, tenant in rows]


@transaction.atomic
def give_role(user: User, role: Role, tenant: Tenant | None, by: Actor, reason: str = "") -> bool:
    """One more role, of a tenant or of the whole ledger; False if it has it.

    Raises:
        UserError: `oneself`; `outside`: an account of whoever runs the machine.
    """
    _locked(user, by)
    before = role_names(user)
    _membership, is_new = Membership.objects.get_or_create(user=user, role=role, tenant=tenant)
    record_roles(user, before, role_names(user), by, reason)
    return is_new


@transaction.atomic
def take_role(membership: Membership, by: Actor, reason: str = "") -> int:
    """One role less; also ends the tokens that its holder made and could not make any more. Returns how many.

    Raises:
        UserError: as for `give_role`.
    """
    user = _locked(membership.user, by)
    before = role_names(user)
    Membership.objects.filter(pk=membership.pk).delete()
    record_roles(user, before, role_names(user), by, reason)
    return end_tokens_beyond(user, by)


@transaction.atomic
def deactivate_user(user: User, by: Actor, reason: str = "") -> int:
    """It cannot sign in any more and is signed out; its tokens end with it, but those that only write events.

    Raises:
        UserError: as for `give_role`.
    """
    return end_tokens_beyond(user, by) if _set_active(user, False, by, reason) else 0


@transaction.atomic
def activate_user(user: User, by: Actor, reason: str = "") -> None:
    """It can sign in again, with the roles that it has.

    Raises:
        UserError: as for `give_role`.
    """
    _set_active(user, True, by, reason)


def _set_active(user: User, is_active: bool, by: Actor, reason: str) -> bool:
    """Whether that changed anything."""
    found = _locked(user, by)
    if found.is_active == is_active:
        return False
    found.is_active = is_active
    found.save(update_fields=["is_active"])
    action = "activate_user" if is_active else "deactivate_user"
    name, before, after = found.get_username(), {"active": not is_active}, {"active": is_active}
    record(by, action, "user", name, before=before, after=after, reason=reason)
    return True


@transaction.atomic
def reset_password(user: User, by: Actor) -> str:
    """A new password that opens nothing but the choice of another; whoever is signed in is signed out.

    Raises:
        UserError: as for `give_role`; `second_person`: finance approves what others in finance ask for, so none of
            them may come to sign in as another.
    """
    found = _locked(user, by)
    if found.memberships.filter(role=Role.FINANCE).exists():
        raise UserError("second_person", f"{found} is of finance")
    password = _hand_over(found)
    record(by, "reset_password", "user", found.get_username())
    return password


@transaction.atomic
def change_password(user: User, password: str, by: Actor) -> None:
    """A person's own choice, already validated."""
    user.set_password(password)
    user.must_change_password = False
    user.save(update_fields=["password", "must_change_password"])
    record(by, "change_password", "user", user.get_username())


def end_tokens_beyond(user: User, by: Actor) -> int:
    """End the tokens that a person made and may not make any more: they act in that person's name.

    Tokens that only write events act in nobody's name and stay.
    """
    # Not the cached answer: roles have just changed.
    access = access_of_user(User.objects.get(pk=user.pk))
    made = ApiToken.objects.filter(created_by=user, revoked_at=None).exclude(role=Role.INGEST)
    reason = f"{user.get_username()} may not have it any more"
    return sum(
        revoke_token(token, by, reason)
        for token in made.prefetch_related("tenants")
        if not may_give_token(access, token.role, {tenant.pk for tenant in token.tenants.all()})
    )


def _locked(user: User, by: Actor) -> User:
    found = User.objects.select_for_update().get(pk=user.pk)
    if found.get_username() == by.name:
        raise UserError("oneself", "nobody changes its own account here")
    if found.is_superuser or found.is_staff:
        raise UserError("outside", f"{found} is of whoever runs the machine")
    return found
