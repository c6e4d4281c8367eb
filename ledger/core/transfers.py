"""Target minus posted: what has to be transferred so that the books say what the facts say (domain.md section 10).

A *target* says what should stand posted between two accounts under one key. Nothing is ever changed: a month that
is computed again posts the difference, and computing it twice posts nothing.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from uuid import UUID

# Fixed for ever: ids of transfers must come out the same in every installation and after every rebuild.
NAMESPACE = UUID("6f1d3c1e-0c4b-5b0e-9a57-5d7b8f0a2c11")


Name = tuple[str, str]
"""(key, unit)"""


@dataclass(frozen=True, slots=True)
class Flow:
    """What names a target: key, unit and the accounts it runs between, in the direction of a positive quantity.

    The key names the accounts too (or anything that implies them), so that one key never has two directions.
    """

    key: str
    unit: str
    debit: str
    credit: str

    @property
    def name(self) -> Name:
        return (self.key, self.unit)


@dataclass(frozen=True, slots=True)
class Target:
    """`quantity` should stand posted from debit to credit; negative means the other way round."""

    flow: Flow
    quantity: int
    reason: str


@dataclass(frozen=True, slots=True)
class Posted:
    """What stands posted for a flow: net quantity in its direction, and the number of transfers that made it."""

    quantity: int = 0
    postings: int = 0


@dataclass(frozen=True, slots=True)
class Posting:
    """One transfer to write: a positive quantity from one account to another."""

    id: UUID
    key: str
    unit: str
    debit: str
    credit: str
    quantity: int
    reason: str


def postings(targets: Iterable[Target], posted: Mapping[Flow, Posted]) -> list[Posting]:
    """The transfers that turn `posted` into `targets`, in order of key and unit.

    `posted` may name a flow in either direction: transfers alone do not tell which one the target had. A flow that
    is posted but has no target any more is taken back whole. Raises ValueError where two targets share key and
    unit, or where a key runs between other accounts than it was posted between.
    """
    wanted: dict[Name, Target] = {}
    for target in targets:
        if wanted.setdefault(target.flow.name, target) is not target:
            raise ValueError(f"two targets for {target.flow.key} in {target.flow.unit}")
    before: dict[Name, Posted] = {}
    for flow, stands in posted.items():
        target = wanted.setdefault(flow.name, Target(flow, 0, "reversal"))
        before[flow.name] = _seen_along(target.flow, flow, stands)
    found = (_posting(wanted[name], before.get(name, Posted())) for name in sorted(wanted))
    return [posting for posting in found if posting is not None]


def _seen_along(direction: Flow, flow: Flow, stands: Posted) -> Posted:
    """What stands posted, counted in the direction of the target."""
    if (flow.debit, flow.credit) == (direction.debit, direction.credit):
        return stands
    if (flow.credit, flow.debit) == (direction.debit, direction.credit):
        return Posted(-stands.quantity, stands.postings)
    raise ValueError(
        f"{flow.key} was posted between {flow.debit} and {flow.credit}, "
        f"not {direction.debit} and {direction.credit}"
    )


def _posting(target: Target, posted: Posted) -> Posting | None:
    flow, difference = target.flow, target.quantity - posted.quantity
    if difference == 0:
        return None
    debit, credit = (flow.debit, flow.credit) if difference > 0 else (flow.credit, flow.debit)
    identity = posting_id(flow.key, flow.unit, posted.quantity, target.quantity, posted.postings)
    return Posting(identity, flow.key, flow.unit, debit, credit, abs(difference), target.reason)


def posting_id(key: str, unit: str, posted_before: int, posted_after: int, earlier_postings: int) -> UUID:
    """UUIDv5 of what the posting does, so that the primary key refuses the same posting twice."""
    return uuid.uuid5(
        NAMESPACE, json.dumps([key, unit, str(posted_before), str(posted_after), earlier_postings])
    )


def apply_postings(posted: Mapping[Flow, Posted], new: Iterable[Posting]) -> dict[Flow, Posted]:
    """What stands posted after `new`; zero flows stay, because the number of postings is part of the next id."""
    after = dict(posted)
    by_name = {flow.name: flow for flow in posted}
    for posting in new:
        flow = by_name.get((posting.key, posting.unit))
        if flow is None:
            flow = Flow(posting.key, posting.unit, posting.debit, posting.credit)
            by_name[flow.name] = flow
        signed = posting.quantity if flow.debit == posting.debit else -posting.quantity
        before = after.get(flow, Posted())
        after[flow] = Posted(before.quantity + signed, before.postings + 1)
    return after


def balances(transfers: Iterable[Posting]) -> dict[tuple[str, str], int]:
    """(unit, account) -> what came in minus what went out."""
    found: dict[tuple[str, str], int] = {}
    for transfer in transfers:
        for account, signed in ((transfer.debit, -transfer.quantity), (transfer.credit, transfer.quantity)):
            found[transfer.unit, account] = found.get((transfer.unit, account), 0) + signed
    return found


# The invariants of section 11 that transfers alone can show; each returns findings, none when all is well.


def every_unit_nets_to_zero(transfers: Iterable[Posting]) -> list[str]:
    net: dict[str, int] = {}
    for (unit, _), quantity in balances(transfers).items():
        net[unit] = net.get(unit, 0) + quantity
    return [f"{unit}: accounts sum to {quantity}, not 0" for unit, quantity in net.items() if quantity]


def every_quantity_is_positive(transfers: Iterable[Posting]) -> list[str]:
    return [
        f"{transfer.id}: quantity {transfer.quantity}" for transfer in transfers if transfer.quantity <= 0
    ]


def every_transfer_joins_two_accounts(transfers: Iterable[Posting]) -> list[str]:
    return [
        f"{transfer.id}: from {transfer.debit} to itself"
        for transfer in transfers
        if transfer.debit == transfer.credit
    ]


INVARIANTS: tuple[Callable[[Iterable[Posting]], list[str]], ...] = (
    every_unit_nets_to_zero,
    every_quantity_is_positive,
    every_transfer_joins_two_accounts,
)
