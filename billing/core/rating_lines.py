"""What goes into rating and what comes out of it: quantities and lines (domain.md section 8)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

PLATFORM = "platform"
CONVERSION = "conversion"
SUSPENSE = "suspense"
TENANT_PREFIX = "tenant:"

GPU_US = "gpu_us"
TOKENS = "tokens"
MONEY = "amount_micro"


def tenant_account(slug: str) -> str:
    """Accounts are named by kind and owner, so that no slug can be mistaken for the platform."""
    return TENANT_PREFIX + slug


def is_tenant(account: str) -> bool:
    return account.startswith(TENANT_PREFIX)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """A month's exact GPU time of one account, pool, service, class, purpose, category and version of the terms.

    account: whose time it is (a service's idle time is its owner's). holder: the slug that held or reserved it,
    which is the service's where `service` is given. waiting_gpu_us: of `lent`, the part up to the owner's own
    waiting work.
    """

    account: str
    holder: str
    pool: str
    category: str
    gpu_us: int
    version_from_ms: int
    service: str = ""
    service_class: str = ""
    purpose: str = ""
    service_idle: bool = False
    waiting_gpu_us: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of an account's month. amount_micro None: a price is missing, which blocks the close.

    full_amount_micro: what it would have been without a ramp, or what another account pays for it. on_behalf_of:
    whose time it is, where this account pays for somebody else's.
    """

    account: str
    kind: str
    category: str
    quantity: int
    unit: str
    version_from_ms: int
    amount_micro: int | None
    unit_price_micro: int | None = None
    full_amount_micro: int | None = None
    pool: str = ""
    service: str = ""
    model: str = ""
    service_class: str = ""
    purpose: str = ""
    service_idle: bool = False
    on_behalf_of: str = ""
    counter_account: str = ""
    concerns_month: str = ""
    description: str = ""
    preemptions: tuple[str, ...] = field(default=())

    @property
    def key(self) -> str:
        """Names the line within its account and month; ties in rounding are broken by its byte order."""
        return "|".join(
            (
                self.kind,
                self.pool,
                self.service,
                self.service_class,
                self.purpose,
                self.category,
                self.model,
                "idle" if self.service_idle else "",
                f"{self.version_from_ms:015d}",
                self.on_behalf_of,
                self.counter_account,
                self.concerns_month,
                ",".join(self.preemptions) if self.kind == "transfer" else "",
            )
        )

    @staticmethod
    def category_and_pool(key: str) -> tuple[str, str]:
        """What a key says of a line that is gone; names of models, which may hold anything, come later in it."""
        _kind, pool, _service, _class, _purpose, category, *_rest = key.split("|")
        return category, pool

    def moved_to(self, account: str) -> Line:
        """The same line on the account that pays for it."""
        return replace(self, account=account, on_behalf_of=self.account)


@dataclass(frozen=True, slots=True)
class RatingFinding:
    """An exception of the rating; it blocks the close."""

    code: str
    account: str
    pool: str
    subject: str
    quantity: int


PRICE_MISSING = "price_missing"


def missing_prices(lines: list[Line]) -> list[RatingFinding]:
    """A missing price matters to whoever is billed; the platform's own idle time needs none."""
    return [
        RatingFinding(PRICE_MISSING, line.account, line.pool, line.model or line.category, line.quantity)
        for line in lines
        if line.amount_micro is None and line.account != PLATFORM
    ]
