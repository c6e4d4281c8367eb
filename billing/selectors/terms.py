"""The dated terms of a month, as the core's records (domain.md sections 7 and 8)."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from fractions import Fraction

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

    versions: pool slug -> instants in the month at which a stretch of one version of all its terms begins; the
    first is the month's start.
    """

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
        policies=[rating_policy(policy) for policy in policies],
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
                to_ms(policy.valid_from),
                PreemptionPolicy(policy.preemption_charged_to, policy.min_confidence_ppm),
            )
            for policy in policies
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
    return [rating_policy(policy) for policy in Policy.objects.order_by("valid_from")]


def rating_policy(policy: Policy) -> RatingPolicy:
    share = None if policy.lend_credit == BORROWER_PAID else Fraction(policy.lend_credit)
    return RatingPolicy(
        to_ms(policy.valid_from), policy.unreserved_idle, share, dict(policy.purpose_payers or {})
    )


def contracts_of(month: Month, zone: str) -> dict[str, Contract]:
    """tenant slug -> the contract of the month: the one in force at its start, else the first that begins in it."""
    span = month.span(zone)
    found: dict[str, Contract] = {}
    rows = Contract.objects.filter(valid_from__lt=to_datetime(span.end_ms)).select_related("tenant__holder")
    rows = rows.defer("tenant__contacts", "tenant__tags")  # there is one for every tenant
    for contract in rows.order_by("valid_from"):
        begins_inside = to_ms(contract.valid_from) > span.start_ms
        if not (begins_inside and contract.tenant.slug in found):
            found[contract.tenant.slug] = contract
    return found


def _ramp_of(contract: Contract, month: Month, zone: str) -> int:
    first = Month.containing(to_ms(contract.valid_from), zone)
    months = (month.year - first.year) * 12 + month.number - first.number
    return ramp_percent([int(percent) for percent in contract.reserved_idle_ramp], months)


def _token_contract(slug: str, contract: Contract) -> TokenContract:
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


def _versions(pools: list[Pool], span: Span) -> dict[str, list[int]]:
    everywhere = {span.start_ms}
    for model in (RateCardModel, Policy):
        for begins, ended in model.objects.values_list("valid_from", "ended_at"):  # type: ignore[attr-defined]
            everywhere |= {to_ms(begins), to_ms(ended)} if ended else {to_ms(begins)}
    of_model = [(row[0], to_ms(row[1])) for row in Calibration.objects.values_list("gpu_model", "valid_from")]
    of_pool = [(row[0], to_ms(row[1])) for row in PoolCost.objects.values_list("pool__slug", "valid_from")]
    services = ServicePolicy.objects.values_list("service__pool__slug", "valid_from")
    of_service = [(row[0], to_ms(row[1])) for row in services]
    found = {}
    for pool in pools:
        instants = set(everywhere)
        instants |= {at for gpu_model, at in of_model if gpu_model == pool.gpu_model}
        # A service without a pool of its own may run in any.
        instants |= {at for slug, at in (*of_pool, *of_service) if slug in (pool.slug, None)}
        found[pool.slug] = sorted(at for at in instants if span.start_ms <= at < span.end_ms)
    return found
