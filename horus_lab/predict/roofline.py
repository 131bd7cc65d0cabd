"""How long one training step would keep a device busy, from first principles.

Each (operation class, phase) of the step takes the longer of its arithmetic at the device's rate
and its traffic at the device's bandwidth, plus a floor for every kernel. Where the host dispatches
the kernels more slowly than the device runs them, the host sets the pace and the device idles
between kernels: that idle share is what utilization lacks.

On a CPU the host is the device: dispatch and work add up, and only large operations use every core.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from horus_lab.records import (
    DeviceKind,
    DeviceSpec,
    GraphFeatures,
    OperationClass,
    OperationStatistics,
    Phase,
)

Floats = npt.NDArray[np.float64]

# The share of the peak rate that operations of a class reach, and what a kernel and a step cost at
# least: fitted to the step times and utilizations of the training sets.
MATRIX_EFFICIENCY = {
    OperationClass.CONVOLUTION: 0.54,
    OperationClass.LINEAR: 0.85,
    OperationClass.ATTENTION: 0.60,
    OperationClass.RECURRENT: 0.75,
}
VECTOR_EFFICIENCY = 0.31
BANDWIDTH_EFFICIENCY = 0.40
KERNEL_SECONDS = 3.7e-6
FUSED_OPTIMIZER_LAUNCHES = 12.0
FUSED_TOGETHER = 30.0
GPU_LOOP_SECONDS = 2.9e-3

# A CPU step, measured on small Lightning trainings (benchmarks/predict/cpu_small.json): what the
# training loop itself costs; the traffic or arithmetic of one operation from which half of the
# further cores help; the share of the measured matrix rate that a class reaches.
CPU_LOOP_SECONDS = 2.2e-3
CPU_PARALLEL_BYTES = 1.5e5
CPU_PARALLEL_FLOPS = 2e6
CPU_EFFICIENCY = {
    OperationClass.CONVOLUTION: 0.17,
    OperationClass.LINEAR: 0.5,
    OperationClass.ATTENTION: 0.4,
    OperationClass.RECURRENT: 0.3,
}
CPU_VECTOR_EFFICIENCY = 0.1

_SHORTEST_STEP = 1e-7
_RATES = ("float32", "tf32", "float16", "bfloat16", "float64")
_PRECISION_DTYPES = {
    "16-mixed": "float16",
    "16-true": "float16",
    "bf16-mixed": "bfloat16",
    "bf16-true": "bfloat16",
    "64-true": "float64",
}


class Installation(Struct, frozen=True):
    """What of the installed software changes a step's time.

    Attributes:
        fused_optimizer: torch's optimizers work on many parameters at once (torch 2.0 and later).
        tf32_products: float32 matrix products run in TF32 (torch before 1.12, or on request).
    """

    fused_optimizer: bool = True
    tf32_products: bool = False


TODAY = Installation()


class Estimate(Struct, frozen=True):
    """One step on each of several devices: arrays with one element a device, in seconds.

    Attributes:
        step: the step's time, the training loop included.
        busy: the time in which the device runs any kernel (on a CPU: core-seconds over cores).
        compute: the arithmetic alone at the reachable rate.
        traffic: the memory traffic alone at the reachable bandwidth.
        dispatch: the host's time to launch everything.
    """

    step: Floats
    busy: Floats
    compute: Floats
    traffic: Floats
    dispatch: Floats

    @property
    def utilization(self) -> Floats:
        """The busy share of the step, 0-1."""
        return np.clip(self.busy / self.step, 0.0, 1.0)

    @property
    def memory_utilization(self) -> Floats:
        """The share of the step in which the memory moves data, 0-1."""
        return np.clip(self.traffic / self.step, 0.0, 1.0)


class Work(Struct, frozen=True):
    """A step's operations as arrays, one element a (class, phase).

    `fused_launches`: as on a GPU, where torch's optimizers work on many parameters at once.
    """

    launches: Floats
    fused_launches: Floats
    flops: Floats
    traffic_bytes: Floats
    matrix: npt.NDArray[np.bool_]
    efficiency: Floats
    cpu_efficiency: Floats
    dtype_shares: Floats


def work_of(features: GraphFeatures, installation: Installation = TODAY) -> Work:
    """The operations of a step as arrays. Without a break-down, the totals are one operation."""
    rows = features.operations
    if rows:
        launches = np.array([float(row.launches) for row in rows])
        flops = np.array(_reasonable_flops(rows))
        traffic = np.array([float(row.bytes_moved) for row in rows])
        classes = [row.operation for row in rows]
    else:
        launches = np.array([float(features.launches)])
        flops = np.array([float(features.flops)])
        traffic = np.array([float(features.bytes_moved)])
        classes = [OperationClass.LINEAR]
    convolution = np.array([operation is OperationClass.CONVOLUTION for operation in classes])
    shares = _dtype_shares(features)
    # torch lets cuDNN compute float32 convolutions in TF32 and keeps matrix products in float32.
    tensor = shares.copy()
    tensor[1] += tensor[0]
    tensor[0] = 0.0
    if installation.tf32_products:
        shares = tensor
    by_class = np.where(convolution[:, None], tensor[None, :], shares[None, :])
    optimizer = np.array([operation is OperationClass.OPTIMIZER for operation in classes])
    fused = np.minimum(launches, FUSED_OPTIMIZER_LAUNCHES + launches / FUSED_TOGETHER)
    return Work(
        launches=launches,
        fused_launches=(
            np.where(optimizer, fused, launches) if installation.fused_optimizer else launches
        ),
        flops=flops,
        traffic_bytes=traffic,
        matrix=np.array([operation in MATRIX_EFFICIENCY for operation in classes]),
        efficiency=np.array(
            [MATRIX_EFFICIENCY.get(operation, VECTOR_EFFICIENCY) for operation in classes]
        ),
        cpu_efficiency=np.array(
            [CPU_EFFICIENCY.get(operation, CPU_VECTOR_EFFICIENCY) for operation in classes]
        ),
        dtype_shares=by_class,
    )


def _reasonable_flops(rows: Sequence[OperationStatistics]) -> list[float]:
    """FLOPs of each row; a convolution's backward pass costs twice its forward pass at most.

    torch's own formula counts a grouped convolution's weight gradient as if it had no groups.
    """
    forward = sum(
        row.flops
        for row in rows
        if row.operation is OperationClass.CONVOLUTION and row.phase is Phase.FORWARD
    )
    return [
        min(float(row.flops), 2.0 * forward)
        if row.operation is OperationClass.CONVOLUTION and row.phase is Phase.BACKWARD and forward
        else float(row.flops)
        for row in rows
    ]


def _dtype_shares(features: GraphFeatures) -> Floats:
    shares = np.zeros(len(_RATES))
    for dtype, flops in features.dtype_flops.items():
        name = dtype.removeprefix("torch.")
        shares[_RATES.index(name) if name in _RATES else 0] += float(flops)
    total = float(shares.sum())
    if total <= 0.0:
        dtype = _PRECISION_DTYPES.get(features.precision, "float32")
        shares[_RATES.index(dtype)] = 1.0
        return shares
    return shares / total


class Capability(Struct, frozen=True):
    """What devices can do, as arrays with one element a device (`rates`: dtype x device)."""

    rates: Floats
    bandwidth: Floats
    launch: Floats
    cores: Floats
    cpu: npt.NDArray[np.bool_]


def capability_of(specs: Sequence[DeviceSpec]) -> Capability:
    """Several specifications side by side; a missing or absurd rate falls back to float32's."""
    rates = np.array([[_rate(spec, dtype) for spec in specs] for dtype in _RATES])
    return Capability(
        rates=rates,
        bandwidth=np.array([_positive(spec.memory_bandwidth, 1e11) for spec in specs]),
        launch=np.array([_positive(spec.launch_seconds, 8e-6) for spec in specs]),
        cores=np.array([float(max(1, spec.multiprocessors)) for spec in specs]),
        cpu=np.array([spec.kind is DeviceKind.CPU for spec in specs]),
    )


