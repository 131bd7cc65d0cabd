"""Graph features of steps that are described, not captured: an MLP's layers, a network's totals.

The training sets name thousands of networks by a few numbers. These builders count what
`horus_lab.graph` would record for them; tests hold the MLP's to a real capture.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from msgspec import Struct

from horus_lab.records import (
    CaptureMethod,
    GraphFeatures,
    OperationClass,
    OperationStatistics,
    Phase,
)

_FLOAT = 4
_LABEL = 8
_ADAM_LAUNCHES = 10
_ADAM_FLOPS = 7
_ADAM_PASSES = 17
_ADAM_STATES = 2


class Layer(Struct, frozen=True):
    """One layer of an MLP.

    Attributes:
        kind: "linear", "batch_normalization", "dropout", or an activation's name.
        width: elements that it gives for one sample.
        parameters: its parameters; a linear layer has a bias.
    """

    kind: str
    width: int
    parameters: int


class _Count:
    """Totals of one class in one phase, while a step is built."""

    def __init__(self) -> None:
        self.launches = 0
        self.flops = 0.0
        self.bytes_moved = 0


class _Step:
    """Collects the operations of a step."""

    def __init__(self) -> None:
        self._totals: dict[tuple[OperationClass, Phase], _Count] = {}

    def add(
        self,
        operation: OperationClass,
        phase: Phase,
        launches: int,
        flops: float,
        bytes_moved: float,
    ) -> None:
        total = self._totals.setdefault((operation, phase), _Count())
        total.launches += launches
        total.flops += flops
        total.bytes_moved += round(bytes_moved)

    def operations(self) -> tuple[OperationStatistics, ...]:
        return tuple(
            OperationStatistics(
                operation=operation,
                phase=phase,
                launches=count.launches,
                flops=count.flops,
                bytes_moved=count.bytes_moved,
            )
            for (operation, phase), count in sorted(self._totals.items())
        )


# Activations whose gradient needs their output only: it is the next layer's input anyway.
_FROM_OUTPUT = frozenset({"ReLU", "Tanh", "Sigmoid", "Softmax"})


def mlp_step(layers: Sequence[Layer], inputs: int, batch: int) -> GraphFeatures:
    """One Adam step of an MLP under cross entropy, in float32.

    Args:
        inputs: width of a sample.
        batch: samples in a step.

    Raises:
        ValueError: no layers, or sizes that are not positive.
    """
    if not layers or inputs < 1 or batch < 1:
        raise ValueError("an MLP needs layers, inputs and a batch")
    step = _Step()
    width, tensors, first = inputs, 0, True
    saved: list[float] = []
    widths: list[int] = []
    before: Layer | None = None
    for layer in layers:
        _layer(step, layer, width, batch, first=first)
        saved.append(_saved(layer, before, width, batch))
        before = layer
        widths.append(width)
        tensors += 2 if layer.parameters > 1 else int(layer.parameters == 1)
        first = first and layer.kind != "linear"
        width = layer.width
    outputs = float(batch * width)
    loss, forward, backward = OperationClass.LOSS, Phase.FORWARD, Phase.BACKWARD
    step.add(loss, forward, 2, 2 * outputs, 12 * outputs + _LABEL * batch + 8)
    step.add(loss, backward, 2, 2 * outputs, 20 * outputs + _LABEL * batch + 8)
    step.add(OperationClass.COPY, backward, 1, 0.0, 8)
    parameters = sum(layer.parameters for layer in layers)
    size = _FLOAT * parameters
    step.add(
        OperationClass.OPTIMIZER,
        Phase.OPTIMIZER,
        _ADAM_LAUNCHES * tensors,
        _ADAM_FLOPS * parameters + tensors,
        _ADAM_PASSES * size + 4 * tensors,
    )
    kept = [*saved, _FLOAT * outputs + 4]
    batch_bytes = batch * (_FLOAT * inputs + _LABEL)
    peak = size + batch_bytes + _peak_backward(layers, widths, saved, batch)
    return _features(
        step,
        name="MLP",
        samples=batch,
        parameters=parameters,
        state_bytes=_ADAM_STATES * size,
        input_bytes=batch_bytes,
        saved_bytes=round(sum(kept)),
        peak_bytes=round(max(peak, (2 + _ADAM_STATES) * size)),
    )


def _layer(step: _Step, layer: Layer, inputs: int, batch: int, *, first: bool) -> None:
    forward, backward = Phase.FORWARD, Phase.BACKWARD
    elements = float(batch * layer.width)
    moved = _FLOAT * elements
    if layer.kind == "linear":
        weights = float(inputs * layer.width)
        flops = 2.0 * batch * weights
        traffic = _FLOAT * (batch * inputs + weights + elements)
        linear = OperationClass.LINEAR
        step.add(linear, forward, 1, flops, traffic + _FLOAT * layer.width)
        products = 1 if first else 2
        step.add(linear, backward, products, products * flops, products * traffic)
        step.add(OperationClass.REDUCTION, backward, 1, elements, moved + _FLOAT * layer.width)
    elif layer.kind == "batch_normalization":
        norm = OperationClass.NORMALIZATION
        step.add(norm, forward, 1, 5 * elements, 2 * moved + 6 * _FLOAT * layer.width)
        step.add(norm, backward, 1, 8 * elements, 3 * moved + 7 * _FLOAT * layer.width)
        step.add(OperationClass.ELEMENTWISE, forward, 1, 1.0, 8)
    elif layer.kind == "dropout":
        step.add(OperationClass.OTHER, forward, 1, elements, moved)
        step.add(OperationClass.ELEMENTWISE, forward, 2, 2 * elements, 4 * moved)
        step.add(OperationClass.ELEMENTWISE, backward, 1, elements, 3 * moved)
    elif layer.kind != "Identity":
        activation = OperationClass.ACTIVATION
        step.add(activation, forward, 1, elements, 2 * moved)
        step.add(activation, backward, 1, elements, 3 * moved)


def _saved(layer: Layer, before: Layer | None, inputs: int, batch: int) -> float:
    """Bytes that a layer keeps for its backward pass; a tensor kept by two counts at the first."""
    output = float(_FLOAT * batch * layer.width)
    if layer.kind == "linear":
        kept_already = before is None or before.kind in _FROM_OUTPUT
        return 0.0 if kept_already else float(_FLOAT * batch * inputs)
    if layer.kind == "batch_normalization":
        return float(_FLOAT * (batch * inputs + 2 * layer.width))
    # ReLU and its like keep the output, the others the input, dropout its mask.
    return 0.0 if layer.kind == "Identity" else output


def _peak_backward(
    layers: Sequence[Layer], widths: Sequence[int], saved: Sequence[float], batch: int
) -> float:
    """Going back layer by layer: what is still kept, two gradients, the parameters' gradients."""
    live = sum(saved)
    most, gradients = live, 0.0
    for layer, inputs, kept in reversed(list(zip(layers, widths, saved, strict=True))):
        passing = float(_FLOAT * batch * (layer.width + inputs))
        most = max(most, live + gradients + passing)
        live -= kept
        gradients += _FLOAT * layer.parameters
    return most


