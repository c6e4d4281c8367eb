"""Changes of rates, policies and contracts: proposed by one person, in force once a second agrees (domain.md 8, 10)."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.utils import timezone

from billing.core import configuration as core
from billing.core.configuration import ALWAYS, Configuration, ConfigurationError
from billing.models import Approval, ApprovalKind
from billing.services.approvals import ApprovalError, request_approval
from billing.services.configuration import apply_tables
from ledger.core.periods import Month, to_ms
from ledger.models import Service
from ledger.services.audit import Actor
from ledger.services.masters import ensure_books

# Tables of the declarative file that say who pays what.
TERMS = ("rate_card", "pool_cost", "policy", "service", "contract", "calibration")


def propose(table: str, row: dict[str, Any], reason: str, by: Actor) -> tuple[Approval | None, list[str]]:
    """Propose one dated version, as a row of that table of the declarative file; returns what it would change.

    The approval is None where the ledger needs no second person: then it is in force already. A version whose
    `valid_from` has passed counts backwards: open months are computed again, closed ones get adjustments.

    Raises:
        ConfigurationError: it says nothing usable, or edits a version that has started.
        ApprovalError: `no_reason`; `no_change`: it is so already; `not_month_start`: a contract changes only there.
    """
    if table == "service":
        row = {**_service_as_it_stands(row["slug"]), **row}
    document = {table: [row]}
    valid_from = _valid_from(core.from_document(document), table)
    _check_month_start(table, valid_from)
    retroactive = valid_from <= timezone.now()
    changes = apply_tables(document, by=by, reason=reason, retroactive=retroactive, dry_run=True)
    if not changes:
        raise ApprovalError("no_change", "it is so already")
    payload = {"table": table, "row": row, "retroactive": retroactive, "changes": changes}
    return request_approval(ApprovalKind.TERMS, payload, reason, by, put_in_force), changes


def put_in_force(payload: dict[str, Any], approval: Approval | None, by: Actor, reason: str) -> None:
    """The deed: the version is added as it was proposed.

    Raises:
        ApprovalError: `outdated`: its day has come meanwhile, or something else stands there now.
    """
    document = {payload["table"]: [payload["row"]]}
    try:
        apply_tables(document, by=by, reason=reason, retroactive=payload["retroactive"])
    except ConfigurationError as error:
        raise ApprovalError("outdated", f"propose it again: {error}") from None


def _service_as_it_stands(slug: str) -> dict[str, Any]:
    """What a change of a service leaves as it is; empty for a new one."""
    service = Service.objects.select_related("pool", "owner__holder").filter(holder__slug=slug).first()
    if service is None:
        return {}
    stands = {
        "name": service.name,
        "pool": service.pool.slug if service.pool else "",
        "owner": service.owner.slug if service.owner else "platform",
    }
    policy = service.policies.order_by("-valid_from").first()
    if policy is not None:
        stands |= {"key": policy.key, "service_basis": policy.basis, "shares": policy.shares}
    return stands


def _valid_from(wanted: Configuration, table: str) -> datetime:
    instant: datetime = getattr(wanted, table)[0].valid_from
    return instant


def _check_month_start(table: str, valid_from: datetime) -> None:
    if table != "contract" or valid_from == ALWAYS:
        return
    zone = ensure_books().billing_time_zone
    instant_ms = to_ms(valid_from)
    if Month.containing(instant_ms, zone).span(zone).start_ms != instant_ms:
        raise ApprovalError(
            "not_month_start", f"a contract changes only at a month's start in {zone}, not at {valid_from}"
        )