def _rate(spec: DeviceSpec, dtype: str) -> float:
    fallback = _positive(spec.peak_flops.get("float32", 0.0), 1e12)
    return _positive(spec.peak_flops.get(dtype, fallback), fallback)


def _positive(value: float, fallback: float) -> float:
    return value if 1e-12 < value < 1e30 else fallback


def estimate(work: Work, devices: Capability) -> Estimate:
    """One step of `work` on each device. Every result is finite and the step longer than zero."""
    per_flop = work.dtype_shares @ (1.0 / devices.rates)
    vector = 1.0 / devices.rates[0]
    per_flop = np.where(work.matrix[:, None], per_flop, vector[None, :])
    compute = work.flops[:, None] * per_flop / work.efficiency[:, None]
    traffic = work.traffic_bytes[:, None] / (devices.bandwidth * BANDWIDTH_EFFICIENCY)[None, :]
    dispatch = work.launches[:, None] * devices.launch[None, :]
    fused = work.fused_launches[:, None] * devices.launch[None, :]
    gpu = _gpu(work, compute, traffic, fused)
    if not devices.cpu.any():
        return gpu
    cpu = _cpu(work, compute, traffic, dispatch, devices.cores)
    return Estimate(
        *(
            np.where(devices.cpu, one, other)
            for one, other in (
                (cpu.step, gpu.step),
                (cpu.busy, gpu.busy),
                (cpu.compute, gpu.compute),
                (cpu.traffic, gpu.traffic),
                (cpu.dispatch, gpu.dispatch),
            )
        )
    )


def _gpu(work: Work, compute: Floats, traffic: Floats, dispatch: Floats) -> Estimate:
    device = np.maximum(compute, traffic) + (work.fused_launches * KERNEL_SECONDS)[:, None]
    step = np.maximum(device, dispatch).sum(axis=0) + GPU_LOOP_SECONDS
    return Estimate(
        step=np.maximum(step, _SHORTEST_STEP),
        busy=device.sum(axis=0),
        compute=compute.sum(axis=0),
        traffic=traffic.sum(axis=0),
        dispatch=dispatch.sum(axis=0),
    )


def _cpu(work: Work, compute: Floats, traffic: Floats, dispatch: Floats, cores: Floats) -> Estimate:
    """Dispatch runs on one core; an operation's work spreads over all of them as it grows.

    The measured rates are of all cores together, so work on one core takes `cores` times longer.
    """
    launches = np.maximum(work.launches, 1.0)
    size = np.maximum(
        work.traffic_bytes / launches / CPU_PARALLEL_BYTES,
        work.flops / launches / CPU_PARALLEL_FLOPS,
    )
    spread = (size**2 / (1.0 + size**2))[:, None]
    reached = compute * (work.efficiency / work.cpu_efficiency)[:, None]
    together = np.maximum(reached, traffic)
    further = cores[None, :] - 1.0
    duration = together * cores[None, :] / (1.0 + spread * further)
    step = (duration + dispatch).sum(axis=0) + CPU_LOOP_SECONDS
    # Once an operation spreads, the further threads wait for the next one spinning: busy.
    busy = step * (1.0 + float(spread.max(initial=0.0)) * (cores - 1.0)) / cores
    return Estimate(
        step=np.maximum(step, _SHORTEST_STEP),
        busy=busy,
        compute=reached.sum(axis=0),
        traffic=traffic.sum(axis=0),
        dispatch=dispatch.sum(axis=0),
    )
