"""The fitted slowdown model."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources

import msgspec
from msgspec import Struct

from horus_lab.errors import ConfigurationError
from horus_lab.interference import form
from horus_lab.records import DeviceKind, DeviceSpec, Interval, Prediction

_MOST = 1000.0


class Coefficients(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the fit gives; see `horus_lab.interference.fit`.

    Attributes:
        with_bandwidth, without_bandwidth: of `form.terms`, all at least zero.
        low, high: (constant, factor): the 10th and 90th percentile of the excess, as a constant
            and a factor of the predicted one, from pairs that the fit had not seen.
        trained_on: names of the measured sets, and their size.
    """

    with_bandwidth: tuple[float, ...]
    without_bandwidth: tuple[float, ...]
    low: tuple[float, float]
    high: tuple[float, float]
    trained_on: str

    def __post_init__(self) -> None:
        if len(self.with_bandwidth) != form.ALL_TERMS:
            raise ValueError(f"expected {form.ALL_TERMS} coefficients with bandwidth")
        if len(self.without_bandwidth) != form.TIME_TERMS:
            raise ValueError(f"expected {form.TIME_TERMS} coefficients without bandwidth")
        if min(*self.with_bandwidth, *self.without_bandwidth, *self.low, *self.high) < 0:
            raise ValueError("a coefficient below zero would let a neighbour speed a job up")


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
            return (Interval(1.0, 1.0, 1.0),)
        if any(resident.utilization is None for resident in residents):
            return (None,) * len(residents)
        middle = self._excesses(residents, spec, "p50")
        lowest = self._excesses(residents, spec, "p10")
        highest = self._excesses(residents, spec, "p90")
        # The spread was measured between GPUs' jobs; sharing cores has only that of the loads.
        cpu = spec.kind is DeviceKind.CPU
        low_constant, low_factor = (0.0, 1.0) if cpu else self._coefficients.low
        high_constant, high_factor = (0.0, 1.0) if cpu else self._coefficients.high
        found = []
        for index in range(len(residents)):
            p50 = middle[index]
            p10 = min(p50, max(0.0, low_factor * lowest[index] - low_constant))
            p90 = max(p50, high_constant + high_factor * highest[index])
            found.append(Interval(1 + min(p10, _MOST), 1 + min(p50, _MOST), 1 + min(p90, _MOST)))
        return tuple(found)

    def _excesses(
        self, residents: Sequence[Prediction], spec: DeviceSpec, percentile: str
    ) -> list[float]:
        loads = [_at(resident.utilization, percentile) or 0.0 for resident in residents]
        bandwidths = [_at(resident.memory_utilization, percentile) for resident in residents]
        known = [b for b in bandwidths if b is not None]
        total = sum(loads)
        total_bandwidth = sum(known) if len(known) == len(bandwidths) else None
        cpu = spec.kind is DeviceKind.CPU
        found = []
        for own, own_bandwidth in zip(loads, bandwidths, strict=True):
            others = total - own
            shared = form.processor_sharing(own, others)
            if cpu:
                found.append(shared)
                continue
            rest = (
                total_bandwidth - own_bandwidth
                if total_bandwidth is not None and own_bandwidth is not None
                else None
            )
            values = form.terms(own, others, own_bandwidth, rest)
            coefficients = (
                self._coefficients.with_bandwidth
                if rest is not None
                else self._coefficients.without_bandwidth
            )
            fitted = sum(c * value for c, value in zip(coefficients, values, strict=True))
            found.append(fitted if len(residents) == 2 else max(fitted, shared))
        return found


def _at(interval: Interval | None, percentile: str) -> float | None:
    if interval is None:
        return None
    value: float = getattr(interval, percentile)
    return value
