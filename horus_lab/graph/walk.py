"""The last resort: a module's parameters, and what a step over them costs at the very least.

A step of a dense network costs about six operations for each parameter and sample (two forward,
four backward); convolutions cost more, so the answer is a lower bound with little confidence.
"""

from __future__ import annotations

import hashlib
import time
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy

from horus_lab.graph import fakes
from horus_lab.records import (
    CaptureMethod,
    GraphFeatures,
    OperationClass,
    OperationStatistics,
    Phase,
)

_ADAM_FLOPS = 12
_LAUNCHES_PER_MODULE = 3


def walk(module: nn.Module, batch: Any, *, precision: str, why: str) -> GraphFeatures:
    """Features from the parameters alone; `why` says what failed before."""
    started = time.monotonic()
    shaped = [p for p in module.parameters() if not is_lazy(p)]
    lazy = sum(1 for p in module.parameters() if is_lazy(p))
    count = sum(p.numel() for p in shaped)
    size = sum(p.numel() * p.element_size() for p in shaped)
    trained = [p for p in shaped if p.requires_grad]
    gradients = sum(p.numel() * p.element_size() for p in trained)
    buffers = sum(b.numel() * b.element_size() for b in module.buffers() if not is_lazy(b))
    inputs = fakes.bytes_in(batch)
    samples = fakes.samples_in(batch)
    leaves = sum(1 for each in module.modules() if not list(each.children()))
    flops = 2.0 * count * (samples or 1)
    # Every layer's output at the size of its input is kept once.
    activations = inputs * max(1, leaves)
    digest = hashlib.sha256(
        repr([(tuple(p.shape), str(p.dtype)) for p in shaped] + [samples]).encode()
    ).hexdigest()[:32]

    def row(phase: Phase, factor: float, moved: int) -> OperationStatistics:
        optimizer = phase is Phase.OPTIMIZER
        return OperationStatistics(
            operation=OperationClass.OPTIMIZER if optimizer else OperationClass.OTHER,
            phase=phase,
            launches=_LAUNCHES_PER_MODULE * max(1, leaves),
            flops=float(_ADAM_FLOPS * count) if optimizer else factor * flops,
            bytes_moved=moved,
        )

    operations = (
        row(Phase.FORWARD, 1.0, size + 2 * activations),
        row(Phase.BACKWARD, 2.0, 2 * size + 4 * activations),
        row(Phase.OPTIMIZER, 0.0, 7 * size),
    )
    notes = [why] + ([f"{lazy} parameters have no shape yet."] if lazy else [])
    return GraphFeatures(
        method=CaptureMethod.MODULE_WALK,
        confidence=0.1 if lazy else 0.2,
        graph_hash=digest,
        module_name=type(module).__name__[:200],
        samples=samples,
        operations=operations,
        flops=sum(one.flops for one in operations),
        bytes_moved=sum(one.bytes_moved for one in operations),
        launches=sum(one.launches for one in operations),
        dtype_flops={"float32": sum(one.flops for one in operations)},
        parameters=count,
        parameter_bytes=size,
        gradient_bytes=gradients,
        optimizer_state_bytes=2 * gradients,
        buffer_bytes=buffers,
        input_bytes=inputs,
        saved_activation_bytes=activations,
        peak_live_bytes=size + 3 * gradients + buffers + inputs + activations,
        precision=precision,
        capture_seconds=time.monotonic() - started,
        notes=tuple(note[:2000] for note in notes),
    )
