"""Graph features and a device's specification -> a prediction with intervals."""

from __future__ import annotations

from horus_lab.predict.cpu_spec import measure_cpu
from horus_lab.predict.protocol import Predictor
from horus_lab.predict.shipped import ShippedPredictor
from horus_lab.predict.specs import SPECS, spec_for

__all__ = ["SPECS", "Predictor", "ShippedPredictor", "measure_cpu", "spec_for"]
