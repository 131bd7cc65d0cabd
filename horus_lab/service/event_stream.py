"""The stream of events: numbers that never go back, a bounded memory, readers that cannot block.

A number is the broker's epoch times 2**32 plus a count, so a later broker's numbers are higher
than every earlier one's although none of them is written down; a reader that comes back after a
restart is below the floor and gets a snapshot.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable

from horus_lab.records import BrokerEvent, DeviceState, Job

EPOCH_STRIDE = 2**32

_JOIN_SECONDS = 1.0

_logger = logging.getLogger(__name__)

Receive = Callable[[BrokerEvent], None]


class Subscription:
    """One reader: a thread of its own hands it the events in order.

    A reader that is `limit` events behind is dropped: `lost` becomes true, `on_lost` is called
    once, and nothing more is delivered; it may subscribe again from the last number it saw.
    """

    def __init__(
        self, receive: Receive, *, on_lost: Callable[[], None] | None = None, limit: int = 5000
    ) -> None:
        self._receive = receive
        self._on_lost = on_lost
        self._limit = limit
        self._waiting: deque[BrokerEvent] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self.lost = False
        self._thread = threading.Thread(target=self._deliver, name="horus-events", daemon=True)
        self._thread.start()

    @property
    def closed(self) -> bool:
        """Whether nothing more will be delivered."""
        return self._closed

    def put(self, event: BrokerEvent) -> None:
        """Give the reader one more event; never waits."""
        with self._changed:
            if self._closed:
                return
            if len(self._waiting) >= self._limit:
                self.lost = self._closed = True
                self._waiting.clear()
            else:
                self._waiting.append(event)
            self._changed.notify()

    def close(self) -> None:
        """Deliver nothing more. Returns at once, from any thread."""
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._changed.notify()

    def join(self, timeout: float) -> None:
        """Wait until the reader's thread is gone."""
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout)

    def _deliver(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._closed:
                    self._changed.wait()
                if self._closed:
                    break
                event = self._waiting.popleft()
            try:
                self._receive(event)
            except Exception:
                # The reader's own fault ends the reader alone.
                _logger.exception("A reader of Horus's events failed and is dropped")
                self.lost = True
                self.close()
        if self.lost and self._on_lost is not None:
            self._on_lost()


class EventStream:
    """Numbers events, keeps the latest for those who come back, hands them to the readers.

    Written by one thread. Of the looks at the devices only the last is kept: an older one tells
    a reader nothing.
    """

    def __init__(self, epoch: int, *, keep: int = 5000) -> None:
        self._sequence = epoch * EPOCH_STRIDE
        self._floor = self._sequence  # the highest number that can no longer be resumed below
        self._kept: deque[BrokerEvent] = deque()
        self._keep = keep
        self._devices: BrokerEvent | None = None
        self._readers: tuple[Subscription, ...] = ()
        self._lock = threading.Lock()

    @property
    def sequence(self) -> int:
        """The number of the latest event."""
        return self._sequence

    @property
    def watched(self) -> bool:
        """Whether anybody reads."""
        return bool(self._readers)

    def job(self, job: Job, now: float) -> None:
        """A job changed."""
        event = BrokerEvent(sequence=self._next(), at=now, kind="job", job=job)
        self._kept.append(event)
        while len(self._kept) > self._keep:
            self._floor = self._kept.popleft().sequence
        self._hand_out(event)

    def devices(self, devices: tuple[DeviceState, ...], now: float) -> None:
        """The devices were looked at."""
        event = BrokerEvent(sequence=self._next(), at=now, kind="devices", devices=devices)
        self._devices = event
        self._hand_out(event)

    def snapshot(
        self, jobs: tuple[Job, ...], devices: tuple[DeviceState, ...], now: float
    ) -> BrokerEvent:
        """Everything as it is, under the latest number."""
        return BrokerEvent(
            sequence=self._sequence, at=now, kind="snapshot", jobs=jobs, devices=devices
        )

    def since(self, after: int) -> tuple[BrokerEvent, ...] | None:
        """Every kept event with a higher number, or `None` where some are gone."""
        if not self._floor <= after <= self._sequence:
            return None
        events = [event for event in self._kept if event.sequence > after]
        if self._devices is not None and self._devices.sequence > after:
            events.append(self._devices)
            events.sort(key=lambda event: event.sequence)
        return tuple(events)

    def add(self, reader: Subscription, first: Iterable[BrokerEvent]) -> None:
        """Give a reader what it missed, then everything that comes."""
        for event in first:
            reader.put(event)
        with self._lock:
            self._readers = (*self._readers, reader)

    def remove(self, reader: Subscription) -> None:
        """Let a reader go. Safe from any thread, and twice."""
        reader.close()
        with self._lock:
            self._readers = tuple(other for other in self._readers if other is not reader)

    def close(self) -> None:
        """Let all readers go; one that hangs is left behind."""
        with self._lock:
            readers, self._readers = self._readers, ()
        for reader in readers:
            reader.close()
        deadline = time.monotonic() + _JOIN_SECONDS
        for reader in readers:
            reader.join(max(0.0, deadline - time.monotonic()))

    def _next(self) -> int:
        self._sequence += 1
        return self._sequence

    def _hand_out(self, event: BrokerEvent) -> None:
        for reader in self._readers:
            reader.put(event)
            if reader.closed:
                self.remove(reader)
