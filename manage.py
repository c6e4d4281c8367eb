#!/usr/bin/env python3
"""Command line of the ledger."""

import os
import signal
import sys
from types import FrameType


def _exit_on_sigterm(signum: int, frame: FrameType | None) -> None:
    # SystemExit runs the exit handlers, and those stop an embedded server that nobody else uses.
    sys.exit(128 + signum)


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "ledger.config.settings")
    signal.signal(signal.SIGTERM, _exit_on_sigterm)
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
