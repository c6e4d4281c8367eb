"""Each adapter against whole inputs with the events they must give, byte for byte of content.

A golden folder holds `source.json` (the source's configuration) and, per case, `CASE.in*` and `CASE.out.json`. To write
the output of a new case, run `python -m tests.core.adapters.test_golden ADAPTER/CASE` and read what it wrote.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from ingest.core.adapters import load
from ingest.core.adapters.base import SourceConfig
from tests.core.adapters.running import PASS_THROUGH, assert_contract, plain

GOLDEN = Path(__file__).parent / "golden"


def case_names() -> list[str]:
    folders = sorted(path.parent for path in GOLDEN.glob("*/source.json"))
    return [
        f"{folder.name}/{path.name.split('.in')[0]}"
        for folder in folders
        for path in sorted(folder.glob("*.in*"))
    ]


def outcomes(name: str) -> list[dict[str, Any]]:
    folder, case = GOLDEN / name.split("/")[0], name.split("/")[1]
    config = SourceConfig(**json.loads((folder / "source.json").read_text()))
    (given,) = folder.glob(f"{case}.in*")
    lines = given.read_bytes().splitlines(keepends=True)
    return [plain(outcome) for outcome in load(config.adapter).adapt(lines, config, None)]


@pytest.mark.parametrize("name", case_names())
def test_golden(name: str) -> None:
    expected = json.loads((GOLDEN / f"{name}.out.json").read_text())
    assert outcomes(name) == expected


@pytest.mark.parametrize("name", case_names())
def test_a_repeat_says_the_same(name: str) -> None:
    """Ids come from native identity: a second delivery gives the same keys with the same content."""
    once, twice = outcomes(name), outcomes(name)
    assert once == twice
    ids = [event["id"] for event in once if "id" in event]
    by_id = {event["id"]: event for event in once if "id" in event}
    assert all(by_id[i] == event for i, event in zip(ids, (e for e in once if "id" in e), strict=True))


@pytest.mark.parametrize("name", [n for n in case_names() if n.split("/")[0] not in PASS_THROUGH])
def test_every_event_is_one_that_the_door_accepts(name: str) -> None:
    assert_contract(event for event in outcomes(name) if "specversion" in event)


def write(name: str) -> None:
    text = "[\n" + ",\n".join(json.dumps(o, ensure_ascii=False) for o in outcomes(name)) + "\n]\n"
    (GOLDEN / f"{name}.out.json").write_text(text)


if __name__ == "__main__":
    for wanted in sys.argv[1:]:
        write(wanted)
