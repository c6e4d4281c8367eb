"""The role of finance: whoever has it approves what others in finance ask for, so a second person gives it."""

from __future__ import annotations

from typing import Any

from billing.core.sentences import sentence
from billing.models import Approval, ApprovalKind
from billing.services.approvals import ApprovalError, request_approval
from ledger.models import Role, User
from ledger.services.audit import Actor
from ledger.services.users import UserError, give_role


def ask_for_finance(user: User, reason: str, by: Actor) -> Approval | None:
    """Ask for a second person's word; None where the ledger needs none: the role is given then.

    Raises:
        ApprovalError: `no_reason`; `no_change`: it is of finance already; `outdated`: as for `give_finance`.
    """
    name = user.get_username()
    if user.memberships.filter(role=Role.FINANCE).exists():
        raise ApprovalError("no_change", f"{name} is of finance already")
    payload = {
        "user": name,
        "role": str(Role.FINANCE),
        "changes": [sentence("role_given", name=name, role=str(Role.FINANCE)).kept()],
    }
    return request_approval(ApprovalKind.ACCESS, payload, reason, by, give_finance)


def give_finance(payload: dict[str, Any], approval: Approval | None, by: Actor, reason: str) -> None:
    """The deed: the role is given as it was asked for.

    Raises:
        ApprovalError: `outdated`: there is no such account any more, or it is not one to give roles to.
    """
    user = User.objects.filter(username=payload["user"], is_active=True).first()
    if user is None:
        told = sentence("no_active_account", value=payload["user"])
        raise ApprovalError("outdated", str(told), told)
    try:
        give_role(user, Role(payload["role"]), None, by, reason)
    except UserError as error:
        told = sentence("role_not_given", value=payload["user"])
        raise ApprovalError("outdated", str(error), told) from None
