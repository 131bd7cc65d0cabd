"""Who is calling: a kernel that holds this server's capability, or a person Jupyter knows.

A server runs as one user, and whoever may use it runs code as that user: so there is one owner,
proven by the server itself, and never a name from a request.
"""

from __future__ import annotations

import hmac
import os
import pwd
import secrets
from collections.abc import Mapping

from tornado.httputil import HTTPHeaders

from horus_lab.errors import NotAuthenticated
from jupyter_ext.backend import Caller

CAPABILITY_HEADER = "X-Horus-Capability"
CAPABILITY_SCHEME = "Horus"


class Access:
    """Decides who a request comes from.

    Args:
        owner: the name that this server's jobs are kept under.
        capability: the secret that this server's kernels hold; minted if it is empty.
    """

    def __init__(self, owner: str, capability: str = "") -> None:
        self.owner = owner
        self.capability = capability or secrets.token_urlsafe(32)

    def kernel(self, headers: HTTPHeaders) -> Caller | None:
        """The kernel that shows a capability; `None` where the request shows none at all.

        Raises:
            NotAuthenticated: it shows one, and not this server's.
        """
        shown = shown_capability(headers)
        if shown is None:
            return None
        if not hmac.compare_digest(
            shown.encode("utf-8", "surrogateescape"), self.capability.encode()
        ):
            raise NotAuthenticated(
                "This is not the capability of the Jupyter server that answers here.",
                hint="Restart the kernel: it takes the capability from its server at start.",
            )
        return Caller(owner=self.owner, via="kernel")

    def user(self) -> Caller:
        """A person, or a program with a token, whom Jupyter authenticated and authorized."""
        return Caller(owner=self.owner, via="user")


def shown_capability(headers: HTTPHeaders) -> str | None:
    """The capability in `Authorization: Horus …` or `X-Horus-Capability`; `None` without."""
    scheme, _, value = headers.get("Authorization", "").partition(" ")
    if scheme.lower() == CAPABILITY_SCHEME.lower():
        return value.strip()
    return headers.get(CAPABILITY_HEADER)


def server_owner(environ: Mapping[str, str] | None = None) -> str:
    """The user whose server this is: the hub's name for them, else the operating system's.

    The environment's `USER` and `LOGNAME` are not asked: they say what anybody wrote there.
    """
    environ = os.environ if environ is None else environ
    hub_user = environ.get("JUPYTERHUB_USER", "")
    if hub_user:
        return hub_user
    uid = os.getuid()
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid-{uid}"
