"""Who bears what was neither reserved nor occupied (domain.md section 8, `unreserved_idle`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from billing.core.rating_lines import PLATFORM, Quantity, is_tenant
from ledger.core.apportion import largest_remainder

PLATFORM_BEARS = "platform"
PROPORTIONAL = "proportional"
EVEN = "even"
WEIGHED = frozenset({"reserved_used", "on_demand", "borrowed", "reserved_idle"})


def idle_shares(policy: str, pool: str, gpu_us: int, quantities: Iterable[Quantity]) -> dict[str, int]:
    """account -> its part of the pool's unreserved idle time.

    proportional: by each tenant's reserved_used + on_demand + borrowed + reserved_idle of the pool's month. even:
    over the tenants with any of these. The platform's where it is the policy or there is no such tenant.
    """
    weights: Counter[str] = Counter()
    for quantity in quantities:
        if quantity.pool == pool and quantity.category in WEIGHED and is_tenant(quantity.account):
            weights[quantity.account] += quantity.gpu_us
    tenants = sorted(account for account, weight in weights.items() if weight > 0)
    if not gpu_us:
        return {}
    if policy == PLATFORM_BEARS or not tenants:
        return {PLATFORM: gpu_us}
    by = [weights[account] if policy == PROPORTIONAL else 1 for account in tenants]
    shares = largest_remainder(gpu_us, by, tenants)
    return {account: share for account, share in zip(tenants, shares, strict=True) if share}
