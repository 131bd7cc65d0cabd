"""How much memory a job is promised."""

from __future__ import annotations

import math

from horus_lab.records import Prediction


def reservation_bytes(prediction: Prediction) -> int | None:
    """The 90th percentile of the larger of start-up and steady peak; `None` where unknown."""
    peaks = [
        interval.p90
        for interval in (prediction.memory_startup_bytes, prediction.memory_bytes)
        if interval is not None
    ]
    return math.ceil(max(peaks)) if peaks else None
