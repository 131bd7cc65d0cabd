"""The event stream: a WebSocket that can miss nothing and counts as nobody's activity."""

from __future__ import annotations

import asyncio
import re
from typing import Any

from jupyter_core.utils import ensure_async
from jupyter_server.auth.decorator import ws_authenticated
from jupyter_server.base.websocket import WebSocketMixin
from tornado import web, websocket

from horus_lab.errors import BrokerUnavailable, HorusError, InvalidRequest
from horus_lab.records import encode
from jupyter_ext.answers import ErrorAnswers
from jupyter_ext.backend import Backend, SlowConsumer
from jupyter_ext.handlers import API_PATH, AUTH_RESOURCE, Route
from jupyter_ext.wiring import Wiring

SLOW_CONSUMER_CODE = 4008
BROKER_GONE_CODE = 4503
SEND_SECONDS = 20.0


class EventsHandler(WebSocketMixin, websocket.WebSocketHandler, ErrorAnswers):
    """`GET events?after=N`: each `BrokerEvent` as one JSON text message.

    Without `after`, or with one that is too old, the first message is a snapshot. A reader that
    does not keep up is closed with 4008 and comes back with the last number it saw.
    """

    auth_resource = AUTH_RESOURCE

    def initialize(self, wiring: Wiring) -> None:
        """Take what the extension wired."""
        self._wiring = wiring
        self._backend: Backend | None = None
        self._after: int | None = None
        self._sending: asyncio.Task[None] | None = None

    @ws_authenticated
    async def get(self, *args: Any, **kwargs: Any) -> None:
        """Authorize and check before the upgrade, so that a refusal is a plain HTTP answer."""
        allowed = await ensure_async(
            self.authorizer.is_authorized(self, self.current_user, "read", AUTH_RESOURCE)
        )
        if not allowed:
            raise web.HTTPError(403, "User is not authorized to read on resource: horus")
        text = self.get_query_argument("after", None)
        if text is not None and not re.fullmatch(r"[0-9]{1,16}", text):
            raise InvalidRequest(
                f"after={text[:100]!r} cannot be used: expected a sequence number.",
                hint="Leave it out to be sent a snapshot.",
            )
        self._after = int(text) if text is not None else None
        self._backend = await self._wiring.backend()
        opened = super().get(*args, **kwargs)
        if opened is not None:
            await opened

    def open(self, *args: Any, **kwargs: Any) -> None:
        """Start pinging and sending."""
        super().open(*args, **kwargs)
        self._sending = asyncio.ensure_future(self._send_events())

    def on_message(self, message: str | bytes) -> None:
        """The stream goes one way; what a reader says is not listened to."""

    def on_close(self) -> None:
        """Stop sending."""
        if self.ping_callback is not None:
            self.ping_callback.stop()
        if self._sending is not None:
            self._sending.cancel()

    async def _send_events(self) -> None:
        assert self._backend is not None
        events = self._backend.events(self._after)
        try:
            async for event in events:
                # Waiting for the flush is the back-pressure: what piles up meanwhile lies in
                # the subscription, which is bounded.
                await asyncio.wait_for(self.write_message(encode(event).decode()), SEND_SECONDS)
            self.close(BROKER_GONE_CODE, "the broker stopped")
        except websocket.WebSocketClosedError:
            return
        except (SlowConsumer, TimeoutError):
            self.close(SLOW_CONSUMER_CODE, "the reader does not keep up")
        except BrokerUnavailable:
            self.close(BROKER_GONE_CODE, "the broker stopped")
        except HorusError as error:
            self.log.warning("Horus Lab: the event stream ended: %s", error)
            self.close(1011, error.code)
        finally:
            closing = getattr(events, "aclose", None)
            if closing is not None:
                await closing()


def event_routes(wiring: Wiring) -> list[Route]:
    """The route for `ExtensionApp.handlers`, without the server's `base_url`."""
    return [(API_PATH + "/events", EventsHandler, {"wiring": wiring})]
