"""Load tests become candidates for calibrations, with their spread (domain.md section 7)."""

from __future__ import annotations

import io
import tomllib
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command

from billing.core.load_tests import LoadTestError, candidates, read_runs
from billing.models import Calibration, LoadTestRun
from billing.services.configuration import apply_document
from ledger.management.base import BadInput
from ledger.models import AuditEntry

HEADER = (
    "load_test,run,model,gpu_model,gpus,duration_seconds,input_tokens,cached_input_tokens,output_tokens,"
    "gpu_seconds,concurrency"
)
# 2 GPU-us per input token, 10 per output token; the last run took 10 % more.
EXACT = [
    "week-40,a,qwen,H100,8,60,1000000,0,100000,3,96",
    "week-40,b,qwen,H100,8,60,100000,0,400000,4.2,64",
]
OFF = "week-41,a,qwen,H100,4,60,500000,0,500000,6.6,24"


def csv_of(*rows: str) -> str:
    return "\n".join([HEADER, *rows]) + "\n"


def test_costs_are_fitted_and_their_spread_is_shown() -> None:
    (exact,), left = candidates(read_runs(csv_of(*EXACT)))
    assert left == []
    assert (exact.cost.input_gpu_us_per_1k, exact.cost.output_gpu_us_per_1k) == (2000, 10_000)
    assert (exact.spread_ppm, exact.residual_gpu_us, exact.concurrency_per_gpu_milli) == ((0, 0), 0, 12_000)
    (more,), _ = candidates(read_runs(csv_of(*EXACT, OFF)))
    assert more.load_tests == ("week-40", "week-41") and more.runs == 3
    assert more.spread_ppm[0] < 0 < more.spread_ppm[1] < 100_000
    assert more.concurrency_per_gpu_milli == 6_000


def test_without_measured_time_it_is_gpus_times_time() -> None:
    (run,) = read_runs(csv_of("t,a,qwen,H100,2,1.5,10,0,1,,"))
    assert run.gpu_us == 2000 * 1500


def test_runs_that_do_not_tell_input_from_output_give_no_candidate() -> None:
    assert candidates(read_runs(csv_of(EXACT[0]))) == ([], [("qwen", "H100")])


def test_json_lines_say_the_same() -> None:
    row = (
        '{"load_test": "t", "model": "m", "gpu_model": "H100", "gpus": "1", "duration_seconds": 2, '
        '"input_tokens": 3, "output_tokens": 4}'
    )
    (run,) = read_runs(row)
    assert (run.run, run.gpu_us, run.concurrency) == ("1", 2_000_000, None)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no runs"),
        (HEADER + "\n", "no runs"),
        (csv_of("t,a,qwen,H100,8,60,-1,0,1,3,"), "line 2: '-1' is not a whole number"),
        (csv_of("t,a,qwen,H100,8,60,1,2,1,3,"), "line 2: more cached"),
        (csv_of("t,a,qwen,H100,NaN,60,1,0,1,3,"), "line 2"),
        (csv_of("t,a,qwen,H100,8,0,1,0,1,,"), "line 2: it took no GPU time"),
        (csv_of("t,a,,H100,8,60,1,0,1,3,"), "line 2: missing: model"),
        (csv_of(EXACT[0], EXACT[0]), "line 3: run 'a' of 'week-40' is there twice"),
        ('{"x": 1}', "line 1: missing"),
        ("{nothing", "line 1: not JSON"),
        ("a,b\n1,2\n", "line 2: missing"),
    ],
)
def test_what_cannot_be_used_is_named(text: str, problem: str) -> None:
    with pytest.raises(LoadTestError, match=problem):
        read_runs(text)


@pytest.mark.django_db
@pytest.mark.postgres
def test_the_command_keeps_runs_and_its_output_can_be_applied(tmp_path: Path) -> None:
    file = tmp_path / "runs.csv"
    file.write_text(csv_of(*EXACT))
    said: list[Any] = []
    for _ in range(2):
        out, err = io.StringIO(), io.StringIO()
        call_command("import_load_test", str(file), valid_from="2026-12-01T00:00:00Z", stdout=out, stderr=err)
        said.append((out.getvalue(), err.getvalue()))
    assert [err for _, err in said] == ["2 new runs of 2 kept\n", "0 new runs of 2 kept\n"]
    assert said[0][0] == said[1][0]
    assert LoadTestRun.objects.count() == 2 and not Calibration.objects.exists()
    assert AuditEntry.objects.filter(action="import_load_test").count() == 1
    document = tomllib.loads(said[0][0]) | {"pool": [{"slug": "p", "cluster": "c", "gpu_model": "H100"}]}
    apply_document(document)
    calibration = Calibration.objects.get()
    assert (calibration.input_gpu_us_per_1k, calibration.concurrency_per_gpu_milli) == (2000, 12_000)
    assert calibration.load_test == "week-40"
    file.write_text(csv_of(EXACT[0].replace("1000000", "1000001")))
    with pytest.raises(BadInput, match="is kept with other numbers"):
        call_command("import_load_test", str(file), stdout=io.StringIO(), stderr=io.StringIO())
