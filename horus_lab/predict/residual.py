"""What measurements say beside the first principles: the learned correction and the intervals.

At run time: numpy and onnxruntime over the shipped files. Without them, or with a file that is
not what was shipped, the first principles stand alone with wide intervals.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Struct

from horus_lab.predict.footprint import live_bytes
from horus_lab.predict.roofline import Estimate
from horus_lab.records import DeviceKind, DeviceSpec, GraphFeatures, OperationClass

Floats = npt.NDArray[np.float64]


class Corrections(Struct, frozen=True):
    """How far the centres move, and how far p10 and p90 lie from them, in the learned scale.

    Arrays of quantity x device, the quantities in the order of `QUANTITIES` (see
    `horus_lab.predict.history` for the scale).
    """

    shift: Floats
    low: Floats
    high: Floats


FALLBACK_CONTEXT_BYTES = 2**30
"""Without learning: what a process may hold beside the published context."""


def plain(count: int) -> Corrections:
    """No learning: the centre stays, and the intervals are as wide as the principles are rough."""

    def wide(*widths: float) -> Floats:
        return np.repeat(np.array(widths)[:, None], count, axis=1)

    return Corrections(
        np.zeros((len(QUANTITIES), count)), wide(0.5, 1.3, 1.3, 0.7), wide(0.7, 1.3, 1.3, 0.7)
    )


QUANTITIES = ("memory", "utilization", "memory_utilization", "step")
"""The order of the model's outputs: first every shift, then every width."""

INPUTS = (
    "dispatch share",
    "busy share",
    "compute share",
    "log intensity",
    "log footprint",
    "live share",
    "parameter share",
    "saved share",
    "input share",
    "low precision share",
    "convolution share",
    "product share",
    "recurrent share",
    "pointwise traffic share",
    "log samples",
    "log step",
)
"""What the model sees of a job on a device: shares and logarithms, so that sizes carry over."""

_POINTWISE = frozenset(
    {OperationClass.NORMALIZATION, OperationClass.ACTIVATION, OperationClass.ELEMENTWISE}
)
_PRODUCTS = frozenset({OperationClass.LINEAR, OperationClass.ATTENTION})


def inputs_of(
    features: GraphFeatures, principles: Estimate, footprints: Floats
) -> npt.NDArray[np.float32]:
    """The model's inputs, one row a device; every element is finite."""
    flops, moved, pointwise = 1.0, 1.0, 0.0
    convolution = products = recurrent = 0.0
    for row in features.operations:
        # Backward passes have the forward passes' shares; torch overcounts grouped ones.
        if row.phase == "forward":
            flops += row.flops
            if row.operation is OperationClass.CONVOLUTION:
                convolution += row.flops
            elif row.operation in _PRODUCTS:
                products += row.flops
            elif row.operation is OperationClass.RECURRENT:
                recurrent += row.flops
        moved += row.bytes_moved
        if row.operation in _POINTWISE:
            pointwise += row.bytes_moved
    total = sum(features.dtype_flops.values())
    low = sum(features.dtype_flops.get(name, 0.0) for name in ("float16", "bfloat16")) / max(
        total, 1.0
    )
    live = float(max(1, live_bytes(features)))
    job = np.array(
        [
            math.log(3.0 * flops / moved),
            0.0,
            0.0,
            features.parameter_bytes / live,
            features.saved_activation_bytes / live,
            features.input_bytes / live,
            low,
            convolution / flops,
            products / flops,
            recurrent / flops,
            pointwise / moved,
            math.log2(features.samples or 32),
        ]
    )
    rows = np.empty((len(footprints), len(INPUTS)))
    work = principles.compute + principles.traffic
    rows[:, 0] = principles.dispatch / principles.step
    rows[:, 1] = principles.utilization
    rows[:, 2] = principles.compute / np.maximum(work, 1e-12)
    rows[:, 3:15] = job
    rows[:, 4] = np.log(np.maximum(footprints, 1.0) / 2**30)
    rows[:, 5] = live / np.maximum(footprints, 1.0)
    rows[:, 15] = np.log(principles.step)
    return np.minimum(np.maximum(rows, -60.0), 60.0).astype(np.float32)


