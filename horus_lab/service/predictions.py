"""Predictions of a job for every device, each made once for a device model and remembered."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from horus_lab.predict.protocol import Predictor
from horus_lab.records import (
    Basis,
    DeclaredNeeds,
    Device,
    DeviceReading,
    GraphFeatures,
    Observation,
    Prediction,
    encode,
)

_logger = logging.getLogger(__name__)


class PredictionDesk:
    """Asks the predictor once for equal questions. Used by one thread.

    Attributes:
        notice: why the predictor failed last, for people; empty while it works.
    """

    def __init__(self, predictor: Predictor, *, keep: int = 4096) -> None:
        self._predictor = predictor
        self._keep = keep
        self._known: OrderedDict[bytes, Prediction] = OrderedDict()
        self.notice = ""

    def predict(
        self,
        features: GraphFeatures | None,
        declared: DeclaredNeeds | None,
        devices: Iterable[Device],
        held_bytes: Mapping[str, int],
    ) -> dict[str, Prediction]:
        """One prediction a device, by UUID.

        Args:
            held_bytes: what the job's own process holds already, by device UUID; absent where
                that is unknown.
        """
        return {
            device.uuid: self._one(features, declared, device, held_bytes.get(device.uuid))
            for device in devices
        }

    def learn(self, observation: Observation) -> None:
        """Teach the predictor; what was remembered may be out of date now."""
        try:
            self._predictor.learn(observation)
        except Exception as error:
            # What one run taught is worth less than a broker that goes on.
            _logger.exception("Horus could not learn from a run")
            self.notice = f"A run could not be learned from ({type(error).__name__}: {error})."
        self._known.clear()

    def _one(
        self,
        features: GraphFeatures | None,
        declared: DeclaredNeeds | None,
        device: Device,
        held: int | None,
    ) -> Prediction:
        # The whole question is the key: a graph's hash alone would trust what a client says.
        asked = replace(features, capture_seconds=0.0) if features is not None else None
        key = encode((asked, declared, device.spec, held))
        known = self._known.get(key)
        if known is not None:
            self._known.move_to_end(key)
            return known
        try:
            made = self._predictor.predict(features, declared, device.spec, held_bytes=held)
        except Exception as error:
            _logger.exception("Horus could not predict a job")
            self.notice = f"The predictor failed ({type(error).__name__}: {error})."
            return Prediction(
                device_model=device.spec.model,
                basis=Basis.UNKNOWN,
                explanation="The predictor failed; the server's log has the details.",
            )
        self._known[key] = made
        if len(self._known) > self._keep:
            self._known.popitem(last=False)
        return made


def held_bytes(readings: Iterable[DeviceReading], pids: frozenset[int]) -> dict[str, int]:
    """What these processes hold on each device; a device that does not say is absent."""
    held: dict[str, int] = {}
    for reading in readings:
        mine = [each.memory_bytes for each in reading.processes if each.pid in pids]
        known = [count for count in mine if count is not None]
        if mine and len(known) == len(mine):
            held[reading.uuid] = sum(known)
    return held
