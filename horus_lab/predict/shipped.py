"""The predictor that the broker uses: first principles, a learned residual, then history."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from horus_lab.predict.footprint import footprints, held_beyond_context
from horus_lab.predict.history import (
    LEAST_UTILIZATION,
    RUN_SPREAD,
    GraphHistory,
    Histories,
    Quantity,
    Spread,
)
from horus_lab.predict.residual import (
    FALLBACK_CONTEXT_BYTES,
    Corrections,
    Residual,
    load_residual,
    plain,
)
from horus_lab.predict.roofline import Capability, Estimate, capability_of, estimate, work_of
from horus_lab.records import (
    MAX_BYTES,
    MAX_SECONDS,
    Basis,
    DeclaredNeeds,
    DeviceKind,
    DeviceSpec,
    GraphFeatures,
    Interval,
    Observation,
    Prediction,
)

Floats = npt.NDArray[np.float64]

_Z90 = 1.2815515655446004
_SHORTEST_STEP = 1e-7
_DECLARED_WIDENING = 1.02
# A capture of the whole step is this sure; the intervals were calibrated on such.
_SURE = 0.95
_CONFIDENCE_WIDENING = 1.5
_UNSEEN_WIDENING = 1.5
_ASSUMED_WIDENING = 2.5


class _Scaled(Struct, frozen=True):
    """Every quantity on every device in its learned scale; arrays of quantity x device."""

    centre: Floats
    low: Floats
    high: Floats


class ShippedPredictor:
    """Implements `horus_lab.predict.protocol.Predictor`.

    Attributes:
        notices: what users should know of the loaded files (empty when all is well).
    """

    def __init__(self, residual: Residual | None = None, notices: tuple[str, ...] = ()) -> None:
        self._residual = residual
        self._histories = Histories()
        self._last: tuple[tuple[DeviceSpec, ...], Capability] = ((), capability_of(()))
        self.notices = notices

    @classmethod
    def load(cls, path: Path | None = None) -> Self:
        """The shipped models, or those in the folder `path`.

        A missing, changed or unreadable file is no error: the predictor then stands on first
        principles with wide intervals, and says so in `notices`.
        """
        residual, notices = load_residual(path)
        return cls(residual, notices)

    # --- predicting -----------------------------------------------------------------------------

    def predict(
        self,
        features: GraphFeatures | None,
        declared: DeclaredNeeds | None,
        spec: DeviceSpec,
        *,
        held_bytes: int | None = None,
    ) -> Prediction:
        """See `Predictor.predict`."""
        return self.predict_many(features, declared, (spec,), (held_bytes,))[0]

    def predict_many(
        self,
        features: GraphFeatures | None,
        declared: DeclaredNeeds | None,
        specs: Sequence[DeviceSpec],
        held_bytes: Sequence[int | None] | None = None,
    ) -> tuple[Prediction, ...]:
        """One job on several devices at once: one prediction for each specification, in order.

        Args:
            held_bytes: what the job's own process holds on each device already.
        """
        if not specs:
            return ()
        held = tuple(held_bytes) if held_bytes is not None else (None,) * len(specs)
        if len(held) != len(specs):
            raise ValueError("held_bytes needs one element for each specification")
        if features is None:
            return tuple(
                _declared(None, declared, spec, one) for spec, one in zip(specs, held, strict=True)
            )
        predictions = self._modelled(features, specs, held)
        if declared is None:
            return predictions
        return tuple(
            _declared(prediction, declared, spec, one)
            for prediction, spec, one in zip(predictions, specs, held, strict=True)
        )

    def _modelled(
        self,
        features: GraphFeatures,
        specs: Sequence[DeviceSpec],
        held: Sequence[int | None],
    ) -> tuple[Prediction, ...]:
        residual = self._residual
        principles = estimate(work_of(features), self._capability(specs))
        context = FALLBACK_CONTEXT_BYTES if residual is None else residual.manifest.context_bytes
        sizes = np.array(footprints(features, specs, held, context))
        corrections = (
            residual.correct(features, specs, principles, sizes)
            if residual is not None
            else plain(len(specs))
        )
        seen = [residual is not None and residual.has_seen(spec) for spec in specs]
        past = [self._histories.of(features.graph_hash, spec.model) for spec in specs]
        scaled = _scaled(principles, sizes, corrections)
        widening = np.array(
            [_widening(features, spec, one) for spec, one in zip(specs, seen, strict=True)]
        )
        scaled = _Scaled(scaled.centre, scaled.low * widening, scaled.high * widening)
        _learn(scaled, past)
        extra = [held_beyond_context(spec, one) for spec, one in zip(specs, held, strict=True)]
        memory, step, load, moving = _percentiles(scaled, [one or 0 for one in held], extra)
        return tuple(
            Prediction(
                device_model=spec.model,
                basis=Basis.MODEL if past[index] is None else Basis.HISTORY,
                utilization=load[index],
                memory_utilization=moving[index],
                memory_startup_bytes=memory[index],
                memory_bytes=memory[index],
                step_seconds=step[index],
                explanation=_explanation(
                    features, spec, seen[index], residual is not None, past[index]
                ),
            )
            for index, spec in enumerate(specs)
        )

    def _capability(self, specs: Sequence[DeviceSpec]) -> Capability:
        """The devices as arrays; the same devices are asked for again and again."""
        known, capability = self._last
        if len(known) == len(specs) and all(map(operator.is_, known, specs)):
            return capability
        capability = capability_of(specs)
        self._last = (tuple(specs), capability)
        return capability

    # --- learning -------------------------------------------------------------------------------

    def learn(self, observation: Observation) -> None:
        """See `Predictor.learn`."""
        self._histories.learn(observation)

    def export_history(self) -> tuple[Observation, ...]:
        """The runs that later predictions rest on, oldest first."""
        return self._histories.export()

    def restore(self, observations: Iterable[Observation]) -> None:
        """Rebuild the history from stored runs; what was learned before is forgotten."""
        self._histories.restore(observations)


# The order of the quantities in the arrays below: that of `horus_lab.predict.residual.QUANTITIES`.
_MEMORY, _UTILIZATION, _MEMORY_UTILIZATION, _STEP = range(4)
_LEARNED = (
    (_MEMORY, Quantity.MEMORY),
    (_UTILIZATION, Quantity.UTILIZATION),
    (_STEP, Quantity.STEP),
)


def _scaled(principles: Estimate, sizes: Floats, corrections: Corrections) -> _Scaled:
    centre = np.empty_like(corrections.shift)
    centre[_MEMORY] = np.log(np.maximum(sizes, 1.0))
    centre[_STEP] = np.log(principles.step)
    centre[_UTILIZATION] = principles.utilization
    centre[_MEMORY_UTILIZATION] = principles.memory_utilization
    shares = centre[_UTILIZATION : _MEMORY_UTILIZATION + 1]
    np.minimum(np.maximum(shares, LEAST_UTILIZATION), 1.0 - LEAST_UTILIZATION, out=shares)
    shares[:] = np.log(shares / (1.0 - shares))
    centre += corrections.shift
    return _Scaled(centre, corrections.low, corrections.high)


def _learn(scaled: _Scaled, past: Sequence[GraphHistory | None]) -> None:
    """Let what was measured update the model's opinion, in place."""
    for device, known in enumerate(past):
        if known is None:
            continue
        for index, quantity in _LEARNED:
            sums = known.of(quantity)
            if sums.runs == 0:
                continue
            at = (index, device)
            width = float(scaled.low[at] + scaled.high[at]) / (2.0 * _Z90)
            prior = Spread(float(scaled.centre[at]), width)
            after = sums.posterior(prior, RUN_SPREAD[quantity])
            scaled.centre[at] = after.centre
            scaled.low[at] = scaled.high[at] = after.deviation * _Z90


