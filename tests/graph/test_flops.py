"""Costs against hand counts, and against torch's own counter on real tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from horus_lab.graph import capture
from horus_lab.records import GraphFeatures, OperationClass, Phase


def cost(features: GraphFeatures, kind: OperationClass, phase: Phase) -> tuple[int, float]:
    for one in features.operations:
        if one.operation is kind and one.phase is phase:
            return one.launches, one.flops
    return 0, 0.0


class Apply(nn.Module):
    """A parameter, so that there is something to train, and one function."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


def test_a_linear_layer_multiplies_and_adds_forward_and_twice_backward() -> None:
    features = capture(nn.Linear(4, 8, bias=False), torch.zeros(3, 4), optimizer=torch.optim.SGD)
    # 3 x 4 x 8 multiply-adds are 192 FLOPs; backward needs the weight's gradient only, since the
    # input needs none.
    assert cost(features, OperationClass.LINEAR, Phase.FORWARD) == (1, 192.0)
    assert cost(features, OperationClass.LINEAR, Phase.BACKWARD) == (1, 192.0)
    stacked = nn.Sequential(nn.Linear(4, 8, bias=False), nn.Linear(8, 2, bias=False))
    features = capture(stacked, torch.zeros(3, 4), optimizer=torch.optim.SGD)
    # Second layer: 3 x 8 x 2 x 2 = 96, and its input needs a gradient too: 192 + 96 + 96.
    assert cost(features, OperationClass.LINEAR, Phase.FORWARD) == (2, 288.0)
    assert cost(features, OperationClass.LINEAR, Phase.BACKWARD) == (3, 384.0)


def test_a_convolution_costs_its_window_for_each_output_element() -> None:
    layer = nn.Conv2d(3, 5, kernel_size=3, padding=1, bias=False)
    features = capture(layer, torch.zeros(2, 3, 6, 6), optimizer=torch.optim.SGD)
    # 2 x 5 x 36 outputs, each 3 x 9 multiply-adds.
    assert cost(features, OperationClass.CONVOLUTION, Phase.FORWARD) == (1, 2 * 5 * 36 * 27 * 2.0)


