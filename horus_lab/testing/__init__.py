"""Stand-ins for the few things that touch the world: for our tests and other people's.

A clock that tests move by hand, scripted devices, processes and predictions, and records with
sensible values. Everything here is public and keeps its promises like the rest of the package.
"""

from __future__ import annotations

from horus_lab.testing.builders import (
    a_device,
    a_prediction,
    a_process,
    a_reading,
    a_request,
    some_features,
)
from horus_lab.testing.clock import ManualClock
from horus_lab.testing.nvml import ScriptedCard, ScriptedNvml, ScriptedNvmlError, ScriptedSlice
from horus_lab.testing.predictor import ScriptedPredictor
from horus_lab.testing.probe import ScriptedProbe
from horus_lab.testing.processes import ScriptedProcesses, ScriptedWatcher

__all__ = [
    "ManualClock",
    "ScriptedCard",
    "ScriptedNvml",
    "ScriptedNvmlError",
    "ScriptedPredictor",
    "ScriptedProbe",
    "ScriptedProcesses",
    "ScriptedSlice",
    "ScriptedWatcher",
    "a_device",
    "a_prediction",
    "a_process",
    "a_reading",
    "a_request",
    "some_features",
]
