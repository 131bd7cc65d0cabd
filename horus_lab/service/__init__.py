"""Drives the broker: clock, store, probes, sampler, recovery.

`composition` puts a service together from settings; `broker_service` is what callers ask; `driver`
takes one event from decision to disk to answer.
"""

from __future__ import annotations

from horus_lab.service.broker_service import BrokerService
from horus_lab.service.clock import Clock, SystemClock
from horus_lab.service.composition import build_service
from horus_lab.service.event_stream import Subscription
from horus_lab.service.parts import Parts, Watcher
from horus_lab.service.settings import Limits, Pace, ServiceSettings

__all__ = [
    "BrokerService",
    "Clock",
    "Limits",
    "Pace",
    "Parts",
    "ServiceSettings",
    "Subscription",
    "SystemClock",
    "Watcher",
    "build_service",
]
