"""Reserved throughput on its way into the record: applied, proposed, approved, refused, ended, traced."""

from __future__ import annotations

import copy
from datetime import UTC, datetime
from typing import Any

import pytest
from django.urls import reverse

from billing.checks import CHECKS
from billing.core.configuration import ConfigurationError
from billing.core.contract_reservations import SOURCE
from billing.models import Contract
from billing.selectors.reservations import reservations
from billing.services.configuration import apply_document
from billing.services.policy_comparison import ComparisonError, compare_change
from billing.services.proposals import propose_end
from ledger.checks import run_checks
from ledger.models import Booking, Event, Ledger, Level, Membership, Period, Role, Source, User
from ledger.services.audit import Actor
from ledger.services.masters import ensure_books
from tests.billing.page_books import client_of
from tests.billing.test_periods_api import client, get, post

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]

OCTOBER, NOVEMBER = datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)
PROMISE = {
    "model": "qwen",
    "pool": "h100",
    "input_tokens_per_minute": 600_000,
    "output_tokens_per_minute": 60_000,
}
CONTRACT = {"tenant": "acme", "valid_from": OCTOBER, "kind": "tokens", "reserved_throughput": [PROMISE]}
DOCUMENT: dict[str, Any] = {
    "tenant": [{"slug": "acme"}, {"slug": "beta"}],
    "pool": [
        {"slug": "h100", "cluster": "bj", "gpu_model": "H100"},
        {"slug": "h20", "cluster": "bj", "gpu_model": "H20"},
    ],
    "calibration": [
        {
            "model": "qwen",
            "gpu_model": "H100",
            "valid_from": OCTOBER,
            "input_gpu_us_per_1k": 100_000,
            "cached_input_gpu_us_per_1k": 0,
            "output_gpu_us_per_1k": 2_000_000,
        }
    ],
}


def contract(**changes: Any) -> dict[str, Any]:
    return {**copy.deepcopy(CONTRACT), **changes}


def apply(*contracts: dict[str, Any], **options: Any) -> list[str]:
    document = {**DOCUMENT, "contract": list(contracts)}
    return [str(line) for line in apply_document(document, retroactive=True, **options)]


def held(at: datetime = OCTOBER) -> dict[str, int]:
    """reservation -> milli-GPUs in force."""
    rows = reservations(at, pools=None, tenant_ids=None)
    return {one.reservation: one.milli_gpus for one in rows if one.starts_at <= at}


def test_applied_twice_it_is_booked_once_and_a_dry_run_books_nothing() -> None:
    told = "+ reservation contract/acme/qwen of 3 GPUs in h100 from 2026-10-01T00:00:00Z"
    assert told in apply(contract(), dry_run=True)
    assert not Level.objects.exists() and not Source.objects.exists()
    assert told in apply(contract())
    assert held() == {"contract/acme/qwen": 3000}
    bookings = Booking.objects.count()
    assert apply(contract()) == []
    assert Booking.objects.count() == bookings == 1
    assert run_checks(CHECKS) == []
    assert Source.objects.get(uri=SOURCE).retired_at is not None  # no month waits for its sign-off


def test_a_later_version_ends_or_changes_it() -> None:
    apply(contract())
    half = {**PROMISE, "output_tokens_per_minute": 0}
    apply(contract(valid_from=NOVEMBER, reserved_throughput=[half]))
    assert (held(), held(NOVEMBER)) == ({"contract/acme/qwen": 3000}, {"contract/acme/qwen": 1000})
    assert "~ reservation contract/acme/qwen of 0 GPUs in h100 from 2026-11-01T00:00:00Z" in apply(
        contract(valid_from=NOVEMBER, kind="gpu_time", reserved_throughput=[])
    )
    assert (held(), held(NOVEMBER)) == ({"contract/acme/qwen": 3000}, {})
    apply(contract(reserved_throughput=[]))
    assert held() == {}
    assert run_checks(CHECKS) == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"pool": "nowhere"}, r"\[0\]\.pool: unknown pool 'nowhere'"),
        ({"model": "nobody"}, r"\[0\]\.model: unknown model 'nobody'"),
        ({"pool": "h20"}, r"\[0\]\.model: no calibration of 'qwen' on H20 is in force at 2026-10-01"),
        ({"output_tokens_per_minute": -1}, r"output_tokens_per_minute: should be int >= 0"),
        ({"output_tokens_per_minute": 0.5}, r"output_tokens_per_minute: should be int"),
        ({"input_tokens_per_minute": 0, "output_tokens_per_minute": 0}, r"\[0\]: name input_tokens"),
        ({"tokens": 1}, r"\[0\]\.tokens: unknown key"),
    ],
)
def test_a_row_that_says_nothing_usable_is_refused_with_its_path(
    change: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigurationError, match=rf"^contract\[0\]\.reserved_throughput.*{problem}"):
        apply(contract(reserved_throughput=[{**PROMISE, **change}]))
    assert not Contract.objects.exists()


