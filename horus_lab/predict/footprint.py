"""How much device memory one training run holds at its peak, before any learning.

On a GPU: the step's live bytes as torch's caching allocator would hold them, the libraries'
workspaces, and the context that any process pays. On a CPU: what the process holds already, and
the step's live bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

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
CPU_GROWTH_BYTES = 32 * _MIB
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


def footprints(
    features: GraphFeatures,
    specs: Sequence[DeviceSpec],
    held_bytes: Sequence[int | None],
    context_bytes: int = 0,
) -> list[float]:
    """The expected peak on each device, in bytes, at most `MAX_BYTES`.

    Args:
        held_bytes: what the job's process holds already (a CPU process's baseline), for each.
        context_bytes: what a GPU process pays beside the specification's context.
    """
    live = live_bytes(features)
    on_cpu = CPU_LIVE_FACTOR * live + CPU_GROWTH_BYTES
    segments = -(-live // ALLOCATOR_SEGMENT) * ALLOCATOR_SEGMENT
    on_gpu = context_bytes + workspace_bytes(features) + FRAGMENTATION * segments
    found = []
    for spec, held in zip(specs, held_bytes, strict=True):
        if spec.kind is DeviceKind.CPU:
            size = on_cpu + (held if held is not None else spec.context_bytes)
        else:
            size = on_gpu + spec.context_bytes
        found.append(min(float(MAX_BYTES), size))
    return found


def footprint(
    features: GraphFeatures,
    spec: DeviceSpec,
    held_bytes: int | None,
    context_bytes: int = 0,
) -> float:
    """`footprints` on one device."""
    return footprints(features, (spec,), (held_bytes,), context_bytes)[0]


def held_beyond_context(spec: DeviceSpec, held_bytes: int | None) -> int:
    """What the job's own process holds on a GPU beside its context: it stays while the job runs."""
    if held_bytes is None or spec.kind is DeviceKind.CPU:
        return 0
    return max(0, held_bytes - spec.context_bytes)
