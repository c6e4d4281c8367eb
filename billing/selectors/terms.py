"""The dated terms of a month, as the core's records (domain.md sections 7 and 8)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from fractions import Fraction
from itertools import pairwise
from typing import Any, NamedTuple

from billing.core.contracts import TokenContract
from billing.core.preemption_charges import PreemptionPolicy
from billing.core.rating import BORROWER_PAID, RatingPolicy, Terms, ramp_percent
from billing.core.rating_lines import tenant_account
from billing.core.rating_prices import PriceBook, RateCard
from billing.models import Calibration, Contract, Policy, PoolCost, ServicePolicy
from billing.models import RateCard as RateCardModel
from ledger.core.periods import Month, Span, to_datetime, to_ms
from ledger.models import Pool, ServiceClass


@dataclass(frozen=True)
class CostVersion:
    """What a GPU-hour of a pool's capacity costs from an instant on; None once it was ended."""

    pool: str
    valid_from_ms: int
    price_micro_per_gpu_hour: int | None


@dataclass(frozen=True)
class MonthTerms:
    """Everything dated that a month is computed by.

    span: the month, to its end. versions: pool slug -> instants in it at which a stretch of one version of all its
    terms begins; the first is the month's start.
    """

    span: Span
    rating: Terms
    versions: dict[str, list[int]]
    costs: list[CostVersion]
    token_contracts: dict[str, TokenContract]
    delay_credit_micro: dict[str, int]
    preemption_policies: list[tuple[int, PreemptionPolicy]]

    def of_pools(self, pools: Collection[str]) -> MonthTerms:
        """The same terms for a part of the pools."""
        return replace(self, versions={slug: self.versions[slug] for slug in self.versions if slug in pools})

    def preemption_policy_at(self, instant_ms: int) -> PreemptionPolicy:
        in_force = (policy for from_ms, policy in reversed(self.preemption_policies) if from_ms <= instant_ms)
        return next(in_force, PreemptionPolicy())


def month_terms(month: Month, zone: str) -> MonthTerms:
    """About ten queries, however many tenants there are."""
    span = month.span(zone)
    pools = list(Pool.objects.order_by("slug"))
    policies = list(Policy.objects.order_by("valid_from"))
    contracts = contracts_of(month, zone)
    rating = Terms(
        prices=price_book(pools),
        policies=_rating_policies(policies),
        ramp_percent={
            tenant_account(slug): _ramp_of(contract, month, zone)
            for slug, contract in contracts.items()
            if contract.reserved_idle_ramp
        },
        token_accounts=frozenset(
            tenant_account(slug) for slug, contract in contracts.items() if contract.kind == "tokens"
        ),
    )
    return MonthTerms(
        span=span,
        rating=rating,
        versions=_versions(pools, span),
        costs=_costs(),
        token_contracts={
            tenant_account(slug): _token_contract(slug, contract)
            for slug, contract in contracts.items()
            if contract.kind == "tokens"
        },
        delay_credit_micro={
            tenant_account(slug): contract.delay_credit_micro_per_gpu_hour
            for slug, contract in contracts.items()
            if contract.delay_credit_micro_per_gpu_hour
        },
        preemption_policies=[
            (
                from_ms,
                PreemptionPolicy(policy.preemption_charged_to, policy.min_confidence_ppm)
                if policy
                else PreemptionPolicy(),
            )
            for from_ms, policy in _in_turn(policies)
        ],
    )


def price_book(pools: Iterable[Pool]) -> PriceBook:
    """All versions of the rate card, in order."""
    cards = RateCardModel.objects.prefetch_related("gpu_prices__pool", "token_prices__model")
    return PriceBook(
        [_card(card) for card in cards.order_by("valid_from")], {pool.slug: pool.gpu_model for pool in pools}
    )


def _card(card: RateCardModel) -> RateCard:
    pool_hour, model_hour = {}, {}
    for price in card.gpu_prices.all():
        service_class = str(ServiceClass(price.service_class).label)
        if price.pool is not None:
            pool_hour[price.pool.slug, price.category, service_class] = price.price_micro
        else:
            model_hour[price.gpu_model, price.category, service_class] = price.price_micro
    return RateCard(
        valid_from_ms=to_ms(card.valid_from),
        ended_ms=to_ms(card.ended_at) if card.ended_at else None,
        pool_hour=pool_hour,
        model_hour=model_hour,
        tokens={(price.model.name, price.kind): price.price_micro for price in card.token_prices.all()},
    )


def rating_policies() -> list[RatingPolicy]:
    """All versions of the policy in order, as rating knows them."""
    return _rating_policies(list(Policy.objects.order_by("valid_from")))


def _rating_policies(policies: Sequence[Policy]) -> list[RatingPolicy]:
    return [
        rating_policy(policy) if policy else RatingPolicy(from_ms) for from_ms, policy in _in_turn(policies)
    ]


