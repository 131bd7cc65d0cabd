"""What a broker service is put together from."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from horus_lab.devices.probe import Probe, ProcessTable
from horus_lab.interference.protocol import InterferenceModel
from horus_lab.policy.cluster import Policy
from horus_lab.predict.protocol import Predictor
from horus_lab.records import ProcessIdentity
from horus_lab.service.clock import Clock, SystemClock
from horus_lab.service.driver import Failpoint, no_failpoint
from horus_lab.service.sampler import Attribute
from horus_lab.store.protocol import Store

ProcessEnded = Callable[[str, tuple[int, ...]], None]


class Watcher(Protocol):
    """Sees processes end, and tells of it from a thread of its own."""

    def start(self, ended: ProcessEnded) -> None:
        """From now on call `ended(job_id, survivors)`; again where the survivors change."""
        ...

    def watch(self, job_id: str, process: ProcessIdentity) -> None:
        """Watch this process; one that is gone already is told of like one that ends later."""
        ...

    def unwatch(self, job_id: str) -> None:
        """Watch it no more."""
        ...

    def close(self) -> None:
        """Stop. Safe to call twice."""
        ...


def random_id() -> str:
    """A job's id: 48 random bits."""
    return f"j-{secrets.token_hex(6)}"


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Everything that a `BrokerService` needs, opened by it and closed by it.

    Attributes:
        notices: what people should know about how the parts were chosen.
        new_id: makes a job's id.
        failpoint: called around each commit and each answer; for tests.
    """

    store: Store
    probe: Probe
    table: ProcessTable
    attribute: Attribute
    watcher: Watcher
    predictor: Predictor
    policy: Policy
    interference: InterferenceModel | None = None
    clock: Clock = field(default_factory=SystemClock)
    notices: tuple[str, ...] = ()
    new_id: Callable[[], str] = random_id
    failpoint: Failpoint = no_failpoint
