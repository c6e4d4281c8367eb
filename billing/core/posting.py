"""From the lines of a month to what should stand posted (domain.md section 10).

GPU time goes from the pool's account to whoever held it; money from whoever is charged to the pool's, the conversion
or the platform's account. What appears on two accounts as two sides of one movement is posted once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from billing.core.rating_lines import CONVERSION, GPU_US, MONEY, PLATFORM, Line
from billing.core.sentences import Sentence, sentence
from ledger.core.transfers import Flow, Target

# lent is somebody's borrowed, oversold was not there, a credit is money only: no GPU time of the pool moves for them.
WITHOUT_GPU_TIME = frozenset({"lent", "oversold", "lend_credit", "delay_credit"})


def pool_account(slug: str) -> str:
    return f"pool:{slug}"


def counterparty(line: Line) -> str:
    """The account on the other side of a line's amount."""
    if line.counter_account:
        return line.counter_account
    if line.kind == "tokens":
        return CONVERSION
    return pool_account(line.pool) if line.pool else PLATFORM


def is_mirror(line: Line) -> bool:
    """The other side of a movement that its main line posts: revenue on conversion, the relief of a victim."""
    if line.kind == "tokens":
        return line.account == CONVERSION
    return line.kind == "transfer" and (line.amount_micro or 0) < 0


def target_key(month: str, line: Line) -> str:
    """What all transfers of a line are posted under."""
    return f"{month}|{line.account}|{line.key}"


def targets_of(month: str, lines: Iterable[Line]) -> list[Target]:
    """What should stand posted for the month, per line and unit; flows of 0 need no target.

    An adjustment is a view of what is posted already, under the key of the month it concerns.
    """
    found = []
    for line in lines:
        if line.kind == "adjustment" or is_mirror(line):
            continue
        key = target_key(month, line)
        if line.unit == GPU_US and line.pool and _moves_gpu_time(line):
            flow = Flow(key, GPU_US, pool_account(line.pool), line.account)
            found.append(Target(flow, line.quantity, line.category))
        if line.amount_micro:
            flow = Flow(key, MONEY, line.account, counterparty(line))
            found.append(Target(flow, line.amount_micro, line.category))
    return found


def _moves_gpu_time(line: Line) -> bool:
    """GPU time is posted once, on the account of whoever held it, whoever pays for it."""
    return (
        not line.on_behalf_of
        and line.kind in ("usage", "shared")
        and line.category not in WITHOUT_GPU_TIME
        and line.quantity > 0
    )


# Invariants; each returns findings.


def mirrors_balance(lines: Sequence[Line]) -> list[Sentence]:
    """Both sides of a movement say the same: charges moved between accounts sum to 0."""
    moved = sum(line.amount_micro or 0 for line in lines if line.kind == "transfer")
    tokens = sum(line.amount_micro or 0 for line in lines if line.kind == "tokens")
    problems = [sentence("transfers_do_not_balance", moved=moved)] if moved else []
    return problems + ([sentence("token_lines_do_not_balance", moved=tokens)] if tokens else [])


def an_account_pays_its_lines(month: str, lines: Sequence[Line]) -> list[str]:
    """Money out less money in of the targets is the sum of the account's lines (11.4), for those that are billed."""
    net: dict[str, int] = {}
    for target in targets_of(month, lines):
        if target.flow.unit == MONEY:
            net[target.flow.debit] = net.get(target.flow.debit, 0) + target.quantity
            net[target.flow.credit] = net.get(target.flow.credit, 0) - target.quantity
    totals: dict[str, int] = {}
    for line in lines:
        totals[line.account] = totals.get(line.account, 0) + (line.amount_micro or 0)
    return [
        f"{account}: lines sum to {total}, transfers to {net.get(account, 0)}"
        for account, total in sorted(totals.items())
        if account != PLATFORM and total != net.get(account, 0)
    ]


INVARIANTS: tuple[Callable[[Sequence[Line]], list[Sentence]], ...] = (mirrors_balance,)
