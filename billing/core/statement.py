"""The bill of one tenant and month: how amounts print, and the chain that proves they never changed.

domain.md section 8 (printed totals) and section 10 (statements).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from billing.core.canonical_json import canonical_sha256
from billing.core.rating_lines import Line
from billing.core.sentences import Sentence, sentence
from ledger.core.units import MICRO_PER_UNIT, round_half_even

GENESIS = "0" * 64


@dataclass(frozen=True, slots=True)
class PrintedLine:
    """A line as printed. rounding_micro: printed minus exact; both None/0 where the amount is not known."""

    line: Line
    amount_minor: int | None
    rounding_micro: int


@dataclass(frozen=True, slots=True)
class Bill:
    """total_minor: in the currency's minor unit, as printed. Lines are in order of their keys."""

    lines: tuple[PrintedLine, ...]
    total_micro: int
    total_minor: int


def micro_per_minor(minor_places: int) -> int:
    """Micro units in one minor unit: 10 000 for cents."""
    return int(MICRO_PER_UNIT // 10**minor_places)


def bill(lines: Sequence[Line], minor_places: int = 2) -> Bill:
    """Round the total once, and print line amounts that add up to it.

    The total is rounded half-even. Each line's amount is floored toward minus infinity; the units that are missing
    go one each to the largest fractions, ties by line key. A line without an amount prints none.
    """
    ordered = sorted(lines, key=lambda line: line.key)
    unit = micro_per_minor(minor_places)
    amounts = {line.key: line.amount_micro for line in ordered if line.amount_micro is not None}
    total_micro = sum(amounts.values())
    total_minor = round_half_even(total_micro, unit)
    printed = dict(zip(amounts, _printed(list(amounts.values()), total_minor, unit), strict=True))
    return Bill(
        tuple(_printed_line(line, printed.get(line.key), unit) for line in ordered), total_micro, total_minor
    )


def _printed(amounts_micro: Sequence[int], total_minor: int, unit: int) -> list[int]:
    """Largest remainder with the amounts as they are: floors first, then one unit each by larger fraction.

    The rounded total is at least the sum of floors and exceeds it by at most the number of lines with a fraction,
    so every line is moved by less than one unit.
    """
    floors = [amount // unit for amount in amounts_micro]
    by_fraction = sorted(range(len(floors)), key=lambda i: (-(amounts_micro[i] % unit), i))
    for i in by_fraction[: total_minor - sum(floors)]:
        floors[i] += 1
    return floors


def _printed_line(line: Line, amount_minor: int | None, unit: int) -> PrintedLine:
    if amount_minor is None or line.amount_micro is None:
        return PrintedLine(line, None, 0)
    return PrintedLine(line, amount_minor, amount_minor * unit - line.amount_micro)


@dataclass(frozen=True, slots=True)
class Link:
    """A statement's place in the two chains."""

    tenant: str
    month: str
    sha256: str
    previous_of_tenant: str
    previous_of_ledger: str


def seal(content: Mapping[str, Any], previous_of_tenant: str, previous_of_ledger: str) -> str:
    """SHA-256 of the canonical content together with both previous hashes."""
    return canonical_sha256(
        {
            "content": content,
            "previous_of_tenant": previous_of_tenant,
            "previous_of_ledger": previous_of_ledger,
        }
    )


def chain(contents: Sequence[tuple[str, str, Mapping[str, Any]]]) -> list[Link]:
    """Seal (month, tenant, content) in order of month, then slug; each chain begins with 64 zeros."""
    links: list[Link] = []
    last_of_tenant: dict[str, str] = {}
    last = GENESIS
    for month, tenant, content in sorted(contents, key=lambda one: one[:2]):
        before = last_of_tenant.get(tenant, GENESIS)
        sha256 = seal(content, before, last)
        links.append(Link(tenant, month, sha256, before, last))
        last_of_tenant[tenant] = last = sha256
    return links


# Invariants of section 11.4 and 11.5; each returns findings.


def lines_sum_to_the_total(one: Bill) -> list[str]:
    exact = sum(line.line.amount_micro or 0 for line in one.lines)
    return [] if exact == one.total_micro else [f"lines sum to {exact}, the total is {one.total_micro}"]


def printed_lines_sum_to_the_printed_total(one: Bill) -> list[str]:
    printed = sum(line.amount_minor or 0 for line in one.lines)
    return [] if printed == one.total_minor else [f"printed {printed}, the total says {one.total_minor}"]


INVARIANTS: tuple[Callable[[Bill], list[str]], ...] = (
    lines_sum_to_the_total,
    printed_lines_sum_to_the_printed_total,
)


def broken_links(
    links: Sequence[Link], contents: Mapping[tuple[str, str], Mapping[str, Any]]
) -> list[Sentence]:
    """Every statement whose hash does not follow from its content and from those before it.

    contents: (month, tenant) -> what the statement says now.
    """
    problems = []
    last_of_tenant: dict[str, str] = {}
    last = GENESIS
    for link in sorted(links, key=lambda link: (link.month, link.tenant)):
        of = {"month": link.month, "tenant": link.tenant}
        before = last_of_tenant.get(link.tenant, GENESIS)
        if link.previous_of_tenant != before:
            problems.append(sentence("chain_of_tenant_broken", **of))
        if link.previous_of_ledger != last:
            problems.append(sentence("chain_of_ledger_broken", **of))
        sealed = seal(contents[link.month, link.tenant], link.previous_of_tenant, link.previous_of_ledger)
        if sealed != link.sha256:
            problems.append(sentence("content_of_month_changed", **of))
        last_of_tenant[link.tenant] = last = link.sha256
    return problems
