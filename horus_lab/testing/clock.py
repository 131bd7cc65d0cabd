"""Time that only tests move."""

from __future__ import annotations


class ManualClock:
    """A clock that stands still until it is told to go on.

    Args:
        at: where `now` starts, in seconds since the Unix epoch.
    """

    def __init__(self, at: float = 1_000_000.0) -> None:
        self._now = at
        self._monotonic = 0.0

    def now(self) -> float:
        """Seconds since the Unix epoch, as the test says."""
        return self._now

    def monotonic(self) -> float:
        """Seconds that the test let pass, from zero."""
        return self._monotonic

    def advance(self, seconds: float) -> float:
        """Let time pass; the new `now`.

        Raises:
            ValueError: time would go backwards.
        """
        if seconds < 0:
            raise ValueError(f"time does not pass backwards: {seconds} s")
        self._now += seconds
        self._monotonic += seconds
        return self._now
