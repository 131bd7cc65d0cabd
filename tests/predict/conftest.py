"""Graph features made by hand."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from horus_lab.predict import ShippedPredictor
from horus_lab.records import (
    CaptureMethod,
    GraphFeatures,
    OperationClass,
    OperationStatistics,
    Phase,
)


def row(
    operation: OperationClass, phase: Phase, launches: int, flops: float, moved: int
) -> OperationStatistics:
    """One line of a step's operations."""
    return OperationStatistics(
        operation=operation, phase=phase, launches=launches, flops=flops, bytes_moved=moved
    )


def features(**changes: Any) -> GraphFeatures:
    """A middling convolutional step, about ResNet-50's at 16 images."""
    operations = (
        row(OperationClass.CONVOLUTION, Phase.FORWARD, 53, 1.3e11, 2 * 10**9),
        row(OperationClass.CONVOLUTION, Phase.BACKWARD, 105, 2.6e11, 4 * 10**9),
        row(OperationClass.ACTIVATION, Phase.FORWARD, 102, 1e9, 6 * 10**9),
        row(OperationClass.OPTIMIZER, Phase.OPTIMIZER, 300, 1e8, 10**9),
    )
    one = GraphFeatures(
        method=CaptureMethod.FAKE_STEP,
        confidence=1.0,
        graph_hash="0123456789abcdef",
        samples=16,
        operations=operations,
        flops=3.911e11,
        bytes_moved=13 * 10**9,
        launches=560,
        dtype_flops={"float32": 3.911e11},
        parameters=25_000_000,
        parameter_bytes=100_000_000,
        gradient_bytes=100_000_000,
        optimizer_state_bytes=200_000_000,
        buffer_bytes=0,
        input_bytes=10_000_000,
        saved_activation_bytes=1_300_000_000,
        peak_live_bytes=1_430_000_000,
    )
    return replace(one, **changes)


@pytest.fixture(scope="session")
def shipped() -> ShippedPredictor:
    """The shipped predictor; nothing may be taught to it."""
    return ShippedPredictor.load()