def _percentiles(
    scaled: _Scaled, held: Sequence[int], extra: Sequence[int]
) -> tuple[list[Interval], list[Interval], list[Interval], list[Interval]]:
    """Memory, step, utilization, memory-bandwidth utilization: an interval a device each.

    A process cannot use less memory than it holds already; what it holds beside a context is
    added to what the job will take.
    """
    ends = np.stack(
        [scaled.centre - scaled.low, scaled.centre, scaled.centre + scaled.high], axis=2
    )
    np.clip(ends, -60.0, 60.0, out=ends)
    sizes = np.exp(ends[_MEMORY]) + np.array(extra, dtype=np.float64)[:, None]
    least = np.minimum(np.array(held, dtype=np.float64), MAX_BYTES)[:, None]
    sizes = np.clip(sizes, least, MAX_BYTES)
    steps = np.clip(np.exp(ends[_STEP]), _SHORTEST_STEP, MAX_SECONDS)
    loads = 1.0 / (1.0 + np.exp(-ends[_UTILIZATION : _MEMORY_UTILIZATION + 1]))
    memory, step = _intervals(sizes), _intervals(steps)
    return memory, step, _intervals(loads[0]), _intervals(loads[1])


def _intervals(percentiles: Floats) -> list[Interval]:
    return [Interval(*one) for one in percentiles.tolist()]


