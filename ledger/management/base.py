"""What every command of the ledger does alike: an example in its help, progress, one line for bad input."""

import sys
from collections.abc import Iterable, Iterator, Sized
from typing import Any, TypeVar

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import OperationalError

from ledger.embedded import EmbeddedServiceError
from ledger.management import tables
from ledger.management.progress import Progress

T = TypeVar("T")

EXIT_FAILURE = 1
EXIT_BAD_INPUT = 2
EXIT_INCOMPLETE = 3
EXIT_INTERRUPTED = 130


class BadInput(CommandError):
    """The user gave something that cannot be used; the message is one line that says what and where."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class CommandFailed(CommandError):
    """The input was fine and the work still could not be done, or found something wrong: exit 1."""


class InputBrokeOff(CommandError):
    """All that could be read was done, and there was more that could not be read: exit 3."""


class LedgerCommand(BaseCommand):
    """Base of all commands. Set `help` and `example`; `BadInput` (or any `CommandError`) exits with 2,
    `CommandFailed` with 1, `InputBrokeOff` with 3, each after one line and without a traceback."""

    example = ""
    needs_tables = True
    requires_system_checks: list[str] = []

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        if self.example:
            kwargs.setdefault("epilog", f"example: {self.example}")
        parser = super().create_parser(prog_name, subcommand, **kwargs)
        # argparse prints the usage before its message; the one line that names the mistake is enough.
        parser.print_usage = lambda file=None: None  # type: ignore[method-assign]
        return parser

    def execute(self, *args: Any, **options: Any) -> Any:
        try:
            if self.needs_tables and getattr(self, "_called_from_command_line", False):
                self._see_to_the_tables()
            return super().execute(*args, **options)
        except KeyboardInterrupt:
            self._leave(options, "interrupted", EXIT_INTERRUPTED)
        except CommandFailed as error:
            self._leave(options, str(error), EXIT_FAILURE)
        except InputBrokeOff as error:
            self._leave(options, str(error), EXIT_INCOMPLETE)
        except CommandError as error:
            self._leave(options, str(error), EXIT_BAD_INPUT)
        except EmbeddedServiceError as error:
            self._leave(options, str(error), EXIT_FAILURE)
        except OperationalError as error:
            self._leave(options, f"the database does not answer: {_first_line(error)}", EXIT_FAILURE)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError) as error:
            self._leave(options, f"{error.filename}: {error.strerror}", EXIT_BAD_INPUT)

    def _see_to_the_tables(self) -> None:
        """A new machine needs no step before its first command; a database that others tend is left to them."""
        if tables.are_up_to_date():
            return
        if not tables.is_ours():
            raise CommandFailed("the database's tables are not up to date; run manage.py migrate first")
        self.stderr.write("Bringing the tables up to date")
        tables.bring_up_to_date()

    def progress(
        self, items: Iterable[T], label: str, total: int | None = None, unit: str = ""
    ) -> Iterator[T]:
        """Give the items one by one and show how far it is; the total is taken from a sized iterable."""
        if total is None and isinstance(items, Sized):
            total = len(items)
        with Progress(self.stderr, label, total, unit) as shown:
            for item in items:
                yield item
                shown.advance()

    def _leave(self, options: dict[str, Any], message: str, code: int) -> None:
        """On the command line print one line and exit; in a program, or with --traceback, re-raise."""
        if not getattr(self, "_called_from_command_line", False) or options.get("traceback"):
            raise
        name = type(self).__module__.rpartition(".")[2]
        self.stderr.write(f"{name}: {message}")
        sys.exit(code)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
