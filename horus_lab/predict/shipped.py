"""The predictor that the broker uses: first principles, a learned residual, then history."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from horus_lab.predict.footprint import footprint, held_beyond_context
from horus_lab.predict.history import (
    RUN_SPREAD,
    GraphHistory,
    Histories,
    Quantity,
    Spread,
    from_scale,
    to_scale,
)
from horus_lab.predict.residual import Correction, Corrections, Residual, load_residual, plain
from horus_lab.predict.roofline import Estimate, capability_of, estimate, work_of
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

_Z90 = 1.2815515655446004
_SHORTEST_STEP = 1e-7
_DECLARED_WIDENING = 1.02
_CONFIDENCE_WIDENING = 1.5
_UNSEEN_WIDENING = 1.5
_ASSUMED_WIDENING = 2.5


class _Scaled(Struct, frozen=True):
    """One quantity on one device in its learned scale: the centre, and the way to p10 and p90."""

    centre: float
    low: float
    high: float

    def spread(self) -> Spread:
        return Spread(self.centre, (self.low + self.high) / (2.0 * _Z90))


class ShippedPredictor:
    """Implements `horus_lab.predict.protocol.Predictor`.

    Attributes:
        notices: what users should know of the loaded files (empty when all is well).
    """

    def __init__(self, residual: Residual | None = None, notices: tuple[str, ...] = ()) -> None:
        self._residual = residual
        self._histories = Histories()
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
        principles = estimate(work_of(features), capability_of(specs))
        context = self._residual.manifest.context_bytes if self._residual is not None else 0
        footprints = np.array(
            [footprint(features, spec, one, context) for spec, one in zip(specs, held, strict=True)]
        )
        corrections = (
            self._residual.correct(features, specs, principles, footprints)
            if self._residual is not None
            else plain(len(specs))
        )
        return tuple(
            self._one(features, spec, one, _on_device(index, principles, footprints, corrections))
            for index, (spec, one) in enumerate(zip(specs, held, strict=True))
        )

    def _one(
        self,
        features: GraphFeatures,
        spec: DeviceSpec,
        held: int | None,
        scaled: dict[str, _Scaled],
    ) -> Prediction:
        seen = self._residual is not None and self._residual.has_seen(spec)
        widening = _widening(features, spec, seen)
        past = self._histories.of(features.graph_hash, spec.model)
        least, extra = _floor(held), held_beyond_context(spec, held)
        memory = _quantity(scaled["memory"], Quantity.MEMORY, widening, past)
        return Prediction(
            device_model=spec.model,
            basis=Basis.HISTORY if past is not None else Basis.MODEL,
            utilization=_interval(
                _quantity(scaled["utilization"], Quantity.UTILIZATION, widening, past),
                Quantity.UTILIZATION,
            ),
            memory_utilization=_interval(
                _widened(scaled["memory_utilization"], widening), Quantity.UTILIZATION
            ),
            memory_startup_bytes=_memory(memory, least, extra),
            memory_bytes=_memory(memory, least, extra),
            step_seconds=_interval(
                _quantity(scaled["step"], Quantity.STEP, widening, past), Quantity.STEP
            ),
            explanation=_explanation(features, spec, seen, self._residual is not None, past),
        )

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


def _on_device(
    index: int,
    principles: Estimate,
    footprints: npt.NDArray[np.float64],
    corrections: Corrections,
) -> dict[str, _Scaled]:
    def scaled(quantity: Quantity, value: float, correction: Correction) -> _Scaled:
        return _Scaled(
            to_scale(quantity, value) + float(correction.shift[index]),
            float(correction.low[index]),
            float(correction.high[index]),
        )

    busy = float(principles.utilization[index])
    moving = float(principles.memory_utilization[index])
    return {
        "memory": scaled(Quantity.MEMORY, float(footprints[index]), corrections.memory),
        "utilization": scaled(Quantity.UTILIZATION, busy, corrections.utilization),
        "memory_utilization": scaled(Quantity.UTILIZATION, moving, corrections.memory_utilization),
        "step": scaled(Quantity.STEP, float(principles.step[index]), corrections.step),
    }


def _widening(features: GraphFeatures, spec: DeviceSpec, seen: bool) -> float:
    """How much wider than calibrated: an unsure capture, a device model never measured."""
    widening = 1.0 + _CONFIDENCE_WIDENING * (1.0 - features.confidence)
    if spec.source == "assumed":
        return widening * _ASSUMED_WIDENING
    if spec.kind is not DeviceKind.CPU and not seen:
        return widening * _UNSEEN_WIDENING
    return widening


def _widened(scaled: _Scaled, widening: float) -> _Scaled:
    return _Scaled(scaled.centre, scaled.low * widening, scaled.high * widening)


def _quantity(
    scaled: _Scaled, quantity: Quantity, widening: float, past: GraphHistory | None
) -> _Scaled:
    wide = _widened(scaled, widening)
    if past is None:
        return wide
    sums = past.of(quantity)
    if sums.runs == 0:
        return wide
    after = sums.posterior(wide.spread(), RUN_SPREAD[quantity])
    way = after.deviation * _Z90
    return _Scaled(after.centre, way, way)


def _interval(scaled: _Scaled, quantity: Quantity) -> Interval:
    low, high = (0.0, 1.0) if quantity is Quantity.UTILIZATION else (_SHORTEST_STEP, MAX_SECONDS)
    p10, p50, p90 = (
        min(high, max(low, from_scale(quantity, value)))
        for value in (scaled.centre - scaled.low, scaled.centre, scaled.centre + scaled.high)
    )
    return Interval(p10, p50, p90)


def _memory(scaled: _Scaled, least: float, extra: float) -> Interval:
    p10, p50, p90 = (
        min(float(MAX_BYTES), max(least, from_scale(Quantity.MEMORY, value) + extra))
        for value in (scaled.centre - scaled.low, scaled.centre, scaled.centre + scaled.high)
    )
    return Interval(p10, p50, p90)


def _floor(held: int | None) -> float:
    """A process cannot use less than it holds already."""
    return float(min(MAX_BYTES, held or 0))


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
    if features.confidence < 0.95:
        parts.append(f"wider, because the capture is only {features.confidence:.0%} sure")
    return f"Rests on {'; '.join(parts)}."