@pytest.mark.parametrize("groups", [1, 4, 8])
def test_a_grouped_convolutions_backward_pass_costs_its_forward_pass_for_each_gradient(
    groups: int,
) -> None:
    layers = nn.Sequential(nn.Conv2d(8, 8, 1, bias=False), nn.Conv2d(8, 8, 3, groups=groups))
    features = capture(layers, torch.zeros(2, 8, 9, 9), optimizer=torch.optim.SGD)
    first = 2 * 2 * 8 * 81 * 8
    second = 2 * 2 * 8 * 49 * (8 // groups) * 9
    assert cost(features, OperationClass.CONVOLUTION, Phase.FORWARD) == (2, first + second)
    # The first layer's input needs no gradient.
    assert cost(features, OperationClass.CONVOLUTION, Phase.BACKWARD) == (2, first + 2 * second)


def test_attention_costs_its_two_products() -> None:
    def attend(x: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(x, x, x)

    module = Apply(lambda x: attend(x * module.scale))
    features = capture(module, torch.zeros(2, 3, 5, 4), optimizer=torch.optim.SGD)
    # Scores and values: 2 x 3 x 5 x 5 x 4 multiply-adds each.
    launches, flops = cost(features, OperationClass.ATTENTION, Phase.FORWARD)
    assert (launches, flops) == (1, 2 * 2 * 600.0)


def test_a_recurrent_layer_works_step_by_step() -> None:
    features = capture(nn.LSTM(4, 6, bias=False), torch.zeros(5, 3, 4), optimizer=torch.optim.SGD)
    # Five steps of three samples through 24 x 4 and 24 x 6 weights.
    _, flops = cost(features, OperationClass.RECURRENT, Phase.FORWARD)
    assert flops == 5 * 3 * 2 * (24 * 4 + 24 * 6)


@pytest.mark.parametrize(
    ("function", "kind", "flops"),
    [
        (torch.relu, OperationClass.ACTIVATION, 24.0),
        (lambda x: x + 1, OperationClass.ELEMENTWISE, 24.0),
        # The loss sums the scalar output, and then the stack of such sums: one more each.
        (lambda x: x.sum(), OperationClass.REDUCTION, 24.0 + 2),
        (lambda x: nn.functional.max_pool1d(x, 2), OperationClass.POOLING, 24.0),
        (lambda x: nn.functional.layer_norm(x, (8,)), OperationClass.NORMALIZATION, 5 * 24.0),
        (lambda x: nn.functional.mse_loss(x, x.detach() + 0), OperationClass.LOSS, 24.0),
        (lambda x: torch.cat([x, x]), OperationClass.COPY, 0.0),
    ],
)
def test_each_class_counts_what_its_rule_says(
    function: Any, kind: OperationClass, flops: float
) -> None:
    module = Apply(function)
    features = capture(module, torch.zeros(3, 8), optimizer=torch.optim.SGD)
    assert cost(features, kind, Phase.FORWARD)[1] == flops


def test_an_embedding_looks_up_without_arithmetic() -> None:
    features = capture(
        nn.Embedding(10, 4), torch.zeros(6, dtype=torch.int64), optimizer=torch.optim.SGD
    )
    assert cost(features, OperationClass.EMBEDDING, Phase.FORWARD) == (1, 0.0)


def test_the_optimizers_work_is_its_own_class() -> None:
    features = capture(nn.Linear(4, 8, bias=False), torch.zeros(3, 4), optimizer=torch.optim.SGD)
    # p.add_(grad, alpha=-lr): one operation an element.
    assert cost(features, OperationClass.OPTIMIZER, Phase.OPTIMIZER) == (1, 32.0)


def models() -> list[tuple[str, nn.Module, torch.Tensor]]:
    torch.manual_seed(0)
    block = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
    )
    encoder = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
    return [
        (
            "perceptron",
            nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)),
            torch.randn(5, 8),
        ),
        ("convolutions", nn.Sequential(block, nn.Linear(8 * 16, 3)), torch.randn(2, 3, 8, 8)),
        ("strided", nn.Conv2d(8, 16, 3, stride=2), torch.randn(2, 8, 9, 9)),
        ("dilated", nn.Conv2d(8, 8, 3, dilation=2), torch.randn(2, 8, 9, 9)),
        ("transposed", nn.ConvTranspose2d(4, 6, 4, 2, 1), torch.randn(2, 4, 5, 5)),
        ("one dimension", nn.Conv1d(4, 6, 5), torch.randn(2, 4, 20)),
        ("three dimensions", nn.Conv3d(2, 4, 3), torch.randn(1, 2, 6, 6, 6)),
        ("bilinear", nn.Bilinear(4, 4, 3), torch.randn(5, 4)),
        ("encoder layer", encoder, torch.randn(2, 7, 16)),
        ("cell", nn.LSTMCell(6, 8), torch.randn(3, 6)),
    ]


@pytest.mark.parametrize(("module", "x"), [pytest.param(m, x, id=name) for name, m, x in models()])
def test_products_count_as_torchs_own_counter_counts_them_on_real_tensors(
    module: nn.Module, x: torch.Tensor
) -> None:
    batch: Any = (x, x) if isinstance(module, nn.Bilinear) else x
    features = capture(module, batch, optimizer=torch.optim.SGD)
    counted = sum(
        one.flops
        for one in features.operations
        if one.operation
        in (OperationClass.CONVOLUTION, OperationClass.LINEAR, OperationClass.ATTENTION)
    )
    with FlopCounterMode(display=False) as counter:
        output = module(*batch) if isinstance(batch, tuple) else module(batch)
        first = output[0] if isinstance(output, tuple) else output
        second = output[1] if isinstance(output, tuple) else torch.zeros(())
        (first.sum() + second.sum()).backward()
    truth = counter.get_total_flops()
    # torch's counter has no formula for the CPU's fused attention; ours adds its products.
    attention = sum(
        one.flops for one in features.operations if one.operation is OperationClass.ATTENTION
    )
    assert counted - attention == truth