def _widening(features: GraphFeatures, spec: DeviceSpec, seen: bool) -> float:
    """How much wider than calibrated: an unsure capture, a device model never measured."""
    widening = 1.0 + _CONFIDENCE_WIDENING * max(0.0, _SURE - features.confidence)
    if spec.source == "assumed":
        return widening * _ASSUMED_WIDENING
    if spec.kind is not DeviceKind.CPU and not seen:
        return widening * _UNSEEN_WIDENING
    return widening


def _declared(
    modelled: Prediction | None,
    declared: DeclaredNeeds | None,
    spec: DeviceSpec,
    held: int | None,
) -> Prediction:
    if declared is None:
        return Prediction(
            device_model=spec.model,
            basis=Basis.UNKNOWN,
            explanation="Neither graph features nor declared needs are known of this job.",
        )
    memory = float(min(MAX_BYTES, max(declared.memory_bytes, held or 0)))
    stated = Interval(memory, memory, min(float(MAX_BYTES), memory * _DECLARED_WIDENING))
    return Prediction(
        device_model=spec.model,
        basis=Basis.DECLARED,
        utilization=_stated(declared.utilization, 1.0)
        or (modelled.utilization if modelled else None),
        memory_utilization=_stated(declared.memory_utilization, 1.0)
        or (modelled.memory_utilization if modelled else None),
        memory_startup_bytes=stated,
        memory_bytes=stated,
        step_seconds=_stated(declared.step_seconds, MAX_SECONDS)
        or (modelled.step_seconds if modelled else None),
        explanation="As declared by the user"
        + (", the rest from the captured graph." if modelled else "; what was not is unknown."),
    )


def _stated(value: float | None, most: float) -> Interval | None:
    return None if value is None else Interval(value, value, min(most, value * _DECLARED_WIDENING))


def _explanation(
    features: GraphFeatures,
    spec: DeviceSpec,
    seen: bool,
    learned: bool,
    past: GraphHistory | None,
) -> str:
    parts = []
    if past is not None:
        runs = "one run" if past.runs == 1 else f"{past.runs} runs"
        parts.append(f"{runs} of this graph on {spec.model} and its captured step")
    elif spec.kind is DeviceKind.CPU:
        parts.append("the captured step and this CPU's measured rates")
    elif learned:
        parts.append(f"the captured step, {spec.model}'s rates and what was learned from others")
    else:
        parts.append(f"the captured step and {spec.model}'s rates, without learning")
    if spec.source == "assumed":
        parts.append("wide, because nothing is published here of this device model")
    elif learned and not seen and spec.kind is not DeviceKind.CPU:
        parts.append("wider, because no training measurement was of this device model")
    if features.confidence < _SURE:
        parts.append(f"wider, because the capture is only {features.confidence:.0%} sure")
    return f"Rests on {'; '.join(parts)}."
