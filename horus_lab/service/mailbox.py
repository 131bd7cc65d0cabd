"""What waits for the broker's thread: callers' requests, and news from the inside."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from horus_lab.errors import BrokerUnavailable

T = TypeVar("T")


class Call(Generic[T]):
    """One piece of work for the broker's thread, and the future that it answers."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self.future: Future[T] = Future()

    def run(self) -> None:
        """Do the work and answer; a caller that gave up before gets nothing done."""
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            result = self._work()
        except BaseException as error:  # noqa: BLE001 - the future carries it to the caller
            self.future.set_exception(error)
        else:
            self.future.set_result(result)

    def refuse(self, error: Exception) -> None:
        """Answer without doing it."""
        if self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)


class Mailbox:
    """A queue with a bound on what callers put in; news from the inside always fits.

    News comes under a key and replaces older news of the same key, so there is never more of it
    than there are keys.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._calls: deque[Call[Any]] = deque()
        self._news: dict[str, Callable[[], None]] = {}
        self._changed = threading.Condition()
        self._closed: BrokerUnavailable | None = None

    def call(self, work: Callable[[], T]) -> Future[T]:
        """Have the broker's thread do this; the future answers."""
        call = Call(work)
        with self._changed:
            refusal = self._closed
            if refusal is None and len(self._calls) >= self._limit:
                refusal = BrokerUnavailable(
                    f"The broker is busy: {self._limit} requests wait for it.",
                    hint="Try again in a moment.",
                )
            if refusal is None:
                self._calls.append(call)
                self._changed.notify()
        if refusal is not None:
            call.refuse(BrokerUnavailable(refusal.message, hint=refusal.hint))
        return call.future

    def tell(self, key: str, work: Callable[[], None]) -> None:
        """Have the broker's thread hear this, before any waiting request."""
        with self._changed:
            if self._closed is None:
                self._news[key] = work
                self._changed.notify()

    def take(self, timeout: float) -> Callable[[], None] | None:
        """The next piece of work, news first; `None` where nothing came in time."""
        with self._changed:
            if not self._news and not self._calls:
                self._changed.wait(timeout)
            if self._news:
                return self._news.pop(next(iter(self._news)))
            return self._calls.popleft().run if self._calls else None

    def close(self, reason: BrokerUnavailable) -> None:
        """Take nothing more, and refuse what waits."""
        with self._changed:
            self._closed = reason
            calls = list(self._calls)
            self._calls.clear()
            self._news.clear()
            self._changed.notify_all()
        for call in calls:
            call.refuse(BrokerUnavailable(reason.message, hint=reason.hint))
