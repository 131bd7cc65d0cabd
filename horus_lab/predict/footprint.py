"""How much device memory one training run holds at its peak, before any learning.

On a GPU: the step's live bytes as torch's caching allocator would hold them, the libraries'
workspaces, and the context that any process pays. On a CPU: what the process holds already, and
the step's live bytes.
"""

from __future__ import annotations

from horus_lab.records import MAX_BYTES, DeviceKind, DeviceSpec, GraphFeatures, OperationClass

_MIB = 2**20

# torch's allocator takes 2 MiB segments for small tensors and rounds large ones up to 2 MiB;
# tensors of a step do not reuse each other's holes perfectly.
ALLOCATOR_SEGMENT = 2 * _MIB
FRAGMENTATION = 1.05
MATRIX_WORKSPACE = 16 * _MIB
CONVOLUTION_WORKSPACE = 96 * _MIB

# A CPU process grows by this while it trains, whatever the model: Lightning, the loaders,
# thread pools, the math library's packed copies. Measured: benchmarks/predict/cpu_small.json.
CPU_GROWTH_BYTES = 40 * _MIB
CPU_LIVE_FACTOR = 1.1


def workspace_bytes(features: GraphFeatures) -> int:
    """What cuBLAS and cuDNN take beside the tensors."""
    convolution = any(
        row.operation is OperationClass.CONVOLUTION and row.launches for row in features.operations
    )
    return MATRIX_WORKSPACE + (CONVOLUTION_WORKSPACE if convolution else 0)


def live_bytes(features: GraphFeatures) -> int:
    """The most bytes alive at once from the second step on.

    A captured first step has no optimizer state during its backward pass; every later one has.
    """
    backward = features.parameter_bytes + features.saved_activation_bytes + features.input_bytes
    after = features.parameter_bytes + features.gradient_bytes
    return max(
        features.peak_live_bytes,
        max(backward, after) + features.optimizer_state_bytes,
    )


def footprint(
    features: GraphFeatures,
    spec: DeviceSpec,
    held_bytes: int | None,
    context_bytes: int = 0,
) -> float:
    """The expected peak on a device of this specification, in bytes, at most `MAX_BYTES`.

    Args:
        held_bytes: what the job's process holds already (a CPU process's baseline).
        context_bytes: what a GPU process pays beside the specification's context.
    """
    live = live_bytes(features)
    if spec.kind is DeviceKind.CPU:
        base = held_bytes if held_bytes is not None else spec.context_bytes
        return float(min(MAX_BYTES, base + CPU_LIVE_FACTOR * live + CPU_GROWTH_BYTES))
    segments = -(-live // ALLOCATOR_SEGMENT) * ALLOCATOR_SEGMENT
    return float(
        min(
            MAX_BYTES,
            spec.context_bytes
            + context_bytes
            + workspace_bytes(features)
            + FRAGMENTATION * segments,
        )
    )


def held_beyond_context(spec: DeviceSpec, held_bytes: int | None) -> int:
    """What the job's own process holds on a GPU beside its context: it stays while the job runs."""
    if held_bytes is None or spec.kind is DeviceKind.CPU:
        return 0
    return max(0, held_bytes - spec.context_bytes)