def test_what_the_contract_as_a_whole_cannot_promise_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="belongs to a contract of kind 'tokens'"):
        apply(contract(kind="gpu_time"))
    with pytest.raises(
        ConfigurationError, match=r"reserved_throughput\[1\]: 'qwen' in 'h100' is named twice"
    ):
        apply(contract(reserved_throughput=[PROMISE, PROMISE]))
    with pytest.raises(ConfigurationError, match="no calibration of 'qwen' on H100 is in force at 2026-09"):
        apply(contract(valid_from=datetime(2026, 9, 1, tzinfo=UTC)))
    with pytest.raises(ConfigurationError, match="from the year 2001 on"):
        apply(contract(valid_from=datetime(1970, 1, 1, tzinfo=UTC)))
    assert not Contract.objects.exists()


def test_a_proposal_reserves_nothing_before_a_second_person_agrees(no_broker: None) -> None:
    ensure_books()
    apply()
    finance = client("finance", by="anna")
    row = {"tenant": "acme", "kind": "tokens", "valid_from": "2100-01-01T00:00:00Z", "reason": "agreed"}
    wrong = post(finance, "contracts/", 422, **row, reserved_throughput=[{**PROMISE, "pool": "nowhere"}])
    assert "contract[0].reserved_throughput[0].pool: unknown pool" in wrong["detail"]
    proposal = post(finance, "contracts/", 202, **row, reserved_throughput=[PROMISE])
    assert proposal["changes"][-1].startswith("+ reservation contract/acme/qwen of 3 GPUs in h100")
    assert get(finance, "reservations/")["results"] == []
    post(client("finance", by="bo"), f"approvals/{proposal['approval']}/decide/", 200, decision="approved")
    (planned,) = get(client("tenant_viewer", "acme"), "reservations/")["results"]
    assert (planned["reservation"], planned["gpus"], planned["state"]) == (
        "contract/acme/qwen",
        "3",
        "planned",
    )
    assert get(client("tenant_viewer", "beta"), "reservations/")["results"] == []


def test_it_ends_with_its_contract() -> None:
    ensure_books()
    Ledger.objects.update(options={"approvals": False})
    apply(contract())
    anna = Actor("anna")
    propose_end("contract", Contract.objects.get(kind="tokens").pk, NOVEMBER, "cancelled", anna)
    assert (held(), held(NOVEMBER)) == ({"contract/acme/qwen": 3000}, {})
    assert run_checks(CHECKS) == []


def test_its_event_says_that_a_contract_brought_it() -> None:
    apply(contract())
    event = Event.objects.get()
    user = User.objects.create_user("auditor", password="x")
    Membership.objects.create(user=user, role=Role.AUDITOR)
    address = reverse("ledger:event", args=[event.source_id, event.event_id])
    page = client_of(user).get(address).content.decode()
    assert "contract/acme/qwen" in page and SOURCE in page


def test_a_change_of_throughput_is_no_question_of_who_pays() -> None:
    apply(contract())
    period = Period(month="2026-10", starts_at=OCTOBER, ends_at=NOVEMBER, horizon_at=NOVEMBER)
    row = {"tenant": "acme", "valid_from": OCTOBER.isoformat(), "kind": "tokens", "token_quota": 5}
    with pytest.raises(ComparisonError, match="reserved_throughput changes how time is split"):
        compare_change(period, {"table": "contract", "row": row})
