"""What a tenant reads of preemptions: links that it may open, and both sides of what it did to itself."""

from __future__ import annotations

import csv
import io
import re
from uuid import uuid4

import pytest

from billing.models import PreemptionRecord, PreemptionShare
from ledger.models import Account, Tenant, User
from tests.billing.level_facts import make_service
from tests.billing.page_books import MONTH, Books, client_of

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]

LINK = re.compile(r'href="(/[^"#]*)"')


def hit_of_a_shared_service(books: Books) -> PreemptionRecord:
    """acme takes from a service that nobody owns and that served gamma."""
    record = books.read_again().record
    record.pk, record.preemption, record.victim_workload = uuid4(), "chat-0/1", "chat-0"
    record.victim = make_service("chat").holder
    record.save(force_insert=True)
    gamma = Tenant.objects.get(holder__slug="gamma")
    PreemptionShare.objects.create(record=record, account=Account.objects.get(tenant=gamma), milli_gpus=4_000)
    return record


@pytest.mark.parametrize("who", ["finance", "viewer-of-acme", "viewer-of-gamma"])
def test_every_link_of_a_preemption_opens(who: str, books: Books, people: dict[str, User]) -> None:
    client, broken = client_of(people[who]), []
    for record in (books.record, hit_of_a_shared_service(books)):
        body = client.get(f"/preemptions/{record.pk}/").content.decode()
        links = {link.replace("&amp;", "&") for link in LINK.findall(body)}
        broken += [link for link in links if client.get(link, follow=True).status_code != 200]
    assert broken == []
    assert "chat-0" in body  # what a shared service is called is nobody's secret
    own = {"finance": 2, "viewer-of-acme": 1, "viewer-of-gamma": 1}[who]
    first = client.get(f"/preemptions/{books.record.pk}/").content.decode()
    assert first.count('href="/workloads/') == own


def test_own_on_own_stands_twice_on_the_page_and_in_csv(books: Books, people: dict[str, User]) -> None:
    """docs/files.md: as victim and as cause. The page counts it once, and says so."""
    record = books.read_again().record
    record.pk, record.preemption, record.victim_workload = uuid4(), "wl-1/4", "wl-1"
    acme = Tenant.objects.get(holder__slug="acme")
    record.victim = acme.holder
    record.save(force_insert=True)
    PreemptionShare.objects.create(record=record, account=Account.objects.get(tenant=acme), milli_gpus=4_000)
    client = client_of(people["viewer-of-acme"])
    path = f"/months/{MONTH}/preemptions/"
    page = client.get(path)
    table = page.context["tables"]["preemptions"]
    sides = [side.role for side in table.shown if side.record.pk == record.pk]
    assert (sides, table.count, len(table.shown)) == (["victim", "cause"], 2, 3)
    assert "stands in two rows" in page.content.decode()
    for file, key in (
        (f"{path}?csv=preemptions", str(record.pk)),
        (f"/months/{MONTH}/statements/acme/preemptions.csv", "wl-1/4"),
    ):
        rows = list(csv.DictReader(io.StringIO(client.get(file).getvalue().decode("utf-8-sig"))))
        assert len(rows) == 3, file
        assert sum(row["preemption"] == key for row in rows) == 2, file
    finance = client_of(people["finance"]).get(path)
    assert "stands in two rows" not in finance.content.decode()
