#!/usr/bin/env python3
"""Command line of the ledger."""

import os
import signal
import sys
from types import FrameType


def exit_on_signal(signum: int, frame: FrameType | None) -> None:
    # SystemExit runs the exit handlers, and those stop an embedded server that nobody else uses.
    sys.exit(128 + signum)


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "ledger.config.settings")
    signal.signal(signal.SIGTERM, exit_on_signal)
    try:
        from django.core.exceptions import ImproperlyConfigured
        from django.core.management import execute_from_command_line
        from django.db import OperationalError
    except ImportError:
        sys.exit(
            "manage.py: Django is not installed in this Python; run `make install`, then .venv/bin/python."
        )
    try:
        execute_from_command_line(sys.argv)
    except ImproperlyConfigured as error:
        # Of a driver that does not load Django says only that it does not; why, the first error says.
        first: BaseException = error
        while cause := first.__cause__ or first.__context__:
            first = cause
        said = f"{error}; {first}" if isinstance(first, ImportError) else f"{error}"
        print("manage.py:", " ".join(said.split()), file=sys.stderr)
        sys.exit(2)
    except OperationalError as error:
        if "--traceback" in sys.argv:
            raise
        print(f"manage.py: the database does not answer: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