def _in_turn(policies: Sequence[Policy]) -> list[tuple[int, Policy | None]]:
    """(from_ms, version in force from then on); None: one has ended and no other begun, so what is usual holds."""
    found: list[tuple[int, Policy | None]] = []
    for policy, following in pairwise([*policies, None]):
        assert policy is not None
        found.append((to_ms(policy.valid_from), policy))
        if policy.ended_at is not None and (following is None or policy.ended_at < following.valid_from):
            found.append((to_ms(policy.ended_at), None))
    return found


def rating_policy(policy: Policy) -> RatingPolicy:
    share = None if policy.lend_credit == BORROWER_PAID else Fraction(policy.lend_credit)
    return RatingPolicy(
        to_ms(policy.valid_from), policy.unreserved_idle, share, dict(policy.purpose_payers or {})
    )


class ContractTerms(NamedTuple):
    """What of a contract the books are computed by."""

    tenant_slug: str
    tenant_id: int
    valid_from: datetime
    ended_at: datetime | None
    kind: str
    token_quota: int | None
    committed_tokens: int | None
    overage_price_micro: int | None
    reserved_idle_ramp: list[int]
    delay_credit_micro_per_gpu_hour: int


def contracts_of(month: Month, zone: str, *, of_quotas: bool = False) -> dict[str, ContractTerms]:
    """tenant slug -> the contract of the month: the one in force at its start, else the first that begins in it.

    One that has ended by then is none: what a tenant without a contract pays holds. One query; there is a contract for
    every tenant, so only what is computed by is read of them. of_quotas: only of tenants who ever had a token quota.
    """
    span = month.span(zone)
    found: dict[str, ContractTerms] = {}
    rows = Contract.objects.filter(valid_from__lt=to_datetime(span.end_ms)).order_by("valid_from")
    if of_quotas:
        rows = rows.filter(tenant__in=Contract.objects.filter(token_quota__isnull=False).values("tenant"))
    for row in rows.values_list("tenant__holder__slug", *ContractTerms._fields[1:]):
        contract = ContractTerms(*row)
        begins_inside = to_ms(contract.valid_from) > span.start_ms
        if not (begins_inside and contract.tenant_slug in found):
            found[contract.tenant_slug] = contract
    return {
        slug: one
        for slug, one in found.items()
        if one.ended_at is None or to_ms(one.ended_at) > span.start_ms
    }


def _ramp_of(contract: ContractTerms, month: Month, zone: str) -> int:
    first = Month.containing(to_ms(contract.valid_from), zone)
    months = (month.year - first.year) * 12 + month.number - first.number
    return ramp_percent([int(percent) for percent in contract.reserved_idle_ramp], months)


def _token_contract(slug: str, contract: ContractTerms) -> TokenContract:
    return TokenContract(
        tenant_account(slug), contract.token_quota, contract.committed_tokens, contract.overage_price_micro
    )


def _costs() -> list[CostVersion]:
    found = []
    for cost in PoolCost.objects.select_related("pool").order_by("valid_from"):
        found.append(CostVersion(cost.pool.slug, to_ms(cost.valid_from), cost.cost_micro_per_gpu_hour))
        if cost.ended_at is not None:
            found.append(CostVersion(cost.pool.slug, to_ms(cost.ended_at), None))
    return sorted(found, key=lambda cost: (cost.valid_from_ms, cost.price_micro_per_gpu_hour is not None))


def _cuts_by(model: Any, name: str) -> list[tuple[str | None, int]]:
    """(what it is for, instant) of every begin and end of a version."""
    rows = model.objects.values_list(name, "valid_from", "ended_at")
    return [(of, to_ms(at)) for of, *instants in rows for at in instants if at is not None]


def _versions(pools: list[Pool], span: Span) -> dict[str, list[int]]:
    everywhere = {span.start_ms}
    for model in (RateCardModel, Policy):
        for begins, ended in model.objects.values_list("valid_from", "ended_at"):  # type: ignore[attr-defined]
            everywhere |= {to_ms(begins), to_ms(ended)} if ended else {to_ms(begins)}
    of_model = _cuts_by(Calibration, "gpu_model")
    of_pool = _cuts_by(PoolCost, "pool__slug")
    of_service = _cuts_by(ServicePolicy, "service__pool__slug")
    found = {}
    for pool in pools:
        instants = set(everywhere)
        instants |= {at for gpu_model, at in of_model if gpu_model == pool.gpu_model}
        # A service without a pool of its own may run in any.
        instants |= {at for slug, at in (*of_pool, *of_service) if slug in (pool.slug, None)}
        found[pool.slug] = sorted(at for at in instants if span.start_ms <= at < span.end_ms)
    return found
