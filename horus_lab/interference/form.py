"""The form of the slowdown: what a job loses to its neighbours, from loads alone.

With u, m the job's own utilization and memory-bandwidth utilization (0-1) and U, M the sums of its
neighbours', the excess over 1 is a sum of terms with coefficients of at least zero. Every term
grows with U and M and is zero without neighbours, so adding a neighbour, or load to one, never
speeds anybody up:

- `max(0, u + U - t)`: the device's time saturates;
- `u U`, `u U^2`: kernels meet although it does not;
- `m M`, `u M`, `m U`, `max(0, m + M - t)`: the memory bus is shared.

A neighbour without load takes nothing: each term is capped by a factor of U (or M) near zero.
"""

from __future__ import annotations

TIME_KNEES = (0.6, 0.8, 1.0, 1.2, 1.4)
BANDWIDTH_KNEES = (0.2, 0.4, 0.6, 0.8)
TIME_TERMS = len(TIME_KNEES) + 2
ALL_TERMS = TIME_TERMS + 3 + len(BANDWIDTH_KNEES)


def terms(
    own: float, others: float, own_bandwidth: float | None, others_bandwidth: float | None
) -> tuple[float, ...]:
    """The terms' values; without the bandwidth ones where anybody's is unknown."""
    time = [min(others, max(0.0, own + others - knee)) for knee in TIME_KNEES]
    time += [own * others, own * others * others]
    if own_bandwidth is None or others_bandwidth is None:
        return tuple(time)
    bandwidth = [
        own_bandwidth * others_bandwidth,
        own * others_bandwidth,
        own_bandwidth * others,
    ]
    bandwidth += [
        min(others_bandwidth, max(0.0, own_bandwidth + others_bandwidth - knee))
        for knee in BANDWIDTH_KNEES
    ]
    return (*time, *bandwidth)


def processor_sharing(own: float, others: float) -> float:
    """The excess where the device's time is simply shared: max(0, u + U - 1)."""
    return max(0.0, own + others - 1.0)
