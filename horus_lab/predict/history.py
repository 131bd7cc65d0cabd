"""What ended runs teach about their graph on their device model.

For each (graph, device model) and each quantity: a normal with unknown mean and variance, kept as
three sums that decay at every new run, so that old runs are forgotten gently. The prediction from
features is the prior: it counts as one more opinion, of its own width. Memory and step time are
learned as logarithms, utilization as its log-odds.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict, deque
from collections.abc import Iterable
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from horus_lab.records import Observation

FORGETTING = 0.9
KEPT_RUNS = 64
KEPT_KEYS = 20_000

# How one run differs from the next of the same graph, where nothing is known yet: the prior of
# the spread, worth `_SPREAD_RUNS` runs.
_SPREAD_RUNS = 3.0
_Z90 = 1.2815515655446004
LEAST_UTILIZATION = 0.002


class Quantity(StrEnum):
    MEMORY = "memory"
    UTILIZATION = "utilization"
    STEP = "step"


RUN_SPREAD = {Quantity.MEMORY: 0.02, Quantity.UTILIZATION: 0.25, Quantity.STEP: 0.06}
"""Standard deviation between runs of one graph, in the learned scale."""


class Spread(Struct, frozen=True):
    """A normal in the learned scale: p50 is `centre`, p10 and p90 lie 1.28 `deviation`s off."""

    centre: float
    deviation: float

    def quantile(self, z: float) -> float:
        """The value `z` standard deviations above the centre."""
        return self.centre + z * self.deviation


class Sums(Struct, frozen=True):
    """Decayed count, mean and sum of squared deviations of what was measured."""

    weight: float = 0.0
    mean: float = 0.0
    squares: float = 0.0
    runs: int = 0

    def updated(self, value: float) -> Sums:
        """These sums after one more run (West's update, older runs decayed)."""
        weight = self.weight * FORGETTING + 1.0
        delta = value - self.mean
        mean = self.mean + delta / weight
        squares = self.squares * FORGETTING + delta * (value - mean)
        return Sums(weight, mean, squares, self.runs + 1)

    def posterior(self, prior: Spread, run_spread: float) -> Spread:
        """What the next run will measure: the prior and the runs, each by its precision."""
        variance = (_SPREAD_RUNS * run_spread**2 + self.squares) / (_SPREAD_RUNS + self.weight)
        if self.weight > 0.0:
            variance = max(variance, self.squares / self.weight)
        before = 1.0 / max(prior.deviation, 1e-6) ** 2
        after = self.weight / variance
        centre = (before * prior.centre + after * self.mean) / (before + after)
        return Spread(centre, math.sqrt(variance + 1.0 / (before + after)))


def to_scale(quantity: Quantity, value: float) -> float:
    """A value in the scale it is learned in."""
    if quantity is Quantity.UTILIZATION:
        share = min(1.0 - LEAST_UTILIZATION, max(LEAST_UTILIZATION, value))
        return math.log(share / (1.0 - share))
    return math.log(max(value, 1e-9))


class GraphHistory(Struct, frozen=True):
    """All that is known of one graph on one device model."""

    memory: Sums = Sums()
    utilization: Sums = Sums()
    step: Sums = Sums()
    runs: int = 0

    def of(self, quantity: Quantity) -> Sums:
        """The sums of one quantity."""
        by_quantity: dict[Quantity, Sums] = {
            Quantity.MEMORY: self.memory,
            Quantity.UTILIZATION: self.utilization,
            Quantity.STEP: self.step,
        }
        return by_quantity[quantity]


class Histories:
    """The histories of every graph seen, the least recently taught forgotten past a bound."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str], GraphHistory] = OrderedDict()
        self._runs: dict[tuple[str, str], deque[Observation]] = {}
        self._lock = threading.Lock()

    def learn(self, observation: Observation) -> None:
        """Take in one ended run; what it did not measure stays as it was."""
        memory = _usable(observation.memory_bytes)
        step = _usable(observation.step_seconds)
        utilization = observation.utilization
        if utilization is not None and not 0.0 <= utilization <= 1.0:
            utilization = None
        if memory is None and step is None and utilization is None:
            return
        key = (observation.graph_hash, observation.device_model)
        with self._lock:
            known = self._known.pop(key, GraphHistory())
            self._known[key] = replace(
                known,
                memory=_taught(known.memory, Quantity.MEMORY, memory),
                utilization=_taught(known.utilization, Quantity.UTILIZATION, utilization),
                step=_taught(known.step, Quantity.STEP, step),
                runs=known.runs + 1,
            )
            self._runs.setdefault(key, deque(maxlen=KEPT_RUNS)).append(observation)
            if len(self._known) > KEPT_KEYS:
                oldest, _ = self._known.popitem(last=False)
                del self._runs[oldest]

    def of(self, graph_hash: str, device_model: str) -> GraphHistory | None:
        """What is known of a graph on a device model; `None` where it never ran."""
        return self._known.get((graph_hash, device_model))

    def export(self) -> tuple[Observation, ...]:
        """The runs that still count, oldest first."""
        with self._lock:
            runs = [run for kept in self._runs.values() for run in kept]
        return tuple(sorted(runs, key=lambda run: run.observed_at))

    def restore(self, observations: Iterable[Observation]) -> None:
        """Forget everything and learn from these, in the order in which they were observed."""
        with self._lock:
            self._known.clear()
            self._runs.clear()
        for observation in sorted(observations, key=lambda run: run.observed_at):
            self.learn(observation)


def _usable(value: float | None) -> float | None:
    """A measurement that can be one: a run that used no memory or no time was not measured."""
    return value if value is not None and math.isfinite(value) and value > 0 else None


def _taught(sums: Sums, quantity: Quantity, value: float | None) -> Sums:
    return sums if value is None else sums.updated(to_scale(quantity, value))
