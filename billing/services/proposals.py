"""Changes of rates, policies and contracts: proposed by one person, in force once a second agrees (domain.md 8, 10)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import transaction
from django.utils import timezone

from billing.core import configuration as core
from billing.core.configuration import ALWAYS, Configuration, ConfigurationError
from billing.core.sentences import Sentence, sentence
from billing.models import (
    Approval,
    ApprovalKind,
    Calibration,
    Contract,
    Policy,
    PoolCost,
    RateCard,
    ServicePolicy,
)
from billing.services.approvals import ApprovalError, request_approval
from billing.services.configuration import apply_tables
from billing.services.configuration_rows import Application
from billing.services.contract_reservations import book_contract_reservations
from ledger.core.periods import Month, to_ms
from ledger.core.sentences import kept_of
from ledger.core.units import micro_text
from ledger.locks import Lock, acquire
from ledger.models import Service
from ledger.services.audit import Actor, record
from ledger.services.masters import ensure_books, mark_pools_dirty

# Tables of the declarative file that say who pays what.
TERMS = ("rate_card", "pool_cost", "policy", "service", "contract", "calibration")


def propose(
    table: str, row: dict[str, Any], reason: str, by: Actor
) -> tuple[Approval | None, list[Sentence]]:
    """Propose one dated version, as a row of that table of the declarative file; returns what it would change. What a
    row leaves out of a service or a policy stays as it is by then.

    The approval is None where the ledger needs no second person: then it is in force already. A version whose
    `valid_from` has passed counts backwards: open months are computed again, closed ones get adjustments.

    Raises:
        ConfigurationError: it says nothing usable, or edits a version that has started.
        ApprovalError: `no_reason`; `no_change`: it is so already; `not_month_start`: a contract changes only there.
    """
    if table == "service":
        row = {**_service_as_it_stands(row["slug"]), **row}
    if table == "policy":
        row = {**_policy_as_it_stands(_valid_from(core.from_document({table: [row]}), table)), **row}
    document = {table: [row]}
    valid_from = _valid_from(core.from_document(document), table)
    _check_month_start(table, valid_from)
    retroactive = valid_from <= timezone.now()
    changes = apply_tables(document, by=by, reason=reason, retroactive=retroactive, dry_run=True)
    if not changes:
        raise ApprovalError("no_change", "it is so already")
    payload = {"table": table, "row": row, "retroactive": retroactive, "changes": kept_of(changes)}
    return request_approval(ApprovalKind.TERMS, payload, reason, by, put_in_force), changes


@dataclass(frozen=True)
class _Endable:
    """A kind of dated version. of: what it is a version of, where not of the whole ledger; code: to name it so."""

    model: Any
    of: str = ""
    code: str = ""


ENDABLE = {
    "rate_card": _Endable(RateCard),
    "pool_cost": _Endable(PoolCost, "pool", "cost_of_pool"),
    "policy": _Endable(Policy),
    "contract": _Endable(Contract, "tenant", "contract_of"),
    "calibration": _Endable(Calibration, "model", "calibration_of_model"),
    # From then on the service's time is its owner's, unless another version has begun (domain.md section 5).
    "service_policy": _Endable(ServicePolicy, "service", "policy_of_service"),
}


def propose_end(
    table: str, version_id: int, ended_at: datetime, reason: str, by: Actor
) -> tuple[Approval | None, list[Sentence]]:
    """Propose that a version is in force no longer from `ended_at` on, unless another has begun by then.

    A started version is never edited, only ended. An instant that has passed counts backwards, as of a new version.

    Raises:
        ApprovalError: `unknown_version`; `ends_before_it_begins`; `ended` by then already; `not_month_start`;
            `no_reason`.
    """
    version = _endable(table, version_id, ended_at)
    what = version_named(table, version)
    changes = [sentence("version_ended", what=what, at=version.valid_from, end_at=ended_at)]
    payload = {
        "table": table,
        "ends": version_id,
        "ended_at": ended_at.isoformat(),
        "changes": kept_of(changes),
    }
    return request_approval(ApprovalKind.TERMS, payload, reason, by, put_in_force), changes


def _endable(table: str, version_id: int, ended_at: datetime) -> Any:
    version = ENDABLE[table].model.objects.filter(pk=version_id).first() if version_id < 2**63 else None
    if version is None:
        raise ApprovalError("unknown_version", f"there is no {table} {version_id}")
    if ended_at <= version.valid_from:
        raise ApprovalError("ends_before_it_begins", f"it begins at {version.valid_from.isoformat()}")
    if version.ended_at is not None and version.ended_at <= ended_at:
        raise ApprovalError("ended", f"it has ended at {version.ended_at.isoformat()} already")
    _check_month_start(table, ended_at)
    return version


def version_named(table: str, version: Any) -> Sentence:
    """What a version is of; the card itself where it is one of rates."""
    of = ENDABLE[table].of
    if of:
        return sentence(ENDABLE[table].code, name=str(getattr(version, of)))
    return sentence("rate_card_named", name=version.name) if table == "rate_card" else sentence("the_policy")


def version_from(table: str, version: Any) -> Sentence:
    """What a version is called, with the instant it began."""
    return sentence("version_from", what=version_named(table, version), at=version.valid_from)


@transaction.atomic
def _end(payload: dict[str, Any], by: Actor, reason: str) -> None:
    acquire(Lock.MASTERS)
    table, ended_at = payload["table"], datetime.fromisoformat(payload["ended_at"])
    version = _endable(table, payload["ends"], ended_at)
    before = version.ended_at
    version.ended_at, version.ended_recorded_at = ended_at, timezone.now()
    version.save(update_fields=["ended_at", "ended_recorded_at"])
    mark_pools_dirty([version.pool_id] if table == "pool_cost" else None, ended_at)
    if table in ("contract", "calibration"):
        try:  # throughput that a contract reserves ends with it
            application = Application(by.name, True, timezone.now(), reason)
            book_contract_reservations(application, Configuration())
        except ConfigurationError as error:
            raise ApprovalError("needed", str(error), error.told) from None
    record(
        by,
        f"end_{table}",
        table,
        str(version_from(table, version))[:200],
        before={"ended_at": before and before.isoformat()},
        after={"ended_at": payload["ended_at"], "changes": payload["changes"]},
        reason=reason,
    )


def put_in_force(payload: dict[str, Any], approval: Approval | None, by: Actor, reason: str) -> None:
    """The deed: the version is added as it was proposed, or ended.

    Raises:
        ApprovalError: `outdated`: its day has come meanwhile, or something else stands there now; of an end as
            `propose_end`.
    """
    if "ends" in payload:
        _end(payload, by, reason)
        return
    document = {payload["table"]: [payload["row"]]}
    try:
        apply_tables(document, by=by, reason=reason, retroactive=payload["retroactive"])
    except ConfigurationError as error:
        told = sentence("propose_again", why=error.told)
        raise ApprovalError("outdated", str(told), told) from None


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


def _policy_as_it_stands(at: datetime) -> dict[str, Any]:
    """What a new policy leaves as it is: what is in force at that instant; empty where none is."""
    policy = Policy.objects.filter(valid_from__lte=at).order_by("valid_from").last()
    if policy is None or (policy.ended_at is not None and policy.ended_at <= at):
        return {}
    kept = (
        "preemption_charged_to",
        "unreserved_idle",
        "lend_credit",
        "undelivered_counts_pending",
        "names_visible",
    )
    return {
        **{name: getattr(policy, name) for name in (*kept, "purpose_payers")},
        "min_confidence": micro_text(policy.min_confidence_ppm),
    }


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
