"""The map in front of each core package names all that is there, once, and nothing that is gone."""

import pkgutil
import re
from collections import Counter
from types import ModuleType

import pytest

import billing.core
import ingest.core
import ledger.core


@pytest.mark.parametrize("package", [ledger.core, billing.core, ingest.core], ids=lambda one: one.__name__)
def test_the_map_of_a_core_package_names_every_module_once(package: ModuleType) -> None:
    named = Counter(re.findall(r"`(\w+)`", package.__doc__ or ""))
    named.pop("window", None)
    assert named == Counter(module.name for module in pkgutil.iter_modules(package.__path__))
