"""Progress of long work: a bar on a terminal, plain lines anywhere else."""

import time
from typing import Any

BAR_WIDTH = 30
REDRAW_SECONDS = 0.1
LINE_SECONDS = 10.0


class Progress:
    """Counts work done and shows it; a total of None shows the count alone.

    >>> with Progress(stream, "Booking", total=3, unit="batches") as progress:
    ...     progress.advance()
    """

    def __init__(self, stream: Any, label: str, total: int | None = None, unit: str = "") -> None:
        self.stream = stream
        self.label = label
        self.total = total
        self.unit = f" {unit}" if unit else ""
        self.done = 0
        self.detail = ""
        self._is_terminal = bool(getattr(stream, "isatty", lambda: False)())
        self._shown_at = self._started_at = time.monotonic()

    def __enter__(self) -> "Progress":
        self._show()
        return self

    def __exit__(self, error_type: object, error: object, traceback: object) -> None:
        self._show()
        if self._is_terminal:
            self._write("\n")

    def advance(self, count: int = 1) -> None:
        self.done += count
        self._show_now_and_then()

    def say(self, detail: str) -> None:
        """What else there is to tell, such as what became of the work done; stays until something else is said."""
        self.detail = detail
        self._show_now_and_then()

    def _show_now_and_then(self) -> None:
        pause = REDRAW_SECONDS if self._is_terminal else LINE_SECONDS
        if time.monotonic() - self._shown_at >= pause:
            self._show()

    def line(self) -> str:
        """The present state in words, such as `Booking: 3 of 12 batches (25 %), 4 s`."""
        seconds = f"{time.monotonic() - self._started_at:.0f} s" + (f"; {self.detail}" if self.detail else "")
        if self.total is None:
            return f"{self.label}: {self.done}{self.unit}, {seconds}"
        percent = 100 * self.done // self.total if self.total else 100
        return f"{self.label}: {self.done} of {self.total}{self.unit} ({percent} %), {seconds}"

    def _show(self) -> None:
        self._shown_at = time.monotonic()
        if not self._is_terminal:
            self._write(self.line() + "\n")
        elif self.total:
            filled = min(BAR_WIDTH, BAR_WIDTH * self.done // self.total)
            self._write(f"\r[{'#' * filled}{'.' * (BAR_WIDTH - filled)}] {self.line()}\033[K")
        else:
            self._write(f"\r{self.line()}\033[K")

    def _write(self, text: str) -> None:
        # Django's OutputWrapper adds a newline unless told otherwise; a plain stream has no `ending`.
        inner = getattr(self.stream, "_out", self.stream)
        inner.write(text)
        inner.flush()
