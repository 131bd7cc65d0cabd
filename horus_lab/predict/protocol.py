"""The one question that prediction answers, and what teaches it."""

from __future__ import annotations

from typing import Protocol

from horus_lab.records import DeclaredNeeds, DeviceSpec, GraphFeatures, Observation, Prediction


class Predictor(Protocol):
    """Graph features (or declared needs) x a device's specification -> a prediction."""

    def predict(
        self,
        features: GraphFeatures | None,
        declared: DeclaredNeeds | None,
        spec: DeviceSpec,
        *,
        held_bytes: int | None = None,
    ) -> Prediction:
        """What the job would use of a device of this specification, alone on it.

        `held_bytes` is what the job's own process holds there already: on a CPU it is the
        process's baseline, on a GPU it counts as far as it exceeds the context. Features and
        declared needs together: what is declared wins, field by field, and the basis is
        `declared`. Neither: basis `unknown`, every interval `None`. Never raises on records
        that were validated.
        """
        ...

    def learn(self, observation: Observation) -> None:
        """Take in one ended run. Later predictions for the same graph and device model use it."""
        ...
