"""The ways between pages: from one sum to another of the same thing, down to what a figure is made of, and back."""

from __future__ import annotations

import csv
import io
import re
from datetime import UTC, date, datetime, timedelta
from html import unescape
from typing import Any
from uuid import uuid4
from zoneinfo import ZoneInfo

import pytest
from django.test import Client
from django.utils import timezone
from django.utils.html import strip_tags

from billing.core.demand import Funnel
from billing.exports.statement_pdf import _document
from billing.models import Alert, AlertRule, Contract, Policy, Statement
from billing.selectors.pages_lines import SlotDay
from billing.services.months import compute_month
from billing.views.demand import parts_of
from ledger.access import Access
from ledger.core.periods import Month
from ledger.core.units import GPU_US_PER_GPU_HOUR
from ledger.models import FactFinding, Holder, Ledger, Membership, Role, Tenant, User
from ledger.templatetags.figures import gpu_hours_cell
from ledger.views.tables import INSTANT, VALIDITY
from tests.billing.level_facts import MONTH, hour, identity, occupancy
from tests.billing.page_books import HOURS_OF_OCTOBER, Books, client_of, line_position
from tests.billing.page_text import shown_text
from tests.billing.preemption_facts import preemption

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]


def links_in(page: Any, table: str) -> list[str]:
    """Addresses of all links of a table's cells."""
    bound = page.context["tables"][table.removeprefix("table-")]
    return [cell.url for line in bound.lines for cell in line.cells if cell.url]


def test_what_the_platform_took_upon_itself_is_a_step_from_billed_to_charged(
    books: Books, finance: Client
) -> None:
    Policy.objects.update(preemption_charged_to="platform")
    compute_month(Month.parse(MONTH), horizon=hour(HOURS_OF_OCTOBER), everything=True)
    page = finance.get(f"/months/{MONTH}/platform/")
    side = page.context["side"]
    steps = {step.name: step.amount_micro for step in side.charged.steps}
    assert steps["transfer"] == -side.whole.amounts["absorbed"] < 0
    assert (steps["billed"], side.charged.adds_up) == (side.whole.amounts["tenants"], True)
    # The proof is of what stands there: a statement that says something else breaks it.
    Statement.objects.filter(tenant__holder__slug="beta").update(total_micro=1)
    assert "Not proved" in shown_text(finance.get(f"/months/{MONTH}/platform/"))


def test_an_episode_leads_to_its_preemptions(books: Books, finance: Client) -> None:
    page = finance.get(f"/months/{MONTH}/")
    links = links_in(page, "table-episodes")
    assert links[0] == f"/preemptions/{books.record.pk}/"
    assert [finance.get(link).status_code for link in links] == [200, 200]
    assert finance.get(links[1]).context["tables"]["preemptions"].count == 1
    none = finance.get(links[1].replace("wl-4", "wl-5"))
    assert none.context["tables"]["preemptions"].count == 0


