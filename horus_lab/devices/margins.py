"""Bytes of a device that are never promised to anybody.

Predictions have intervals, allocators round up, and a process that starts is seen a second later:
the margin is what these may take before something fails.
"""

from __future__ import annotations

_MIB = 2**20
_GIB = 2**30


def gpu_margin(capacity_bytes: int) -> int:
    """2 % of a GPU, between 512 MiB and 2 GiB; of a small slice at most an eighth.

    The least is about one more CUDA context than was reckoned with; past 2 GiB a larger margin
    would only waste a large card.
    """
    wanted = min(2 * _GIB, max(512 * _MIB, capacity_bytes // 50))
    return min(wanted, capacity_bytes // 8)


def host_margin(capacity_bytes: int) -> int:
    """5 % of the host's memory, at least 1 GiB; of a small machine at most an eighth.

    Below it Linux begins to reclaim memory, and everybody on the machine slows down.
    """
    return min(max(_GIB, capacity_bytes // 20), capacity_bytes // 8)
