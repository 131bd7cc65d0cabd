"""The placement cost of the paper, with the evident intent of its formula."""

from __future__ import annotations

from horus_lab.policy.cluster import DeviceView
from horus_lab.records import Prediction


def horus_cost(device: DeviceView, prediction: Prediction, reservation: int) -> float:
    """The cost of putting the job on the device; lowest first.

        over = U + u - 100 %
        cost = 1.3 (M + m) / capacity + (1.6 over if over > 0 else -over) + residents

    U and M are the residents' predicted utilization and charged memory, u and m the job's. At
    100 % the cost has a knee, not a wall: the bounds on slowdown are checked apart. From the first
    author's public simulator, less its slip of operator precedence.
    """
    load = sum(_load(resident.prediction) for resident in device.residents)
    over = load + _load(prediction) - 1.0
    memory = sum(resident.charged_bytes for resident in device.residents) + reservation
    capacity = max(1, device.device.capacity_bytes)
    return 1.3 * memory / capacity + (1.6 * over if over > 0 else -over) + len(device.residents)


def _load(prediction: Prediction) -> float:
    """Utilization, 0-1; an unknown one counts as a full device."""
    return prediction.utilization.p50 if prediction.utilization is not None else 1.0
