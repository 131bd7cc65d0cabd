"""Where the broker is, as a kernel or a script finds it.

The places are asked in one fixed order, and none of them is contacted: a broker that is named
but does not answer is an error of the first call, with its address, and never a silent move to
another broker.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from urllib.parse import unquote, urlsplit, urlunsplit

from msgspec import Struct

from horus_lab.errors import BrokerUnavailable, InvalidRequest

URL_VARIABLE = "HORUS_URL"
CAPABILITY_VARIABLE = "HORUS_CAPABILITY"
CA_FILE_VARIABLE = "HORUS_CA_FILE"
SOCKET_VARIABLE = "HORUS_SOCKET"
MACHINE_SOCKET = "/run/horus/horus.sock"
UNIX_SCHEME = "http+unix"


class Endpoint(Struct, frozen=True, kw_only=True):
    """One broker's address.

    Attributes:
        url: the server's address with its `base_url`, ending in a slash; the API lies at
            `horus/api/v1` below it.
        capability: proves that the caller is a kernel of that server; empty on a machine's
            socket, which asks the kernel of the operating system who is calling.
        token: a Jupyter token, where a person's program calls instead of a kernel.
        socket_path: the Unix socket to connect to; empty over TCP.
        ca_file: the certificate to trust besides the system's; empty for none.
        found_by: how it was found, for messages.
    """

    url: str
    capability: str = ""
    token: str = ""
    socket_path: str = ""
    ca_file: str = ""
    found_by: str = ""

    def __repr__(self) -> str:
        return f"Endpoint(url={self.url!r}, found_by={self.found_by!r})"


def discover(
    url: str | None = None,
    capability: str | None = None,
    *,
    environ: Mapping[str, str] | None = None,
) -> Endpoint:
    """The broker to use.

    Asked in this order: the arguments; `HORUS_URL` and `HORUS_CAPABILITY`, which a Jupyter server
    with Horus Lab gives to its kernels and terminals; the machine's broker at `HORUS_SOCKET` or
    `/run/horus/horus.sock`.

    Raises:
        BrokerUnavailable: none of them names a broker; the message lists what was tried.
        InvalidRequest: the address that was given cannot be understood.
    """
    environ = os.environ if environ is None else environ
    ca_file = environ.get(CA_FILE_VARIABLE, "")
    tried = ["no address was given"]
    if url:
        given = capability if capability is not None else environ.get(CAPABILITY_VARIABLE, "")
        return parse_url(url, capability=given, ca_file=ca_file, found_by="the given address")
    named = environ.get(URL_VARIABLE, "")
    if named:
        given = capability if capability is not None else environ.get(CAPABILITY_VARIABLE, "")
        return parse_url(named, capability=given, ca_file=ca_file, found_by=URL_VARIABLE)
    tried.append(f"{URL_VARIABLE} is not set")
    socket_path = environ.get(SOCKET_VARIABLE, "")
    place = socket_path or MACHINE_SOCKET
    if _is_socket(place):
        return Endpoint(
            url="http://localhost/", socket_path=place, found_by=f"the machine's socket {place}"
        )
    name = f"{SOCKET_VARIABLE}={place}" if socket_path else place
    tried.append(f"there is no machine broker at {name}")
    raise BrokerUnavailable(
        f"No broker was found: {'; '.join(tried)}.",
        hint="Start the kernel from a Jupyter server with Horus Lab enabled "
        "(`jupyter server extension list`), or set HORUS_URL and HORUS_CAPABILITY.",
    )


def parse_url(
    url: str, *, capability: str = "", token: str = "", ca_file: str = "", found_by: str = ""
) -> Endpoint:
    """An address as an endpoint: `http`, `https`, or `http+unix://%2Fpath%2Fto.sock/base/`.

    Raises:
        InvalidRequest: another scheme, no host, or a port that is none.
    """
    problem = ""
    try:
        parts = urlsplit(url.strip())
        _ = parts.port if parts.scheme != UNIX_SCHEME else None
    except ValueError as error:
        problem = str(error)
    else:
        if parts.scheme not in ("http", "https", UNIX_SCHEME):
            problem = f"its scheme is {parts.scheme!r}"
        elif not parts.netloc:
            problem = "it names no host"
    if problem:
        raise InvalidRequest(
            f"{url!r} is not a broker's address: {problem}.",
            hint="Expected something like http://127.0.0.1:8888/.",
        )
    path = parts.path if parts.path.endswith("/") else parts.path + "/"
    if parts.scheme == UNIX_SCHEME:
        return Endpoint(
            url=f"http://localhost{path}",
            capability=capability,
            token=token,
            socket_path=unquote(parts.netloc),
            found_by=found_by,
        )
    return Endpoint(
        url=urlunsplit((parts.scheme, parts.netloc, path, "", "")),
        capability=capability,
        token=token,
        ca_file=ca_file if parts.scheme == "https" else "",
        found_by=found_by,
    )


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False
