"""What every test may use. Services are in fixtures/services.py, the browser in fixtures/browser.py,
Prometheus in fixtures/prometheus.py, the order of the tests in fixtures/order.py.

The suite runs against DATABASE_URL if it is set, else against an embedded server of its own in var/test.
In-process Celery publishes into memory; a test that wants a real broker asks for `broker_url`.
"""

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.conf import settings
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from django.dispatch import receiver
from django.utils import translation
from hypothesis import HealthCheck, Verbosity
from hypothesis import settings as hypothesis_settings

pytest_plugins = [
    "tests.fixtures.services",
    "tests.fixtures.live_server",
    "tests.fixtures.browser",
    "tests.fixtures.prometheus",
    "tests.fixtures.demo_month",
    "tests.fixtures.order",
    "tests.fixtures.rows",
]

# What is imported and collected stays until the end; looking through it again and again took a twelfth of the time.
gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


SLOW_MACHINE = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
hypothesis_settings.register_profile(
    "dev", max_examples=25, deadline=None, suppress_health_check=SLOW_MACHINE
)
hypothesis_settings.register_profile(
    "ci", max_examples=100, deadline=None, suppress_health_check=SLOW_MACHINE
)
hypothesis_settings.register_profile(
    "debug", max_examples=10, deadline=None, verbosity=Verbosity.verbose, suppress_health_check=SLOW_MACHINE
)
hypothesis_settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "dev")
)


@receiver(connection_created)
def may_empty_tables(connection: BaseDatabaseWrapper, **_: object) -> None:
    """Tests that commit leave their tables to TRUNCATE, which guarded ones refuse everybody else."""
    with connection.cursor() as cursor:
        cursor.execute("SET ledger.emptied_by_tests = 'yes'")


@pytest.fixture(autouse=True)
def own_language() -> Iterator[None]:
    """A page answered inside of the process leaves the reader's language active for whatever runs next."""
    yield
    translation.deactivate()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The directory with `real_month` and `load`; its absence fails the test, it never passes unseen."""
    given = os.environ.get("LEDGER_SHARED")
    root = Path(given) if given else settings.BASE_DIR.parent / "shared"
    for candidate in (root, root / "data"):
        if (candidate / "real_month").is_dir():
            return candidate
    pytest.fail(
        f"The shared data is not there: no real_month in {root} or {root / 'data'}. "
        "Put it beside the checkout as ../shared/data or set LEDGER_SHARED to its directory.",
        pytrace=False,
    )
