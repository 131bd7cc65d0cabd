"""The one question that interference answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from horus_lab.records import DeviceSpec, Interval, Prediction


class InterferenceModel(Protocol):
    """The residents' predictions on one device -> the slowdown of each."""

    def slowdowns(
        self, residents: Sequence[Prediction], spec: DeviceSpec
    ) -> tuple[Interval | None, ...]:
        """Each resident's slowdown (at least 1) if exactly these share the device.

        One resident alone has slowdown 1. `None` for everyone whose slowdown cannot be
        predicted because somebody's utilization is unknown.
        """
        ...
