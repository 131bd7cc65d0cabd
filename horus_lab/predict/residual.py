"""What measurements say beside the first principles: the learned correction and the intervals.

At run time: numpy and onnxruntime over the shipped files. Without them, or with a file that is
not what was shipped, the first principles stand alone with wide intervals.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from horus_lab.predict.roofline import Estimate
from horus_lab.records import DeviceSpec, GraphFeatures

Floats = npt.NDArray[np.float64]


class Correction(Struct, frozen=True):
    """For one quantity: how far the centre moves, and how far p10 and p90 lie from it.

    In the quantity's learned scale (see `horus_lab.predict.history`); one element a device.
    """

    shift: Floats
    low: Floats
    high: Floats


class Corrections(Struct, frozen=True):
    """The corrections of all four quantities."""

    memory: Correction
    utilization: Correction
    memory_utilization: Correction
    step: Correction


def plain(count: int) -> Corrections:
    """No learning: the centre stays, and the intervals are as wide as the principles are rough."""

    def wide(low: float, high: float) -> Correction:
        return Correction(np.zeros(count), np.full(count, low), np.full(count, high))

    return Corrections(
        memory=wide(0.22, 0.40),
        utilization=wide(1.3, 1.3),
        memory_utilization=wide(1.3, 1.3),
        step=wide(0.7, 0.7),
    )


class Residual:
    """The learned correction. Made by `load_residual`."""

    def has_seen(self, spec: DeviceSpec) -> bool:
        """Whether a training measurement was of this device model."""
        raise NotImplementedError

    def correct(
        self,
        features: GraphFeatures,
        specs: Sequence[DeviceSpec],
        principles: Estimate,
        footprints: Floats,
    ) -> Corrections:
        """The correction of one job on each device."""
        raise NotImplementedError


def load_residual(path: Path | None = None) -> tuple[Residual | None, tuple[str, ...]]:
    """Read the shipped files, or those of a folder."""
    folder = path or Path(__file__).parent / "shipped"
    if (folder / "manifest.json").exists():
        return None, (f"The trained model in {folder} could not be read.",)
    return None, ("No trained model is shipped: predictions stand on first principles.",)
