"""Applies the declarative file to masters and terms: idempotent, dated, with a diff (interfaces.md, events.md)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db import transaction
from django.utils import timezone

from billing.core import configuration as core
from billing.core.configuration import Configuration
from billing.core.sentences import Sentence
from billing.services.configuration_masters import (
    apply_identities,
    apply_ledger,
    apply_pools,
    apply_services,
    apply_sources,
    apply_tenants,
)
from billing.services.configuration_rows import Application
from billing.services.configuration_terms import (
    apply_alert_rules,
    apply_budgets,
    apply_calibrations,
    apply_contracts,
    apply_policies,
    apply_pool_costs,
    apply_rate_cards,
)
from billing.services.contract_reservations import book_contract_reservations
from billing.services.quota_standings import refresh_quota_standings
from ledger.core.sentences import kept_of
from ledger.locks import Lock, acquire
from ledger.services.audit import SYSTEM, Actor, record


class _Undo(Exception):
    """Rolls a dry run back."""


def apply_document(document: dict[str, Any], **options: Any) -> list[Sentence]:
    """`apply_configuration` for an already decoded TOML document."""
    return apply_configuration(core.from_document(document), **options)


def apply_configuration(
    wanted: Configuration, *, by: str = "", retroactive: bool = False, dry_run: bool = False
) -> list[Sentence]:
    """Make masters and terms what the file says; returns the diff, empty if none: in English
    lines that begin with '+' or '~'.

    Nothing is deleted: what the file does not name stays. A version that has started is not edited, and a version
    that reaches into the past of existing ones is refused, unless `retroactive`.

    Raises:
        ConfigurationError: an unknown tenant, pool or owner, or a change that needs `retroactive`.
    """
    application = Application(by=by, retroactive=retroactive, now=timezone.now())
    try:
        with transaction.atomic():
            acquire(Lock.MASTERS)
            for step in STEPS:
                step(application, wanted)
            if dry_run:
                raise _Undo
            if application.diff:
                # A quota that a contract gives counts for gateways at once, not from the next computation on.
                refresh_quota_standings(application.now)
                after = {"changes": kept_of(application.diff), "retroactive": retroactive}
                record(Actor(by or SYSTEM), "apply_configuration", "configuration", "ledger", after=after)
    except _Undo:
        pass
    return application.diff


def apply_tables(
    document: dict[str, Any],
    *,
    by: Actor,
    reason: str = "",
    retroactive: bool = False,
    dry_run: bool = False,
    keeps_started: bool = True,
) -> list[Sentence]:
    """Apply only the tables that `document` names, as one person's change with a reason; returns the diff.

    A version that has started is not edited, `retroactive` or not: another one is added (`keeps_started`; what
    is tried out and taken back needs not keep it). Audited under the table's name.

    Raises:
        ConfigurationError: as `apply_configuration`.
    """
    wanted = core.from_document(document)
    application = Application(by.name, retroactive, timezone.now(), reason, keeps_started)
    try:
        with transaction.atomic():
            acquire(Lock.MASTERS)
            for step in (step for table in document for step in _STEPS_OF[table]):
                step(application, wanted)
            if dry_run:
                raise _Undo
            for table in document if application.diff else ():
                after = {"rows": document[table], "changes": kept_of(application.diff)}
                record(by, f"change_{table}", table, _name_of(document[table]), after=after, reason=reason)
    except _Undo:
        pass
    return application.diff


def _name_of(rows: list[dict[str, Any]]) -> str:
    """What an audit entry calls the rows: their names and dates."""

    def name(row: dict[str, Any]) -> str:
        keys = ("slug",) if "slug" in row else ("tenant", "pool", "model", "gpu_model", "name")
        return " ".join(str(row[key]) for key in (*keys, "valid_from") if row.get(key))

    return "; ".join(name(row) for row in rows)[:200]


STEPS: list[Callable[[Application, Configuration], None]] = [
    apply_ledger,
    apply_pools,
    apply_tenants,
    apply_services,
    apply_identities,
    apply_sources,
    apply_rate_cards,
    apply_pool_costs,
    apply_policies,
    apply_contracts,
    apply_calibrations,
    book_contract_reservations,
    apply_alert_rules,
    apply_budgets,
]


_STEPS_OF: dict[str, tuple[Callable[[Application, Configuration], None], ...]] = {
    "tenant": (apply_tenants, apply_identities),
    "pool": (apply_pools,),
    "service": (apply_services,),
    "rate_card": (apply_rate_cards,),
    "pool_cost": (apply_pool_costs,),
    "policy": (apply_policies,),
    "contract": (apply_contracts, book_contract_reservations),
    "calibration": (apply_calibrations, book_contract_reservations),
}
