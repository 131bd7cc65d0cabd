"""The kernel's side: discovery, requests, leases, heartbeats. Imports no torch."""

from __future__ import annotations

from horus_lab.client.discovery import Endpoint, discover
from horus_lab.client.http import HorusClient
from horus_lab.client.identity import kernel_id, notebook_name, this_process
from horus_lab.client.lease import HeldLease
from horus_lab.client.waiting import acquire

__all__ = [
    "Endpoint",
    "HeldLease",
    "HorusClient",
    "acquire",
    "discover",
    "kernel_id",
    "notebook_name",
    "this_process",
]
