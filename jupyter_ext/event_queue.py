"""From the broker's thread to a coroutine: events in order, with a bound in between."""

from __future__ import annotations

import asyncio
import threading

from horus_lab.errors import BrokerUnavailable, HorusError
from horus_lab.records import BrokerEvent
from jupyter_ext.backend import SlowConsumer


class EventQueue:
    """Events of one subscription, read on one event loop.

    `receive` is called in the subscription's own thread and waits there while the reader is
    behind; what piles up further stays in the subscription, which has a bound and drops whoever
    passes it.
    """

    def __init__(self, room: int = 64) -> None:
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[BrokerEvent | None] = asyncio.Queue()
        self._room = threading.Semaphore(room)
        self._closed = threading.Event()
        self._end: HorusError = SlowConsumer(
            "This reader of events fell too far behind.",
            hint="Connect again with the last sequence number that was read.",
        )

    def receive(self, event: BrokerEvent) -> None:
        """Take one event. Called from the subscription's thread."""
        if not self._closed.is_set():
            self._room.acquire()
            self._put(event)

    def lost(self) -> None:
        """The subscription has ended. Called from any thread."""
        self._put(None)

    def stopped(self) -> None:
        """The broker stops. Called on the loop."""
        self._end = BrokerUnavailable("The broker has stopped.")
        self._put(None)

    def close(self) -> None:
        """Read no more."""
        self._closed.set()
        self._room.release()  # for the sender that may be waiting for room

    async def next(self) -> BrokerEvent:
        """The next event.

        Raises:
            SlowConsumer: the reader fell too far behind.
            BrokerUnavailable: the broker has stopped.
        """
        event = await self._events.get()
        if event is None:
            raise self._end
        self._room.release()
        return event

    def _put(self, event: BrokerEvent | None) -> None:
        if not self._closed.is_set() and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._events.put_nowait, event)
