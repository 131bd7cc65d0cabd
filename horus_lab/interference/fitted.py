"""The fitted slowdown model."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from typing import NamedTuple

import msgspec
from msgspec import Struct

from horus_lab.errors import ConfigurationError
from horus_lab.interference import form
from horus_lab.records import DeviceKind, DeviceSpec, Interval, Prediction

_MOST = 1000.0
# Independent loads are seldom all at their 90th percentile at once: that of two equal ones' sum
# lies 1 / sqrt(2) of the way. More of them would lie nearer; the factor stays, so that one resident
# more never narrows anybody's interval.
_INDEPENDENT = 2**-0.5
_ALONE = Interval(1.0, 1.0, 1.0)


class Coefficients(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the fit gives; see `horus_lab.interference.form` and `horus_lab.interference.fit`.

    Attributes:
        take, take_per_bandwidth: a resident takes `take + take_per_bandwidth * m`, m its
            memory-bandwidth utilization.
        take_without_bandwidth: what it takes where m is unknown.
        power: of the activity.
        high, high_without_bandwidth: the 90th percentile of the excess as a factor of the overlap,
            with models that the fit had not seen.
        low: (factor, constant): the 10th is `factor * excess - constant`, at least zero.
        trained_on: names of the measured sets, and their size.
    """

    take: float
    take_per_bandwidth: float
    take_without_bandwidth: float
    power: float
    high: float
    high_without_bandwidth: float
    low: tuple[float, float]
    trained_on: str

    def __post_init__(self) -> None:
        if min(self.take, self.take_per_bandwidth, self.take_without_bandwidth) < 0:
            raise ValueError("a coefficient below zero would let a neighbour speed a job up")
        if min(self.high, self.high_without_bandwidth, *self.low) < 0:
            raise ValueError("an interval cannot end below nothing")
        if self.power < 1:
            raise ValueError("the power of the activity is at least 1")


class _Load(NamedTuple):
    """One resident's loads at one percentile."""

    utilization: float
    bandwidth: float | None


class FittedInterference:
    """Slowdown from loads: fitted on measured pairs, sharing of the device's time beyond them.

    Two residents of a GPU follow the fit. More of them, and residents of a CPU, were not measured
    in public: there the excess is at least what processor sharing gives.
    """

    def __init__(self, coefficients: Coefficients) -> None:
        self._coefficients = coefficients

    @classmethod
    def load(cls) -> FittedInterference:
        """The shipped fit.

        Raises:
            ConfigurationError: the shipped file is damaged.
        """
        file = resources.files("horus_lab.interference") / "coefficients.json"
        try:
            return cls(msgspec.json.decode(file.read_bytes(), type=Coefficients))
        except (OSError, msgspec.DecodeError) as error:
            raise ConfigurationError(
                f"The interference model {file} cannot be read: {error}.",
                hint="Install horus-lab again.",
            ) from error

    def slowdowns(
        self, residents: Sequence[Prediction], spec: DeviceSpec
    ) -> tuple[Interval | None, ...]:
        """Each resident's slowdown if exactly these share the device; 1 alone.

        The interval holds the fit's own spread and that of everybody's predicted load.
        """
        if len(residents) == 1:
            return (_ALONE,)
        middle = _loads(residents, "p50")
        if middle is None:
            return (None,) * len(residents)
        lowest = _loads(residents, "p10") or middle
        highest = _loads(residents, "p90") or middle
        cpu = spec.kind is DeviceKind.CPU
        excesses = self._cores if cpu else self._device_time
        factor, constant = (1.0, 0.0) if cpu else self._coefficients.low
        p50s = excesses(middle)
        p90s = p50s if highest == middle else excesses(highest)
        p10s = [0.0] * len(residents) if factor == 0.0 else excesses(lowest)
        if not cpu:
            # The spread was measured between GPUs' jobs; sharing cores has only that of the loads.
            p90s = [max(p90, self._most(highest, own)) for own, p90 in enumerate(p90s)]
        p10s = [factor * p10 - constant for p10 in p10s]
        return tuple(
            Interval(
                1.0 + min(_MOST, max(0.0, min(p10, p50))),
                1.0 + min(_MOST, p50),
                1.0 + min(_MOST, max(p50, p90)),
            )
            for p10, p50, p90 in zip(p10s, p50s, p90s, strict=True)
        )

    def _device_time(self, loads: Sequence[_Load]) -> list[float]:
        fit = self._coefficients
        utilizations = [load.utilization for load in loads]
        takes = [
            fit.take_without_bandwidth
            if load.bandwidth is None
            else fit.take + fit.take_per_bandwidth * load.bandwidth
            for load in loads
        ]
        fitted = form.excesses(utilizations, takes, fit.power)
        if len(loads) == 2:
            return fitted
        return [max(one, shared) for one, shared in zip(fitted, self._cores(loads), strict=True)]

    @staticmethod
    def _cores(loads: Sequence[_Load]) -> list[float]:
        total = sum(load.utilization for load in loads)
        return [
            form.processor_sharing(load.utilization, total - load.utilization) for load in loads
        ]

    def _most(self, loads: Sequence[_Load], own: int) -> float:
        """The 90th percentile of one resident's excess, as its neighbours together allow."""
        fit = self._coefficients
        mine = loads[own]
        most = 0.0
        for index, other in enumerate(loads):
            if index == own:
                continue
            if mine.bandwidth is None or other.bandwidth is None:
                most += fit.high_without_bandwidth * mine.utilization * other.utilization
            else:
                most += fit.high * form.overlap(
                    mine.utilization, other.utilization, mine.bandwidth, other.bandwidth
                )
        return most


def _loads(residents: Sequence[Prediction], towards: str) -> list[_Load] | None:
    """Everybody's loads, at or towards a percentile; `None` where somebody's is unknown."""
    found = []
    for resident in residents:
        if resident.utilization is None:
            return None
        bandwidth = resident.memory_utilization
        found.append(
            _Load(
                _towards(resident.utilization, towards),
                None if bandwidth is None else _towards(bandwidth, towards),
            )
        )
    return found


def _towards(interval: Interval, percentile: str) -> float:
    value: float = getattr(interval, percentile)
    return interval.p50 + _INDEPENDENT * (value - interval.p50)
