"""The form of the slowdown: what a job loses to its neighbours, from loads alone.

A job alone keeps the device busy for the share `u` of its time and prepares the next launches in
the rest. A neighbour stretches the busy part, by as much as the neighbour is active itself:

    stretch of i  = 1 + sum over neighbours j of take_j * activity_j ** power
    activity of i = u_i stretch_i / (1 - u_i + u_i stretch_i)
    excess of i   = u_i (stretch_i - 1)          (slowdown - 1)

Stretched jobs are active for more of the time, so the two lines are repeated a fixed number of
times from `activity = u`. Every line grows with every load, so adding a neighbour, or load to one,
never speeds anybody up; without neighbours, or beside one without load, the excess is zero.

How far the truth lies above this goes with how often busy times meet, `overlap`. The functions take
floats, or arrays of one shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Number = TypeVar("Number", float, NDArray[np.float64])

_ROUNDS = 5


def excesses(loads: Sequence[Number], takes: Sequence[Number], power: float) -> list[Number]:
    """Each resident's slowdown - 1.

    Args:
        loads: each resident's utilization alone, 0-1.
        takes: how much a resident stretches its neighbours while it is active.
        power: of the activity; at least 1.
    """
    if len(loads) == 2:
        return _pair(loads[0], loads[1], takes[0], takes[1], power)
    activities = list(loads)
    stretches: list[Any] = []
    for _ in range(_ROUNDS):
        pulls = [take * activity**power for take, activity in zip(takes, activities, strict=True)]
        total = sum(pulls)
        stretches = [1.0 + (total - pull) for pull in pulls]
        activities = [
            load * stretch / (1.0 - load + load * stretch)
            for load, stretch in zip(loads, stretches, strict=True)
        ]
    return [load * (stretch - 1.0) for load, stretch in zip(loads, stretches, strict=True)]


def _pair(
    one: Number, two: Number, take_one: Number, take_two: Number, power: float
) -> list[Number]:
    """The same for two, which is asked most often."""
    activity_one, activity_two = one, two
    pull_one = pull_two = one
    for _ in range(_ROUNDS):
        pull_one = take_two * activity_two**power
        pull_two = take_one * activity_one**power
        busy_one, busy_two = one + one * pull_one, two + two * pull_two
        activity_one = busy_one / (1.0 - one + busy_one)
        activity_two = busy_two / (1.0 - two + busy_two)
    return [one * pull_one, two * pull_two]


def overlap(own: Number, other: Number, own_bandwidth: Number, other_bandwidth: Number) -> Number:
    """How often two jobs' busy times, and their uses of the memory bus, would meet by chance."""
    return own * other + own_bandwidth * other_bandwidth


def processor_sharing(own: float, others: float) -> float:
    """The excess where the device's time is simply shared: max(0, u + U - 1)."""
    return max(0.0, own + others - 1.0)
