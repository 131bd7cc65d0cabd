"""The service's only source of time."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Seconds, in two senses."""

    def now(self) -> float:
        """Seconds since the Unix epoch. Never steps back while the service runs."""
        ...

    def monotonic(self) -> float:
        """Seconds from some fixed point: for intervals."""
        ...


class SystemClock:
    """The machine's clock, read once: a step of the wall clock afterwards moves nothing.

    It goes on by the boot clock, which counts the time a laptop sleeps, so that what is shown
    stays right after a sleep. A wall clock that was wrong at the start stays wrong until the
    service is restarted; deadlines would suffer more from a jump than people from that.
    """

    def __init__(self) -> None:
        self._wall = time.time()
        self._start = time.clock_gettime(time.CLOCK_BOOTTIME)

    def now(self) -> float:
        """Seconds since the Unix epoch, as known at the start, plus what has passed since."""
        return self._wall + time.clock_gettime(time.CLOCK_BOOTTIME) - self._start

    def monotonic(self) -> float:
        """Seconds by the boot clock."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)
