"""One place where everything that goes wrong becomes an HTTP answer."""

from __future__ import annotations

import http
import secrets
from types import TracebackType
from typing import Any

import msgspec
from jupyter_server.base.handlers import APIHandler, JupyterHandler
from tornado import web

from horus_lab.errors import BrokerUnavailable, Forbidden, HorusError, NotAuthenticated
from horus_lab.records import ErrorReply, encode

_NOT_AUTHENTICATED_HINT = (
    "Send a Jupyter token or cookie, or from a kernel the capability in HORUS_CAPABILITY."
)
_XSRF_HINT = "A request with a cookie needs the X-XSRFToken header too."


class ErrorAnswers(JupyterHandler):
    """Answers every failure with an `ErrorReply`, and never with a traceback."""

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """The failure as `{code, message, hint}` under its own status."""
        error = kwargs.get("exc_info", (None, None, None))[1]
        status, reply = self._told(status_code, error)
        self.set_status(status)
        self.set_header("Content-Type", "application/json")
        self.set_header("Cache-Control", "no-store")
        self.clear_header("Location")
        web.RequestHandler.finish(self, encode(reply))

    def _log(self) -> None:
        # A broker that is not there is logged once, at start, and not at every poll.
        if self.get_status() != BrokerUnavailable.status:
            super()._log()

    def log_exception(
        self,
        typ: type[BaseException] | None,
        value: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        """Log what is ours to mend with its traceback, and the rest in a line."""
        if isinstance(value, BrokerUnavailable):
            self.log.debug("Horus Lab: %s", value)  # its cause was logged once, at start
        elif isinstance(value, HorusError):
            self.log.info("Horus Lab: %s %s: %s", self.request.method, self.request.path, value)
        elif isinstance(value, web.HTTPError):
            super().log_exception(typ, value, tb)
        else:
            self.log.error(
                "Horus Lab: unexpected error %s in %s %s",
                self._error_id(),
                self.request.method,
                self.request.path,
                exc_info=value,
            )

    def _told(self, status_code: int, error: BaseException | None) -> tuple[int, ErrorReply]:
        if isinstance(error, HorusError):
            return error.status, ErrorReply(code=error.code, message=error.message, hint=error.hint)
        if status_code >= 500:
            return 500, ErrorReply(
                code="internal",
                message=f"Something went wrong inside Horus Lab (id {self._error_id()}).",
                hint="The Jupyter server's log has the details under this id.",
            )
        said = str(getattr(error, "log_message", None) or "")
        if status_code in (401, 403) and self.current_user is None:
            return NotAuthenticated.status, ErrorReply(
                code=NotAuthenticated.code,
                message="Nobody that this server knows sent this request.",
                hint=_NOT_AUTHENTICATED_HINT,
            )
        if status_code == 403:
            hint = _XSRF_HINT if "_xsrf" in said or "XSRF" in said else ""
            return 403, ErrorReply(
                code=Forbidden.code, message=said or "This is not allowed.", hint=hint
            )
        phrase = http.HTTPStatus(status_code).phrase
        return status_code, ErrorReply(
            code=phrase.lower().replace(" ", "_").replace("-", "_"),
            message=f"{self.request.method} {self.request.path}: {said or phrase}.",
            hint="The API's routes are in docs/api.md and openapi.yaml.",
        )

    def _error_id(self) -> str:
        found: str | None = getattr(self, "_horus_error_id", None)
        if found is None:
            found = self._horus_error_id = secrets.token_hex(4)
        return found


class RecordAnswers(ErrorAnswers, APIHandler):
    """Answers with records. Counts as nobody's activity: a waiting kernel is not a person."""

    _track_activity = False

    def answer(
        self, record: msgspec.Struct | tuple[msgspec.Struct, ...], status: int = 200
    ) -> None:
        """Send the record, or the list of records, as JSON."""
        self.set_status(status)
        self.set_header("Cache-Control", "no-store")
        self.finish(encode(record))

    def compute_etag(self) -> None:
        """No hash of every answer: what is asked here has nearly always changed."""
        return None
