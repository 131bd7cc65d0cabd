"""The address at which this server's kernels reach it."""

from __future__ import annotations

from collections.abc import MutableMapping
from pathlib import Path
from urllib.parse import quote

from msgspec import Struct

from horus_lab.client.discovery import (
    CA_FILE_VARIABLE,
    CAPABILITY_VARIABLE,
    UNIX_SCHEME,
    URL_VARIABLE,
)

WAIT_POLICY_VARIABLE = "OMP_WAIT_POLICY"

_ANY_IPV4 = frozenset({"", "*", "0.0.0.0"})  # noqa: S104 - recognised, not bound
_ANY_IPV6 = frozenset({"::", "0:0:0:0:0:0:0:0"})


class Listening(Struct, frozen=True, kw_only=True):
    """Where a Jupyter server listens, as it was really bound.

    Attributes:
        ip: the address; empty, `*`, `0.0.0.0` and `::` mean all.
        socket_path: the Unix socket, which then replaces address and port.
        certificate: the certificate's file, which makes it https.
    """

    ip: str
    port: int
    base_url: str
    socket_path: str = ""
    certificate: str = ""

    @property
    def url(self) -> str:
        """The address for a process on this machine, `base_url` included."""
        base = "/" + self.base_url.strip("/")
        base = base if base.endswith("/") else base + "/"
        if self.socket_path:
            return f"{UNIX_SCHEME}://{quote(self.socket_path, safe='')}{base}"
        scheme = "https" if self.certificate else "http"
        return f"{scheme}://{self._host}:{self.port}{base}"

    @property
    def _host(self) -> str:
        if self.ip in _ANY_IPV4:
            return "127.0.0.1"
        if self.ip in _ANY_IPV6:
            return "[::1]"
        return f"[{self.ip}]" if ":" in self.ip else self.ip


class Publication:
    """The address, the capability and what sharing needs, in an environment kernels inherit."""

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        self._environ = environ
        self._earlier: dict[str, str | None] = {}
        self._ours: dict[str, str] = {}

    def publish(self, listening: Listening, capability: str) -> None:
        """Set the variables; what an outer server had left there is remembered."""
        self._ours = {URL_VARIABLE: listening.url, CAPABILITY_VARIABLE: capability}
        if listening.certificate and not listening.socket_path:
            self._ours[CA_FILE_VARIABLE] = str(Path(listening.certificate).absolute())
        names = (URL_VARIABLE, CAPABILITY_VARIABLE, CA_FILE_VARIABLE)
        self._earlier = {name: self._environ.get(name) for name in names}
        for name in names:
            self._environ.pop(name, None)
        self._environ.update(self._ours)

    def let_waiting_threads_sleep(self) -> None:
        """For kernels that share this host's cores: OpenMP threads sleep where they wait.

        Threads that spin at a barrier keep the neighbours' threads off the cores; two small
        trainings on two cores then took more than four times as long. It changes no result. What
        the user has set stays.
        """
        if WAIT_POLICY_VARIABLE not in self._environ:
            self._earlier[WAIT_POLICY_VARIABLE] = None
            self._ours[WAIT_POLICY_VARIABLE] = "PASSIVE"
            self._environ[WAIT_POLICY_VARIABLE] = "PASSIVE"

    def let_waiting_threads_spin(self) -> None:
        """Where trainings have devices of their own: OpenMP decides as it usually does."""
        if self._ours.pop(WAIT_POLICY_VARIABLE, None) is not None:
            self._earlier.pop(WAIT_POLICY_VARIABLE)
            self._environ.pop(WAIT_POLICY_VARIABLE, None)

    def withdraw(self) -> None:
        """Put back what was there, unless somebody else has published since."""
        for name, earlier in self._earlier.items():
            if self._environ.get(name) != self._ours.get(name):
                continue
            self._environ.pop(name, None)
            if earlier is not None:
                self._environ[name] = earlier
        self._ours, self._earlier = {}, {}