class Calibration(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How one quantity's model output becomes an interval, in the learned scale.

    Attributes:
        shift_low, shift_high: the shifts seen in training; none is let past them.
        width_low, width_high: the same of the predicted widths (the model gives their logarithm).
        below, above: how many widths p10 lies below the centre, and p90 above it; set so that
            p10-p90 held eight of ten runs, at least, of families that were left out.
    """

    shift_low: float
    shift_high: float
    width_low: float
    width_high: float
    below: float
    above: float


class Widths(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fixed distances of p10 and p90 from the centre, in the learned scale."""

    below: float
    above: float


class Manifest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`manifest.json`: what is shipped, and whether it is what was shipped.

    Attributes:
        sha256: hex digests of the other files, by name.
        context_bytes: what a process held beside the published context where memory was learned.
        device_models: the device models that training measured.
        rows: how many rows each set gave.
        quantities: the calibrations on GPUs, by quantity.
        cpu: the widths on CPU devices, by quantity.
    """

    version: int
    sha256: dict[str, str]
    context_bytes: int
    device_models: tuple[str, ...]
    rows: dict[str, int]
    quantities: dict[str, Calibration]
    cpu: dict[str, Widths]


MANIFEST = "manifest.json"
MODEL = "residual.onnx"
VERSION = 1


class Session(Protocol):
    """The part of onnxruntime's session that is used."""

    def run(self, outputs: Any, inputs: Mapping[str, Any]) -> Sequence[Any]:
        """Evaluate the model."""
        ...


class Residual:
    """The learned correction. Made by `load_residual`."""

    def __init__(self, manifest: Manifest, session: Session) -> None:
        self.manifest = manifest
        self._session = session
        calibrations = [manifest.quantities[name] for name in QUANTITIES]

        def column(values: list[float]) -> Floats:
            return np.array(values)[:, None]

        self._shift_low = column([one.shift_low for one in calibrations])
        self._shift_high = column([one.shift_high for one in calibrations])
        self._log_low = np.log(column([one.width_low for one in calibrations]))
        self._log_high = np.log(column([one.width_high for one in calibrations]))
        self._below = column([one.below for one in calibrations])
        self._above = column([one.above for one in calibrations])
        self._seen = frozenset(manifest.device_models)

    def has_seen(self, spec: DeviceSpec) -> bool:
        """Whether a training measurement was of this device model."""
        return spec.model in self._seen

    def correct(
        self,
        features: GraphFeatures,
        specs: Sequence[DeviceSpec],
        principles: Estimate,
        footprints: Floats,
    ) -> Corrections:
        """The correction of one job on each device."""
        rows = inputs_of(features, principles, footprints)
        found = self._session.run(None, {"inputs": rows})[0].T.astype(np.float64)
        count = len(QUANTITIES)
        shift = np.minimum(np.maximum(found[:count], self._shift_low), self._shift_high)
        logs = np.minimum(np.maximum(found[count:], self._log_low), self._log_high)
        width = np.exp(logs)
        low, high = width * self._below, width * self._above
        for index, spec in enumerate(specs):
            if spec.kind is DeviceKind.CPU:
                shift[:, index] = 0.0
                low[:, index] = [self.manifest.cpu[name].below for name in QUANTITIES]
                high[:, index] = [self.manifest.cpu[name].above for name in QUANTITIES]
        return Corrections(shift, low, high)


def load_residual(path: Path | None = None) -> tuple[Residual | None, tuple[str, ...]]:
    """Read the shipped files, or those of a folder.

    Returns:
        The correction, or `None` and a notice that says what is wrong with the files.
    """
    folder = path or Path(__file__).parent / "shipped"
    try:
        return _read(folder), ()
    except ImportError as error:
        why = f"onnxruntime cannot be imported ({error})"
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, ValueError, KeyError) as error:
        why = f"{type(error).__name__}: {error}"
    except Exception as error:  # noqa: BLE001 - onnxruntime's errors share no public base class
        why = f"onnxruntime cannot read it ({type(error).__name__})"
    return None, (
        f"The prediction model in {folder} is not usable: {why}. "
        "Predictions stand on first principles, with wide intervals.",
    )


def _read(folder: Path) -> Residual:
    manifest = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=Manifest)
    if manifest.version != VERSION:
        raise ValueError(f"its version is {manifest.version}, this program reads {VERSION}")
    missing = set(QUANTITIES) - set(manifest.quantities) | set(QUANTITIES) - set(manifest.cpu)
    if missing:
        raise ValueError(f"it says nothing of {', '.join(sorted(missing))}")
    model = (folder / MODEL).read_bytes()
    if hashlib.sha256(model).hexdigest() != manifest.sha256.get(MODEL):
        raise ValueError(f"{MODEL} is not the file that was shipped (its sha256 differs)")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    residual = Residual(manifest, session)
    return residual
