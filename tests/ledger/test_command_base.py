"""What every command does alike: one line for bad input, exit codes, an example, progress."""

import io
from argparse import ArgumentParser

import pytest
from django.core.management.base import CommandError
from django.db import OperationalError

from ledger.management.base import BadInput, CommandFailed, LedgerCommand
from ledger.management.progress import Progress


class Sample(LedgerCommand):
    help = "Do something."
    example = "manage.py sample 3"
    needs_tables = False

    def __init__(self, error: BaseException | None = None) -> None:
        self.errors = io.StringIO()
        super().__init__(stderr=self.errors)  # type: ignore[arg-type]
        self.error = error

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("count", type=int)

    def handle(self, *args: object, **options: object) -> None:
        if self.error:
            raise self.error


def exit_code(command: Sample, *arguments: str) -> object:
    with pytest.raises(SystemExit) as left:
        command.run_from_argv(["manage.py", "sample", *arguments])
    return left.value.code


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (BadInput("line 3:\n  no such pool"), 2, "line 3: no such pool"),
        (CommandError("no such month"), 2, "no such month"),
        (CommandFailed("2 invariants are broken"), 1, "2 invariants are broken"),
        (FileNotFoundError(2, "No such file or directory", "x.toml"), 2, "x.toml: No such file or directory"),
        (OperationalError("connection refused\nhint"), 1, "the database does not answer: connection refused"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(error: BaseException, code: int, line: str) -> None:
    command = Sample(error)
    assert exit_code(command, "3") == code
    assert command.errors.getvalue() == f"test_command_base: {line}\n"


def test_a_bug_still_shows_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        Sample(ZeroDivisionError()).run_from_argv(["manage.py", "sample", "3"])


def test_an_argument_of_the_wrong_type_is_one_line_and_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(Sample(), "three") == 2
    printed = capsys.readouterr().err
    assert printed == "manage.py sample: error: argument count: invalid int value: 'three'\n"


def test_help_shows_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(Sample(), "--help") == 0
    assert "example: manage.py sample 3" in capsys.readouterr().out


def test_progress_is_plain_lines_away_from_a_terminal() -> None:
    command = Sample()
    assert list(command.progress([1, 2, 3], "Booking", unit="batches")) == [1, 2, 3]
    assert command.errors.getvalue().splitlines() == [
        "Booking: 0 of 3 batches (0 %), 0 s",
        "Booking: 3 of 3 batches (100 %), 0 s",
    ]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_one_bar_on_a_terminal() -> None:
    screen = Terminal()
    with Progress(screen, "Booking", total=4) as progress:
        progress.advance(2)
    drawn = screen.getvalue()
    assert drawn.count("\n") == 1
    assert "[###############...............] Booking: 2 of 4 (50 %)" in drawn
