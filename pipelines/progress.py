"""How far a stage is: a bar on a terminal, a line now and then elsewhere. Always on stderr.

What has no units to count says what it is doing once it takes longer than two seconds: `busy`.
"""

import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from littledragon.schemas.gates import STATES

LINE_EVERY_S = 5.0
BUSY_AFTER_S = 2.0
UNSTABLE = "default_unstable"
"""What verify says where the default schedule's own timings differ: the machine was busy, or the kernel is short."""


@contextmanager
def busy(words: str) -> Iterator[None]:
    """Say what is being done, in one line, if it takes longer than two seconds."""
    timer = threading.Timer(BUSY_AFTER_S, say, [f"{words} …"])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class Progress:
    """Counts the units of one stage. `plan` sets the total and what had ended before; `ended` counts one more."""

    def __init__(self, stage: str) -> None:
        self.stage = stage
        self._total = 0
        self._counts: Counter[str] = Counter()
        self._reasons: Counter[str] = Counter()
        """Why units were rejected."""
        self._here = 0
        self._started = self._printed = time.monotonic()
        self._bar: Any = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.status import Status

            self._bar = Status(f"{self.stage}: planning", console=Console(stderr=True))
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()
        if not self._total and kind is not None:
            return
        took = f" in {_duration(time.monotonic() - self._started)}" if self._here else ""
        hint = " (dragon status says why; --retry failed does them again)" if self._counts["failed"] else ""
        if self._reasons[UNSTABLE]:
            hint += f" (timings varied: leave the machine idle, and --retry {UNSTABLE} does those again)"
        say(f"{self._line()}{took}{hint}" if kind is None else f"{self._line()} (stopped)")

    def plan(self, total: int, ended: Sequence[tuple[str, str | None]]) -> None:
        """So many units are planned, and these have ended already: state and reason."""
        self._total, self._counts = total, Counter(state for state, _ in ended)
        self._reasons = Counter(reason for state, reason in ended if state == "rejected" and reason)
        self._show(at_once=len(ended) < total and self._here == 0)

    def ended(self, state: str, reason: str | None = None) -> None:
        """One more unit has ended."""
        self._counts[state] += 1
        if state == "rejected" and reason:
            self._reasons[reason] += 1
        self._here += 1
        self._show()

    def say(self, words: str) -> None:
        """What goes on beside units."""
        if self._bar is not None:
            self._bar.update(f"{self._line()} · {words}")
        else:
            say(f"{self._line()} · {words}")

    def _show(self, *, at_once: bool = False) -> None:
        if self._bar is not None:
            self._bar.update(self._line() + self._left())
        elif at_once or time.monotonic() - self._printed >= LINE_EVERY_S:
            self._printed = time.monotonic()
            say(self._line() + self._left())

    def _line(self) -> str:
        why = ", ".join(f"{count} {reason}" for reason, count in self._reasons.most_common(2))
        parts = [
            f"{self._counts[state]} {state}" + (f" ({why})" if state == "rejected" and why else "")
            for state in STATES
            if self._counts[state]
        ]
        return " · ".join([f"{self.stage}: {sum(self._counts.values())}/{self._total}", *parts])

    def _left(self) -> str:
        left = self._total - sum(self._counts.values())
        if not self._here or left <= 0:
            return ""
        return f" · about {_duration((time.monotonic() - self._started) / self._here * left)} left"


class Counts:
    """How far it is, in a line on stderr now and then, and at the end."""

    def __init__(self, what: str, total: int, before: dict[str, int]) -> None:
        self._what, self._total, self._counts = what, total, Counter(before)
        self._before = self._counts.total()
        self._began = self._printed = time.monotonic()

    def one(self, outcome: str) -> None:
        """One more has ended so."""
        self._counts[outcome] += 1
        if time.monotonic() - self._printed >= LINE_EVERY_S:
            self._printed = time.monotonic()
            rate = (self._counts.total() - self._before) / (self._printed - self._began)
            say(f"{self._line()} · {rate:.3g}/s")

    def end(self) -> None:
        """Nothing more comes."""
        if self._counts.total() > self._before:
            say(f"{self._line()} in {time.monotonic() - self._began:.1f} s")

    def _line(self) -> str:
        parts = [f"{count} {name}" for name, count in self._counts.items()]
        return " · ".join([f"{self._what}: {self._counts.total()}/{self._total}", *parts])


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s" if seconds >= 2 else f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02} min"


def say(line: str) -> None:
    """A line on stderr, at once."""
    print(line, file=sys.stderr, flush=True)
