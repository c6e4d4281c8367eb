"""What later facts changed about closed months, as lines of the month they are posted in (domain.md section 10).

A closed month is computed again like any other; what its target lacks is posted in the earliest month that is not
closed, under the keys of the closed month. These transfers, and nothing else, are the adjustment lines.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from billing.core.line_text import description
from billing.core.rating_lines import GPU_US, MONEY, Line

ADJUSTMENT = "adjustment"
_BEFORE_MODEL, _AFTER_MODEL = 8, 6


@dataclass(frozen=True, slots=True)
class Moved:
    """Transfers of one key, unit and direction, posted in one month and concerning another. quantity > 0."""

    concerns: str
    key: str
    unit: str
    debit: str
    credit: str
    quantity: int


def adjustment_lines(moved: Iterable[Moved]) -> list[Line]:
    """One line per account, month concerned and what changed, in order of account and key; pools have no bill.

    What only changed the version of the terms that it stands under, or the instant of its preemption, nets to nothing
    and is no line: whoever owes the same as before sees none. The transfers stay as they are.
    """
    netted: dict[Line, Line] = {}
    for one in moved:
        for account, sign in ((one.debit, 1), (one.credit, -1)):
            if account.startswith("pool:"):
                continue
            line = _line(one, account, sign)
            what = _what(line, line_of_key(one.key).kind)
            before = netted.get(what)
            netted[what] = line if before is None else _joined(before, line)
    found: dict[tuple[str, str], Line] = {}
    for line in netted.values():
        if line.amount_micro or line.quantity:
            before = found.get((line.account, line.key))
            found[line.account, line.key] = line if before is None else _joined(before, line)
    lines = [_with_unit(line) for line in found.values()]
    return sorted(lines, key=lambda line: (line.account, line.key))


def _what(line: Line, kind: str) -> Line:
    """What a change is a change of. Each credit that a person or a day of waiting brought about stands for itself; else
    the version of the terms, which lines of a month are kept apart by, is left out."""
    is_one_of_its_own = kind == "credit" and line.category != "lend_credit"
    version_from_ms = line.version_from_ms if is_one_of_its_own else 0
    return replace(line, version_from_ms=version_from_ms, quantity=0, amount_micro=0)


def _line(moved: Moved, account: str, sign: int) -> Line:
    """Who pays is debited with money; who held GPU time is credited with it."""
    was = line_of_key(moved.key)
    is_money = moved.unit == MONEY
    return replace(
        was,
        account=account,
        kind=ADJUSTMENT,
        quantity=0 if is_money else -sign * moved.quantity,
        amount_micro=sign * moved.quantity if is_money else 0,
        concerns_month=moved.concerns,
        description=f"Adjustment of {moved.concerns}: {description(was)}",
    )


def line_of_key(key: str) -> Line:
    """The line that a target key names, without its figures. Only the model may hold a '|' of its own.

    Raises ValueError for a key that names no line.
    """
    parts = key.split("|")
    if len(parts) <= _BEFORE_MODEL + _AFTER_MODEL:
        raise ValueError(f"{key!r} names no line")
    _, account, kind, pool, service, service_class, purpose, category = parts[:_BEFORE_MODEL]
    idle, version, on_behalf_of, counter_account, concerns, preemptions = parts[-_AFTER_MODEL:]
    return Line(
        account=account,
        kind=kind,
        category=category,
        quantity=0,
        unit=GPU_US,
        version_from_ms=int(version),
        amount_micro=0,
        pool=pool,
        service=service,
        model="|".join(parts[_BEFORE_MODEL:-_AFTER_MODEL]),
        service_class=service_class,
        purpose=purpose,
        service_idle=idle == "idle",
        on_behalf_of=on_behalf_of,
        counter_account=counter_account,
        concerns_month=concerns,
        preemptions=tuple(filter(None, preemptions.split(","))),
    )


def _joined(one: Line, other: Line) -> Line:
    """Changes of the same thing: quantity and amount of one line, or several preemptions of one payer.

    It is about the time from the earliest version on that it touches.
    """
    return replace(
        one,
        version_from_ms=min(one.version_from_ms, other.version_from_ms),
        quantity=one.quantity + other.quantity,
        amount_micro=(one.amount_micro or 0) + (other.amount_micro or 0),
        preemptions=tuple(sorted({*one.preemptions, *other.preemptions})),
    )


def _with_unit(line: Line) -> Line:
    """What moved no GPU time counts in money."""
    return line if line.quantity else replace(line, unit=MONEY, quantity=line.amount_micro or 0)
