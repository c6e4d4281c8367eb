"""A typed Python client, generated from the schema of the running server, works against it."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pytest_django.live_server_helper import LiveServer
from pytest_django.plugin import DjangoDbBlocker

from ingest.services.booking import book_batch
from ledger.models import Role
from ledger.services.tokens import create_api_token
from tests.billing.page_books import MONTH, make_books

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.postgres]

NAME = "generated_ledger_client"
CONFIG = """
post_hooks: []
content_type_overrides:
  application/zip: application/octet-stream
  application/pdf: application/octet-stream
"""


def schema_of(url: str) -> dict[str, Any]:
    """The served schema. Of the forms of a body the generator takes one event: for arrays it writes code that fails."""
    with urllib.request.urlopen(f"{url}/api/v1/schema/?format=json") as answer:
        schema: dict[str, Any] = json.load(answer)
    bodies = schema["paths"]["/api/v1/events/"]["post"]["requestBody"]["content"]
    for form in ("application/cloudevents-batch+json", "application/x-ndjson", "application/json"):
        bodies.pop(form, None)
    return schema


@pytest.fixture(scope="module")
def package(
    django_db_setup: None,
    django_db_blocker: DjangoDbBlocker,
    live_server: LiveServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """The directory with the client; writing it takes longer than using it."""
    directory = tmp_path_factory.mktemp("client")
    with django_db_blocker.unblock():
        (directory / "schema.json").write_text(json.dumps(schema_of(live_server.url)))
    (directory / "config.yml").write_text(CONFIG)
    arguments = ["--path", "schema.json", "--config", "config.yml", "--meta", "none", "--output-path", NAME]
    done = subprocess.run(
        [sys.executable, "-m", "openapi_python_client", "generate", "--fail-on-warning", *arguments],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return directory


@pytest.fixture
def generated(package: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(package))
    yield importlib.import_module(NAME)
    for name in [name for name in sys.modules if name.partition(".")[0] == NAME]:
        del sys.modules[name]


def operation(name: str) -> Any:
    return importlib.import_module(f"{NAME}.api.api.{name}")


def test_allocations_statements_and_events_by_the_generated_client(
    generated: ModuleType, live_server: LiveServer
) -> None:
    make_books()

    def client(role: Role) -> Any:
        _, secret = create_api_token(f"of {role}", role)
        return generated.AuthenticatedClient(base_url=live_server.url, token=secret)

    reader = client(Role.AUDITOR)
    rows = operation("allocations_list").sync(client=reader, window=MONTH, by="tenant,category").results
    assert {(row.tenant, row.category): row.gpu_hours for row in rows}["acme", "reserved_used"] == "44"
    statements = operation("statements_list").sync(client=reader).results
    assert {row.tenant for row in statements} >= {"acme", "beta", "gamma"}

    event = {
        "specversion": "1.0",
        "id": "by-client",
        "source": "/tests/client",
        "type": "ledger.capacity.v1",
        "time": "2026-10-01T00:00:00Z",
        "data": {"pool": "bj-h100", "gpus": 16},
    }
    body = importlib.import_module(f"{NAME}.models").EventsCreateBody.from_dict(event)
    receipt = operation("events_create").sync(client=client(Role.PLATFORM), body=body)
    assert receipt.received == 1
    book_batch(receipt.batch, wait=True)
    batch = operation("batches_retrieve").sync(batch_id=receipt.batch, client=reader)
    assert (batch.received, batch.booked, batch.quarantined) == (1, 1, 0)


def test_what_goes_wrong_is_a_typed_problem(generated: ModuleType, live_server: LiveServer) -> None:
    nobody = generated.AuthenticatedClient(base_url=live_server.url, token="gl_wrong")
    answer = operation("statements_list").sync_detailed(client=nobody)
    assert answer.status_code == 401
    assert answer.parsed.code