def test_days_and_hours_of_a_line_are_of_the_zone_that_is_pressed(books: Books, finance: Client) -> None:
    """gamma borrows 4 GPUs in the hours 2, 3 and 7 to 9 of October in UTC; in New York it is September before 4."""
    Ledger.objects.update(billing_time_zone="America/New_York")
    position = line_position(books.statement("gamma"), "borrowed")
    path = f"/months/{MONTH}/statements/gamma/lines/{position}/"

    def shown(day: str = "") -> tuple[dict[str, int], list[str], str]:
        page = finance.get(path, {"day": day})
        detail, tables = page.context["detail"], page.context["tables"]
        assert detail.gpu_us == sum(one.gpu_us for one in detail.days) == page.context["line"].quantity
        assert tables["workloads"].footer[-1].shown == gpu_hours_cell(20 * GPU_US_PER_GPU_HOUR)
        days = {str(one.day): one.gpu_us // GPU_US_PER_GPU_HOUR for one in detail.days}
        clocks = re.findall(r">(\d\d:\d\d)</time> – ", page.content.decode())
        return days, clocks, shown_text(page)

    days, clocks, text = shown("2026-09-30")
    assert days == {"2026-09-30": 8, "2026-10-01": 12}
    assert clocks == ["22:00", "23:00"]
    assert "of America/New_York" in text and "The work that ran on 2026-09-30 and 2026-10-01 UTC" in text
    assert shown()[1] == ["03:00", "04:00", "05:00"]  # the fullest day is looked at first
    file = csv.DictReader(io.StringIO(finance.get(path, {"csv": "days"}).getvalue().decode()))
    assert [row["starts_at"] for row in file] == ["2026-09-30T04:00:00Z", "2026-10-01T04:00:00Z"]

    finance.post("/preferences/", {"zone": "utc", "next": path})
    days, clocks, text = shown()
    assert (days, clocks) == ({"2026-10-01": 20}, ["02:00", "03:00", "07:00", "08:00", "09:00"])
    assert "of UTC" in text and "The work that ran on 2026-10-01 " in text


@pytest.mark.parametrize("zone", ["UTC", "Asia/Shanghai", "Asia/Kathmandu", "America/Sao_Paulo"])
def test_a_day_of_a_zone_begins_at_its_midnight_and_touches_two_utc_days_at_most(zone: str) -> None:
    day = SlotDay(date(2018, 11, 4), ZoneInfo(zone), [])  # clocks of Sao Paulo skipped that midnight
    assert day.starts_at.astimezone(day.zone).date() == day.day
    assert (day.starts_at - timedelta(seconds=1)).astimezone(day.zone).date() < day.day
    assert [str(one) for one in day.utc_days] == {
        "UTC": ["2018-11-04"],
        "Asia/Shanghai": ["2018-11-03", "2018-11-04"],
        "Asia/Kathmandu": ["2018-11-03", "2018-11-04"],
        "America/Sao_Paulo": ["2018-11-04", "2018-11-05"],
    }[zone]


def crumbs(page: Any) -> list[str]:
    """Addresses of a page's breadcrumbs, and the last one, which is the page itself."""
    (found,) = re.findall(r'<ol class="crumbs">(.*?)</ol>', page.content.decode(), re.DOTALL)
    return [*re.findall(r'href="([^"]*)"', found), strip_tags(found.rpartition("<li")[2]).rpartition(">")[2]]


@pytest.mark.parametrize("name", ["finance", "viewer-of-gamma"])
def test_from_a_line_down_to_its_event_and_back_by_the_breadcrumbs(
    books: Books, people: dict[str, User], name: str
) -> None:
    reader = client_of(people[name])
    position = line_position(books.statement("gamma"), "borrowed")
    statement = f"/months/{MONTH}/statements/gamma/"
    line = f"{statement}lines/{position}/"
    (to_workload,) = links_in(reader.get(line), "table-workloads")
    workload = reader.get(to_workload)
    above = ["/months/", f"/months/{MONTH}/", statement]
    assert crumbs(workload) == [*above, f"{line}?day=2026-10-01#workloads", "wl-3"]
    event = reader.get(next(link for link in links_in(workload, "table-facts") if "gamma-holds-8" in link))
    assert crumbs(event)[0] == to_workload
    assert crumbs(event)[-1] == "gamma-holds-8"
    assert to_workload in links_in(event, "table-levels")
    # Who comes from elsewhere still gets up to the newest statement; a line that is nobody's is not a way.
    next_month = ["/months/", "/months/2026-11/", "/months/2026-11/statements/gamma/"]
    path = f"/workloads/{books.pool.slug}/wl-3/"
    for asked in (
        "",
        "?line=2026-10/gamma/999/2026-10-01",
        "?line=2026-10/gamma/x/",
        "?line=////",
        "?line=%2F",
    ):
        assert crumbs(reader.get(path + asked)) in ([*above, "wl-3"], [*next_month, "wl-3"])


def test_the_way_back_names_no_line_of_somebody_else(books: Books, people: dict[str, User]) -> None:
    position = line_position(books.statement("acme"), "reserved_used")
    path = f"/workloads/{books.pool.slug}/wl-3/?line=2026-10/acme/{position}/2026-10-01"
    assert "/acme/" in crumbs(client_of(people["finance"]).get(path))[2]
    assert not any("acme" in one for one in crumbs(client_of(people["viewer-of-gamma"]).get(path)))


def test_facts_and_reports_that_contradict_are_named_by_their_events_and_lead_to_them(
    books: Books, finance: Client
) -> None:
    lost = occupancy(books.pool, "wl-3", identity("gamma"), hour(2), 1_000, event_id="0-other").event
    preemption(
        books.pool,
        hour(4),
        "wl-3",
        identity("gamma"),
        4_000,
        event_id="report-2",
        preemption="wl-3/4",
        cause="priority",
        lost_gpu_us=8 * 3_600_000_000,
    )
    compute_month(Month.parse(MONTH), horizon=hour(HOURS_OF_OCTOBER), everything=True)
    page = finance.get(f"/months/{MONTH}/")
    groups = {group.code: group for group in page.context["exceptions"]}
    (subject,) = groups["level_conflict"].subjects
    assert subject.text == f"{lost.source.uri} 0-other"
    event = f"/events/{lost.source_id}/0-other/"
    assert f'href="{event}"' in page.content.decode()
    assert finance.get(event).status_code == 200
    (subject,) = groups["merge_conflict"].subjects
    assert subject.text == f"{books.pool.cluster}/wl-3/4"
    record = finance.get(f"/preemptions/{subject.record}/")
    assert record.context["record"].pk == books.record.pk
    assert "report-1: reclaim_own_reservation" in shown_text(record)
    assert "report-2: priority" in shown_text(record)
    # Of many, some are shown and the rest is counted.
    for number in range(8):
        FactFinding.objects.create(code="level_conflict", occurred_at=hour(1), subject=f"event {number}9")
    (group,) = [
        group
        for group in finance.get(f"/months/{MONTH}/").context["exceptions"]
        if (group.code, group.count) == ("level_conflict", 8)
    ]
    assert (len(group.subjects), group.more) == (5, 3)


def test_a_workload_s_page_has_no_preemption_of_another_holder_s_work_of_the_same_id(
    books: Books, finance: Client
) -> None:
    """In one cluster a source may use an id again; whoever holds it now is not who was hit then."""
    path = f"/workloads/{books.pool.slug}/wl-3/"
    assert [side.record.pk for side in finance.get(path).context["sides"]] == [books.record.pk]
    other = books.record
    other.pk, other.preemption = uuid4(), "of another"
    other.victim = Holder.objects.get(slug="delta")
    other.save(force_insert=True)
    (side,) = finance.get(path).context["sides"]
    assert side.record.preemption == "wl-3/4"
    as_preemptor = finance.get(f"/workloads/{books.pool.slug}/wl-4/a/").context["sides"]
    assert len({side.record.pk for side in as_preemptor}) == 2


def test_alerts_that_come_and_go_are_one_line_that_leads_to_them(
    books: Books, finance: Client, people: dict[str, User]
) -> None:
    rule = AlertRule.objects.create(name="short", kind="shortage", threshold_micro=0, severity="critical")
    for number in range(5):
        alert = Alert.objects.create(
            rule=rule,
            subject=f"pool:{books.pool.slug}",
            kind="shortage",
            severity="critical",
            pool=books.pool,
            started_at=hour(number),
            opened_at=hour(number),
            last_seen_at=hour(number),
            resolved_at=None if number == 4 else hour(number + 1 + number % 2),
            state="open" if number == 4 else "resolved",
        )
        if number < 2:  # in several ways at once, for who has both tenants
            alert.audience.set(Tenant.objects.filter(holder__slug__in=["acme", "gamma"]))
    of_ms = 3_600_000
    for reader, count, unresolved, lasted in (
        (finance, 5, 1, 6 * of_ms),
        (client_of(people["viewer-of-acme"]), 2, 0, 3 * of_ms),
        (client_of(people["viewer-of-delta"]), 0, 0, 0),
    ):
        table = reader.get("/alerts/").context["tables"]["by_kind"]
        assert [(row.count, row.unresolved, row.lasted_ms) for row in table.shown] == (
            [(count, unresolved, lasted)] if count else []
        )
        if count:
            (link,) = links_in(reader.get("/alerts/"), "table-by_kind")
            history = reader.get(f"/alerts/{link}").context["tables"]["history"]
            assert history.count == count - unresolved
    Membership.objects.create(
        user=people["viewer-of-acme"],
        role=Role.TENANT_VIEWER,
        tenant=Tenant.objects.get(holder__slug="gamma"),
    )
    of_two = client_of(people["viewer-of-acme"]).get("/alerts/").context["tables"]["by_kind"]
    assert [(row.count, row.lasted_ms) for row in of_two.shown] == [(2, 3 * of_ms)]


def test_instants_of_tables_are_to_the_second_and_exact_in_titles_and_files() -> None:
    at = datetime(2026, 10, 14, 2, 4, 7, 175_000, tzinfo=UTC)
    shown = str(INSTANT.show(at))
    assert ">2026-10-14 02:04:07<" in shown and 'title="2026-10-14 02:04:07.175 UTC"' in shown
    assert INSTANT.export(at) == "2026-10-14T02:04:07.175Z"


def test_from_when_on_terms_hold_is_a_day_where_it_is_a_midnight() -> None:
    with timezone.override(ZoneInfo("Asia/Shanghai")):
        shown = [
            strip_tags(str(VALIDITY.show(at)))
            for at in (
                datetime(2026, 10, 15, 16, tzinfo=UTC),
                datetime(2026, 10, 15, 17, tzinfo=UTC),
                datetime(1970, 1, 1, tzinfo=UTC),
                None,
            )
        ]
    assert shown == ["2026-10-16", "2026-10-16 01:00:00", "always", "–"]


def test_a_share_that_rounds_to_nothing_is_not_shown_as_nothing() -> None:
    whole = Funnel(completed=10_000_000, rejected=0, preempted=0, timed_out=7, aborted=0, failed=0)
    shares = {str(part.name): part.percent for part in parts_of(whole)}
    assert (shares["Timed out"], shares["Rejected"]) == ("<0.001", "0.000")


def test_on_paper_a_line_names_its_preemption_by_the_instant_that_the_page_names(
    books: Books, finance: Client
) -> None:
    """A line of recomputed time begins when the work ran again: at hour 7, of a preemption at hour 4."""
    Policy.objects.update(preemption_charged_to="preemptor")
    compute_month(Month.parse(MONTH), horizon=hour(HOURS_OF_OCTOBER), everything=True)
    statement = books.statement("gamma")
    categories = set(statement.lines.exclude(preemptions=[]).values_list("category", flat=True))
    assert categories == {"preemption_lost", "preemption_recompute"}
    document = _document(statement, Access(name="auditor", roles=frozenset({Role.AUDITOR})))
    details = [line["details"] for group in document["groups"] for line in group["lines"]]
    assert [text for text in details if "preemption" in text] == ["preemption of 2026-10-01 04:00"] * 2
    assert (
        shown_text(finance.get(f"/months/{MONTH}/statements/gamma/")).count(
            "preemption of 2026-10-01 04:00:00"
        )
        == 2
    )


def test_from_a_line_the_next_month_is_the_tenant_s_next_statement(books: Books, finance: Client) -> None:
    position = line_position(books.statement("gamma"), "borrowed")
    page = finance.get(f"/months/{MONTH}/statements/gamma/lines/{position}/").content.decode()
    links = re.findall(r'href="(/months/2026-11/[^"]*)"', page)
    assert "/months/2026-11/statements/gamma/" in links
    assert "/months/2026-11/" not in links


def test_a_tenant_reads_apart_what_it_lent_and_what_it_borrowed(
    books: Books, people: dict[str, User], finance: Client
) -> None:
    path = f"/months/{MONTH}/lending/"
    of_acme, of_gamma = (client_of(people[f"viewer-of-{name}"]).get(path) for name in ("acme", "gamma"))
    assert "You lent 20.00 GPU-hours; 0.00 GPU-hours of others' reservations" in unescape(shown_text(of_acme))
    assert "You lent 0.00 GPU-hours; 20.00 GPU-hours of others' reservations" in unescape(
        shown_text(of_gamma)
    )
    assert "20.00 GPU-hours of reservations ran the work of others" in shown_text(finance.get(path))


def test_a_tenant_reads_the_prices_and_rules_that_it_is_billed_by_and_no_contract_of_another(
    books: Books, people: dict[str, User]
) -> None:
    for slug in ("acme", "gamma"):
        tenant = Tenant.objects.get(holder__slug=slug)
        Contract.objects.create(tenant=tenant, valid_from=hour(0), kind="gpu_time", recorded_by="somebody")
    client = client_of(people["viewer-of-gamma"])
    assert 'href="/rates/"' in client.get("/months/").content.decode()
    page = client.get("/rates/")
    tables = page.context["tables"]
    assert [row.row.tenant.slug for row in tables["contracts"].shown] == ["gamma"]
    assert tables["gpu_prices"].count == 5
    assert (tables["rate_cards"].count, tables["policies"].count) == (1, 1)
    # Who recorded it and why is for those who run the ledger.
    assert "somebody" not in page.content.decode()
    assert not {"by", "reason"} & {column.key for table in tables.values() for column in table.table.columns}
