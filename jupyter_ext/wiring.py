"""What the handlers are given: who may call, and the broker once it is up."""

from __future__ import annotations

import asyncio

from horus_lab.errors import BrokerUnavailable
from jupyter_ext.access import Access
from jupyter_ext.backend import Backend

START_SECONDS = 20.0


class Wiring:
    """Shared by an extension and its handlers, which are registered before the broker starts.

    Args:
        start_seconds: how long a request waits for a broker that is still starting.
    """

    def __init__(self, access: Access, *, start_seconds: float = START_SECONDS) -> None:
        self.access = access
        self._start_seconds = start_seconds
        self._backend: Backend | None = None
        self._failure: BrokerUnavailable | None = None
        self._settled = asyncio.Event()

    def ready(self, backend: Backend) -> None:
        """The broker is up."""
        self._backend, self._failure = backend, None
        self._settled.set()

    def failed(self, reason: str, hint: str = "") -> None:
        """There is no broker here, and why."""
        self._backend, self._failure = None, BrokerUnavailable(reason, hint=hint)
        self._settled.set()

    async def backend(self) -> Backend:
        """The broker; waits a little while it is starting.

        Raises:
            BrokerUnavailable: it could not start, is still starting, or has stopped.
        """
        if not self._settled.is_set():
            try:
                await asyncio.wait_for(self._settled.wait(), self._start_seconds)
            except TimeoutError:
                raise BrokerUnavailable(
                    "Horus Lab is still starting on this server.", hint="Try again in a moment."
                ) from None
        if self._backend is None:
            failure = self._failure
            # A fresh error each time: a raised one gathers the tracebacks of all its raisers.
            raise (
                BrokerUnavailable(failure.message, hint=failure.hint)
                if failure
                else (BrokerUnavailable("Horus Lab has no broker on this server."))
            )
        return self._backend
