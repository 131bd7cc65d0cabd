"""Predictions by name instead of by model."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from horus_lab.records import (
    Basis,
    DeclaredNeeds,
    DeviceSpec,
    GraphFeatures,
    Interval,
    Observation,
    Prediction,
)


class ScriptedPredictor:
    """Says what the script says.

    A request with features gets the script's entry for their module's name, else for their graph's
    hash; a declared one gets what it declares, exactly. Everything else is unknown.

    Args:
        script: module name or graph hash -> the prediction, the same for every device model.

    Attributes:
        learned: the observations that it was taught, in order.
        asked: how many predictions it was asked for.
    """

    def __init__(self, script: Mapping[str, Prediction] | None = None) -> None:
        self.script = dict(script or {})
        self.learned: list[Observation] = []
        self.asked = 0

    def predict(
        self,
        features: GraphFeatures | None,
        declared: DeclaredNeeds | None,
        spec: DeviceSpec,
        *,
        held_bytes: int | None = None,
    ) -> Prediction:
        """The scripted prediction, for this device model."""
        del held_bytes
        self.asked += 1
        if features is not None:
            for key in (features.module_name, features.graph_hash):
                if key in self.script:
                    return replace(self.script[key], device_model=spec.model)
        if declared is None:
            return Prediction(
                device_model=spec.model, basis=Basis.UNKNOWN, explanation="not in the script"
            )
        return Prediction(
            device_model=spec.model,
            basis=Basis.DECLARED,
            utilization=_exactly(declared.utilization),
            memory_utilization=_exactly(declared.memory_utilization),
            memory_startup_bytes=_exactly(declared.memory_bytes),
            memory_bytes=_exactly(declared.memory_bytes),
            step_seconds=_exactly(declared.step_seconds),
            explanation="declared",
        )

    def learn(self, observation: Observation) -> None:
        """Keep the observation in `learned`; predictions stay as scripted."""
        self.learned.append(observation)


def _exactly(value: float | None) -> Interval | None:
    return None if value is None else Interval(float(value), float(value), float(value))