# A network known by its totals: what passes over each activation cost in captured networks of
# its kind (benchmarks/data/captured.jsonl), forward and backward.
_NORM_PASSES = {Phase.FORWARD: 2.0, Phase.BACKWARD: 3.0}
_ACTIVATION_PASSES = {Phase.FORWARD: 2.0, Phase.BACKWARD: 3.0}
_CONVOLUTION_PASSES = {Phase.FORWARD: 2.5, Phase.BACKWARD: 5.5}


class Totals(Struct, frozen=True, kw_only=True):
    """A network as benchmark tables describe it.

    Attributes:
        multiply_adds: of one sample's forward pass.
        activations: elements that convolutions and matrix products give for one sample.
        attention: whether matrix products dominate, not convolutions.
        live_bytes: the most bytes alive at once beside the parameters, where the table says.
    """

    name: str
    multiply_adds: float
    activations: float
    parameters: float
    image: int
    attention: bool
    live_bytes: float | None = None


def totals_step(
    totals: Totals, batch: int, precision: str = "32-true", *, states: int = 1
) -> GraphFeatures:
    """One step of an image network of which only the totals are known.

    Args:
        states: what the optimizer keeps for each parameter: 1 for momentum, 2 for Adam.

    Raises:
        ValueError: sizes that are not positive.
    """
    if totals.multiply_adds <= 0 or totals.activations <= 0 or batch < 1:
        raise ValueError("a network's totals must be positive")
    half = precision in ("16-mixed", "bf16-mixed")
    element = 2 if half else _FLOAT
    step = _Step()
    products = OperationClass.LINEAR if totals.attention else OperationClass.CONVOLUTION
    moved = element * totals.activations * batch
    for phase, factor in ((Phase.FORWARD, 2.0), (Phase.BACKWARD, 4.0)):
        flops = factor * totals.multiply_adds * batch
        weights = factor * element * totals.parameters
        step.add(products, phase, 50, flops, _CONVOLUTION_PASSES[phase] * moved + weights)
        elements = totals.activations * batch
        step.add(OperationClass.NORMALIZATION, phase, 50, 5 * elements, _NORM_PASSES[phase] * moved)
        step.add(OperationClass.ACTIVATION, phase, 50, elements, _ACTIVATION_PASSES[phase] * moved)
    size = round(_FLOAT * totals.parameters)
    step.add(
        OperationClass.OPTIMIZER,
        Phase.OPTIMIZER,
        30,
        4 * totals.parameters,
        (2 * states + 3) * size,
    )
    input_bytes = batch * (3 * totals.image**2 * _FLOAT + _LABEL)
    saved = 2 * moved
    live = totals.live_bytes if totals.live_bytes is not None else saved + input_bytes
    dtype = {"16-mixed": "float16", "bf16-mixed": "bfloat16"}.get(precision, "float32")
    return _features(
        step,
        name=totals.name[:200],
        samples=batch,
        parameters=round(totals.parameters),
        state_bytes=states * size,
        input_bytes=input_bytes,
        saved_bytes=round(live if totals.live_bytes is not None else saved),
        peak_bytes=round(live + size),
        precision=precision,
        dtype=dtype,
        confidence=0.7,
        method=CaptureMethod.MODULE_WALK,
    )


def _features(
    step: _Step,
    *,
    name: str,
    samples: int,
    parameters: int,
    state_bytes: int,
    input_bytes: int,
    saved_bytes: int,
    peak_bytes: int,
    precision: str = "32-true",
    dtype: str = "float32",
    confidence: float = 0.95,
    method: CaptureMethod = CaptureMethod.FAKE_STEP,
) -> GraphFeatures:
    rows = step.operations()
    flops = sum(row.flops for row in rows)
    size = _FLOAT * parameters
    text = f"{name} {samples} {precision} {parameters} {rows}"
    return GraphFeatures(
        method=method,
        confidence=confidence,
        graph_hash=hashlib.sha256(text.encode()).hexdigest()[:32],
        module_name=name,
        samples=samples,
        operations=rows,
        flops=flops,
        bytes_moved=sum(row.bytes_moved for row in rows),
        launches=sum(row.launches for row in rows),
        dtype_flops={dtype: flops},
        parameters=parameters,
        parameter_bytes=size,
        gradient_bytes=size,
        optimizer_state_bytes=state_bytes,
        buffer_bytes=0,
        input_bytes=input_bytes,
        saved_activation_bytes=saved_bytes,
        peak_live_bytes=peak_bytes,
        precision=precision,
    )
