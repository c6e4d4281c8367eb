"""CSV with a column map: one bad row takes no neighbour with it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.adapters.running import events_of, refused_of, run

Obj = dict[str, Any]

COLUMNS = {
    "id": "id",
    "time": "at",
    "workload": "job",
    "identity.value": "account",
    "pool": "partition",
    "gpus": "gpus",
}
OPTIONS: Obj = {"type": "occupancy", "columns": COLUMNS, "constants": {"identity.kind": "slurm_account"}}
HEADER = "id,at,job,account,partition,gpus"


def table(*rows: str | bytes, **options: Any) -> list[Any]:
    return run("csv", [HEADER, *rows], pools={"gpu": "p1"}, options={**OPTIONS, **options})


def test_a_column_map_makes_events_of_any_type() -> None:
    (event,) = events_of(table("o-1,2026-10-03T04:00:00Z,j-1,vision,gpu,2.5"))
    assert (event["id"], event["type"]) == ("o-1", "ledger.occupancy.v1")
    assert event["data"] == {
        "workload": "j-1",
        "identity": {"kind": "slurm_account", "value": "vision"},
        "pool": "p1",
        "gpus": "2.5",
    }


def test_an_empty_cell_is_absent() -> None:
    columns = {**COLUMNS, "name": "name", "user": "user"}
    rows = [f"{HEADER},name,user", "o-1,2026-10-03T04:00:00Z,j-1,vision,gpu,0,, "]
    (event,) = events_of(run("csv", rows, pools={"gpu": "p1"}, options={**OPTIONS, "columns": columns}))
    assert event["data"]["gpus"] == "0", "0 is a statement"
    assert "name" not in event["data"] and "user" not in event["data"]


def test_a_quote_left_open_takes_no_neighbour_with_it() -> None:
    good = "{},2026-10-03T04:00:00Z,j,a,gpu,1"
    outcomes = table(good.format("o-1"), 'o-2,2026-10-03T04:00:00Z,"j,a,gpu,1', good.format("o-3"))
    assert [event["id"] for event in events_of(outcomes)] == ["o-1", "o-3"]
    (refused,) = refused_of(outcomes)
    assert refused.record.splitlines()[0].decode() == HEADER, "a retry needs the header"


def test_bytes_that_are_no_text_are_refused_alone() -> None:
    outcomes = table(b"o-1,\xff\xfe,j,a,gpu,1", "o-2,2026-10-03T04:00:00Z,j,a,gpu,1")
    assert [r.reason for r in refused_of(outcomes)] == ["bad_record"]
    assert len(events_of(outcomes)) == 1


def test_under_a_header_without_a_mapped_column_every_row_is_refused_with_it() -> None:
    state: Obj = {}
    outcomes = run("csv", ["id,at", "1,2"], state, options=OPTIONS)
    outcomes += run("csv", ["3,4"], state, options=OPTIONS)
    refused = refused_of(outcomes)
    assert [one.record for one in refused] == [b"id,at", b"id,at\n1,2", b"id,at\n3,4"]
    assert all("account" in one.detail for one in refused) and events_of(outcomes) == []
    good = [HEADER, "o-1,2026-10-03T04:00:00Z,j,a,gpu,1"]
    (event,) = events_of(run("csv", good, state, pools={"gpu": "p1"}, options=OPTIONS))
    assert event["id"] == "o-1", "the next file has another header"


def test_a_table_without_an_id_column_takes_several_together() -> None:
    columns = {field: column for field, column in COLUMNS.items() if field != "id"}
    outcomes = table("x,2026-10-03T04:00:00Z,j-1,vision,gpu,1", columns=columns, id_columns=["job", "at"])
    assert events_of(outcomes)[0]["id"] == "j-1/2026-10-03T04:00:00Z"


def test_a_byte_order_mark_is_no_part_of_the_first_name() -> None:
    rows: list[str | bytes] = [b"\xef\xbb\xbf" + HEADER.encode(), "o-1,2026-10-03T04:00:00Z,j,a,gpu,1"]
    assert len(events_of(run("csv", rows, pools={"gpu": "p1"}, options=OPTIONS))) == 1


@pytest.mark.parametrize(
    ("time_format", "text"),
    [("unix", "1791000000"), ("unix_ms", "1791000000000"), ("local", "2026-10-03 12:00:00")],
)
def test_times_come_in_the_stated_form(time_format: str, text: str) -> None:
    options = {**OPTIONS, "time_format": time_format}
    lines = [HEADER, f"o-1,{text},j,a,gpu,1"]
    (event,) = events_of(run("csv", lines, pools={"gpu": "p1"}, options=options, time_zone="Asia/Shanghai"))
    assert event["time"] == "2026-10-03T04:00:00Z"


def test_options_that_make_no_sense_are_a_configuration_error() -> None:
    with pytest.raises(ValueError, match="id_columns"):
        run("csv", [HEADER], options={"columns": {"time": "at"}})
    with pytest.raises(ValueError, match="time_format"):
        run("csv", [HEADER], options={**OPTIONS, "time_format": "moon"})


def test_two_tables_of_one_source_do_not_share_rows() -> None:
    constants: Obj = {"identity": {"kind": "slurm_account"}}
    rows = ["o-1,2026-10-03T04:00:00Z,j,a,gpu,1", "o-2,2026-10-03T04:00:00Z,j,b,gpu,1"]
    first, second = events_of(table(*rows, constants=constants))
    assert (first["data"]["identity"]["value"], second["data"]["identity"]["value"]) == ("a", "b")
    assert constants == {"identity": {"kind": "slurm_account"}}


def test_the_next_file_of_a_source_may_repeat_the_header() -> None:
    state: Obj = {}
    rows = [[HEADER, f"o-{n},2026-10-03T04:00:00Z,j,a,gpu,1"] for n in (1, 2)]
    outcomes = [o for file in rows for o in run("csv", file, state, pools={"gpu": "p1"}, options=OPTIONS)]
    assert [event["id"] for event in events_of(outcomes)] == ["o-1", "o-2"]
    assert refused_of(outcomes) == []


def test_events_pass_as_they_are_whatever_they_are() -> None:
    """The contract judges them; this adapter neither changes nor drops one."""
    foreign = {
        "specversion": "1.0",
        "id": "gw-551",
        "source": "urn:gw",
        "type": "llm.request.completed",
        "data": {},
    }
    assert run("cloudevents", [foreign]) == [foreign]
