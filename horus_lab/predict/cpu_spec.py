"""The host's CPU as a device: its specification, measured once at start."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from horus_lab.records import DeviceKind, DeviceSpec

_MIB = 2**20
# Small enough that a round often fits between two neighbours' turns on a busy machine.
_MATRIX = 448
_TILE = 64
_SHARE = 0.9
_COPY_BYTES = 32 * _MIB
_SECONDS_EACH = 0.3
_ROUNDS_AT_LEAST = 3

# Assumed, not measured here (the server has no torch): what dispatching one torch operation costs
# one core, and what a Python process with torch and Lightning imported holds.
LAUNCH_SECONDS = 9e-6
CONTEXT_BYTES = 420 * _MIB


def measure_cpu(cores: int, memory_bytes: int, *, name: str = "CPU") -> DeviceSpec:
    """Measure this host: float32 matrix products, and copying memory.

    The other dtypes' rates follow from float32's as they usually stand to it. Takes about a second;
    the best of several rounds counts, for neighbours can only slow one down.

    Args:
        cores: the cores that jobs may use together.
        memory_bytes: the memory that jobs may use together.
        name: the device model's name.
    """
    if cores < 1 or memory_bytes < 1:
        raise ValueError("a CPU device needs at least one core and some memory")
    random = np.random.default_rng(0)
    square = random.random((_MATRIX, _MATRIX), dtype=np.float32)
    product = np.empty_like(square)
    seconds = _best(lambda: np.matmul(square, square, out=product))
    small = np.ascontiguousarray(square[:_TILE, :_TILE])
    result = np.empty_like(small)
    alone = _best(lambda: np.matmul(small, small, out=result))
    # Where neighbours keep the cores, threads wait for each other and the large product tells
    # nothing; the small one stays on one core and needs an undisturbed moment only.
    float32 = max(2.0 * _MATRIX**3 / seconds, _SHARE * cores * 2.0 * _TILE**3 / alone)
    source = np.ones(_COPY_BYTES // 8)
    target = np.empty_like(source)
    bandwidth = 2.0 * _COPY_BYTES / _best(lambda: np.copyto(target, source))
    return DeviceSpec(
        model=name,
        kind=DeviceKind.CPU,
        memory_bytes=memory_bytes,
        peak_flops={
            "float32": float32,
            "tf32": float32,
            "bfloat16": float32 / 2,
            "float16": float32 / 4,
            "float64": float32 / 2,
        },
        memory_bandwidth=bandwidth,
        multiprocessors=cores,
        launch_seconds=LAUNCH_SECONDS,
        context_bytes=CONTEXT_BYTES,
        source="measured",
    )


def _best(work: Callable[[], object]) -> float:
    """A short time of one call, over a bounded time: the 10th percentile, never the shortest.

    The shortest of many readings may be a clock's slip; it once gave a thousandfold rate.
    """
    work()
    taken: list[float] = []
    started = time.perf_counter()
    while len(taken) < _ROUNDS_AT_LEAST or time.perf_counter() - started < _SECONDS_EACH:
        before = time.perf_counter()
        work()
        taken.append(time.perf_counter() - before)
    taken.sort()
    return max(taken[max(1, len(taken) // 10)], 1e-9)
