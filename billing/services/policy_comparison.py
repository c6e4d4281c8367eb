"""A month under two policies, or with and without one more version of terms, side by side (domain.md 6 and 8).

What is compared is computed by the same code as the books, in a transaction that is always taken back: nothing of the
books is touched.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from django.db import transaction

from billing.core.configuration import from_document
from billing.core.preemption_charges import PreemptionPolicy
from billing.core.rating_lines import Line
from billing.core.sentences import Sentence, sentence
from billing.models import Contract, Policy
from billing.selectors.accounts import Accounts, accounts
from billing.selectors.terms import MonthTerms, month_terms, rating_policy
from billing.selectors.undated import UndatedTerms, undated_terms
from billing.services.configuration import apply_tables
from billing.services.configuration_terms import policy_values, throughput_rows
from billing.services.preemption_prices import PreemptionPrices
from billing.services.preemption_shares import share_preemptions
from billing.services.preemptions import rebuild_preemptions
from billing.services.proposals import ENDABLE
from billing.services.rating import rate_month
from ledger.core.periods import Month, Span, to_ms
from ledger.core.sentences import Told
from ledger.locks import Lock, held_by_session
from ledger.models import Period
from ledger.services.audit import SYSTEM, Actor

Amounts = dict[str, tuple[int, int]]
"""account -> (its amount, what preemptions moved of it), in micro units."""


class ComparisonError(Told):
    """It cannot be compared; `code` says why to programs."""

    def __init__(self, code: str, told: Sentence) -> None:
        super().__init__(told)
        self.code = code


@dataclass(frozen=True, slots=True)
class Compared:
    """One account under both, in micro units; `moved_micro` are the parts that preemptions move, in each amount."""

    account: str
    base_micro: int
    other_micro: int
    base_moved_micro: int
    other_moved_micro: int

    @property
    def difference_micro(self) -> int:
        return self.other_micro - self.base_micro


def compare_policies(
    period: Period, base: Policy | None, other: Policy | None, say: Callable[[str], None] = lambda _: None
) -> list[Compared]:
    """Every account of the month under two policies, in order of name; None: what is in force, version by version.

    The policies may be unsaved. The facts and their split are those that the books were last computed from. say: told
    "now" and "then" as each is computed.

    Raises:
        ComparisonError: `busy`: the books are being computed; `not_computed`: the month has no books yet;
            `counts_differ`: what is undelivered differs, which is a question of the split, not of who pays.
    """
    _check_computed(period)
    _check_counting(period, base, other)
    amounts = []
    with _alone():
        for step, policy in (("now", base), ("then", other)):
            say(step)
            with _taken_back():
                amounts.append(_sums(_lines_under(period, policy)))
    return _side_by_side(*amounts)


def policies_of(period: Period, asked: dict[str, Any]) -> tuple[Policy | None, Policy | None]:
    """The two policies to compare, checked as far as they can be before the month is computed.

    asked: {"base": a policy's id, or none for what is in force; "other": an id, or "change": what differs from the
    policy in force at the month's end}.

    Raises:
        ComparisonError: as `compare_policies` but `busy`; `unknown_version`.
        ConfigurationError: the change says nothing usable.
    """
    base = None if asked.get("base") is None else _policy(asked["base"])
    other = _policy(asked["other"]) if "other" in asked else changed_policy(period, asked["change"])
    _check_computed(period)
    _check_counting(period, base, other)
    return base, other


def _policy(policy_id: int) -> Policy:
    policy = Policy.objects.filter(pk=policy_id).first() if abs(policy_id) < 2**63 else None
    if policy is None:
        raise ComparisonError("unknown_version", sentence("no_such_version", table="policy", id=policy_id))
    return policy


# What can be compared: who pays what for time as it is split. What splits the time itself cannot.
COMPARABLE = ("policy", "rate_card", "contract", "pool_cost")


def compare_change(
    period: Period, asked: dict[str, Any], say: Callable[[str], None] = lambda _: None
) -> list[Compared]:
    """Every account of the month as it stands, and with one more version of terms or one that has ended.

    asked: {"table", "row"}, a row of the file's table; or {"table", "ends", "ended_at"}. What begins or ends after
    the month is taken to do so at the month's first instant. say: told "now" and "then" as each is computed.

    Raises:
        ComparisonError: as `compare_policies`; `not_comparable`: the table changes how time is split;
            `unknown_version`.
        ConfigurationError: the row says nothing usable.
    """
    change = change_of(period, asked)
    with _alone():
        say("now")
        with _taken_back():
            now = _sums(_lines_under(period, None))
        say("then")
        with _taken_back():
            change()
            then = _sums(_lines_again(period))
    return _side_by_side(now, then)


def change_of(period: Period, asked: dict[str, Any]) -> Callable[[], object]:
    """What brings the change about, checked as far as it can be before the month is computed. Raises as
    `compare_change`."""
    table = asked["table"]
    if table not in COMPARABLE:
        raise ComparisonError("not_comparable", sentence("splits_time", what=table))
    _check_computed(period)
    return _end_of(period, asked) if "ends" in asked else _version_of(period, table, asked["row"])


def _version_of(period: Period, table: str, row: dict[str, Any]) -> Callable[[], object]:
    version = getattr(from_document({table: [row]}), table)[0]
    if table == "policy":
        _check_counting(period, Policy(undelivered_counts_pending=version.undelivered_counts_pending))
    if table == "contract":
        _check_throughput(period, version.tenant, throughput_rows(version))
    if version.valid_from >= period.ends_at:
        row = {**row, "valid_from": period.starts_at.isoformat()}
    return lambda: apply_tables({table: [row]}, by=Actor(SYSTEM), retroactive=True, keeps_started=False)


def _end_of(period: Period, asked: dict[str, Any]) -> Callable[[], object]:
    versions = ENDABLE[asked["table"]].model.objects.filter(pk=asked["ends"])
    version = versions.first()
    if version is None:
        raise ComparisonError(
            "unknown_version", sentence("no_such_version", table=asked["table"], id=asked["ends"])
        )
    if asked["table"] == "policy":
        _check_counting(period, Policy())
    if asked["table"] == "contract":
        _check_throughput(period, version.tenant.slug, [])
    ended_at = datetime.fromisoformat(asked["ended_at"])
    if ended_at >= period.ends_at:
        ended_at = max(period.starts_at, version.valid_from)
    return lambda: versions.update(ended_at=ended_at)


def changed_policy(period: Period, change: dict[str, Any]) -> Policy:
    """The policy in force at the month's end with `change` (fields of the file's table), unsaved.

    Raises:
        ConfigurationError: an unknown field or value.
    """
    table = from_document({"policy": [{**change, "valid_from": period.starts_at}]}).policy[0]
    in_force = Policy.objects.filter(valid_from__lt=period.ends_at).order_by("valid_from").last()
    policy = in_force or Policy(valid_from=period.starts_at)
    policy.pk = None
    for name, value in policy_values(table, "change").items():
        named = {"min_confidence_ppm": "min_confidence"}.get(name, name)
        if named in change:
            setattr(policy, name, value)
    return policy


def _side_by_side(base: Amounts, other: Amounts) -> list[Compared]:
    def both(name: str) -> tuple[int, int, int, int]:
        (one, one_moved), (two, two_moved) = base.get(name, (0, 0)), other.get(name, (0, 0))
        return one, two, one_moved, two_moved

    return [Compared(name, *both(name)) for name in sorted(base.keys() | other.keys())]


def _check_computed(period: Period) -> None:
    if period.horizon_at is None:
        raise ComparisonError("not_computed", sentence("month_not_computed", month=period.month))


def _check_counting(period: Period, *policies: Policy | None) -> None:
    in_force = Policy.objects.filter(valid_from__lt=period.ends_at).order_by("valid_from").last()
    counts = bool(in_force and in_force.undelivered_counts_pending)
    if any(policy is not None and policy.undelivered_counts_pending != counts for policy in policies):
        raise ComparisonError(
            "counts_differ",
            sentence("splits_time_leave_out", what="undelivered_counts_pending"),
        )


def _check_throughput(period: Period, tenant: str, wanted: list[dict[str, Any]]) -> None:
    in_force = Contract.objects.filter(tenant__holder__slug=tenant, valid_from__lt=period.ends_at)
    contract = in_force.order_by("valid_from").last()
    reserved = contract.reserved_throughput if contract is not None else []
    if wanted != reserved:
        raise ComparisonError(
            "not_comparable",
            sentence("splits_time_leave_out", what="reserved_throughput"),
        )


@contextmanager
def _alone() -> Iterator[None]:
    """Alone with the books over both computations, so that nothing but the terms differs."""
    with held_by_session(Lock.COMPUTE) as is_alone:
        if not is_alone:
            raise ComparisonError("busy", sentence("books_at_work"))
        yield


@contextmanager
def _taken_back() -> Iterator[None]:
    with transaction.atomic():
        yield
        transaction.set_rollback(True)


def _share_again(terms: MonthTerms, span: Span, undated: UndatedTerms, books: Accounts) -> None:
    """Who answers for a preemption stands in its record, and what it costs follows from prices."""
    ids = rebuild_preemptions(span, terms, books, undated, everything=True).ids
    share_preemptions(ids, terms, books, PreemptionPrices(undated, terms.rating.prices))


def _lines_again(period: Period) -> list[Line]:
    """Under the terms as they are now in this transaction, preemptions too."""
    undated, books = undated_terms(), accounts()
    terms, span = month_terms(Month.parse(period.month), undated.zone), _span_of(period)
    _share_again(terms, span, undated, books)
    return rate_month(undated, terms, span, books)


def _span_of(period: Period) -> Span:
    return Span(to_ms(period.starts_at), to_ms(period.horizon_at or period.starts_at))


def _lines_under(period: Period, policy: Policy | None) -> list[Line]:
    """Under the policy, preemptions too; None: as the books were last computed."""
    undated, books = undated_terms(), accounts()
    terms, span = month_terms(Month.parse(period.month), undated.zone), _span_of(period)
    if policy is not None:
        terms = _with_policy(terms, policy, span.start_ms)
        _share_again(terms, span, undated, books)
    return rate_month(undated, terms, span, books)


def _with_policy(terms: MonthTerms, policy: Policy, from_ms: int) -> MonthTerms:
    """The policy from the month's start on; what was decided before stays under its own."""
    rated = replace(rating_policy(policy), valid_from_ms=from_ms)
    before = [one for one in terms.rating.policies if one.valid_from_ms < from_ms]
    preemption = PreemptionPolicy(policy.preemption_charged_to, policy.min_confidence_ppm)
    decided_before = [one for one in terms.preemption_policies if one[0] < from_ms]
    return replace(
        terms,
        rating=replace(terms.rating, policies=[*before, rated]),
        preemption_policies=[*decided_before, (from_ms, preemption)],
    )


def _sums(lines: Iterable[Line]) -> Amounts:
    amount: defaultdict[str, int] = defaultdict(int)
    moved: defaultdict[str, int] = defaultdict(int)
    for line in lines:
        amount[line.account] += line.amount_micro or 0
        if line.kind == "transfer":
            moved[line.account] += line.amount_micro or 0
    return {account: (total, moved[account]) for account, total in amount.items()}
