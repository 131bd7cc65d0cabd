"""Bytes: by hand on small modules, and against a real step whose storages are all followed."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from horus_lab.graph import capture
from horus_lab.graph.operations import tensors


def test_parameters_gradients_state_buffers_and_batch_by_hand() -> None:
    module = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))
    features = capture(module, torch.zeros(3, 4), optimizer=torch.optim.Adam)
    # Linear 4x8 + 8, batch norm 8 + 8: 56 parameters of 4 bytes.
    assert features.parameters == 56
    assert features.parameter_bytes == 224
    assert features.gradient_bytes == 224
    # Running mean and variance (8 floats each) and a 64-bit counter.
    assert features.buffer_bytes == 2 * 32 + 8
    assert features.input_bytes == 48
    # Two moments for each parameter, and a 32-bit step counter for each of the four tensors.
    assert features.optimizer_state_bytes == 2 * 224 + 4 * 4


@pytest.mark.parametrize(
    ("optimizer", "state"),
    [
        (torch.optim.SGD, 0),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), 160),
        (torch.optim.AdamW, 2 * 160 + 2 * 4),
        (lambda p: torch.optim.Adam(p, amsgrad=True), 3 * 160 + 2 * 4),
    ],
)
def test_the_optimizers_state_is_exact(optimizer: Any, state: int) -> None:
    # 4x8 weights and 8 biases: 40 parameters, 160 bytes.
    features = capture(nn.Linear(4, 8), torch.zeros(3, 4), optimizer=optimizer)
    assert features.optimizer_state_bytes == state


def test_an_existing_optimizer_is_taken_over_with_its_settings() -> None:
    module = nn.Linear(4, 8)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    features = capture(module, torch.zeros(3, 4), optimizer=optimizer)
    assert features.optimizer_state_bytes == 160
    assert optimizer.state == {}


def test_an_existing_optimizer_keeps_state_for_its_own_parameters_alone() -> None:
    module = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(
        [{"params": [module[0].weight], "momentum": 0.9}, {"params": [module[1].weight]}], lr=0.1
    )
    features = capture(module, torch.zeros(3, 4), optimizer=optimizer)
    # The first group has momentum: 4x8 floats. The second has none; the biases are in no group.
    assert features.optimizer_state_bytes == 4 * 8 * 4


def test_a_loss_with_parameters_is_trained_with_the_model() -> None:
    class Proxies(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.proxies = nn.Parameter(torch.zeros(5, 8))

        def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            return nn.functional.cross_entropy(output @ self.proxies.t(), target)

    loss = Proxies()
    features = capture(
        nn.Linear(4, 8), (torch.zeros(3, 4), torch.zeros(3).long()), loss=loss,
        optimizer=lambda p: torch.optim.SGD(p, lr=0.1),
    )  # fmt: skip
    # 4x8 + 8 of the layer and 5x8 of the loss.
    assert features.parameters == 40 + 40
    assert features.gradient_bytes == 80 * 4
    assert features.module_name == "Linear"
    assert loss.proxies.grad is None


def test_a_batchs_own_values_give_the_sizes_that_they_will_have() -> None:
    def step(module: nn.Module, batch: Any) -> torch.Tensor:
        x, y = batch
        longest = int((y + 1).max())
        return module(x[y > 0]).sum() + module(x.new_zeros(longest, 4)).sum()

    y = torch.tensor([0, 3, 1, 0, 0, 6])
    features = capture(nn.Linear(4, 2, bias=False), (torch.zeros(6, 4), y), step=step,
                       optimizer=torch.optim.SGD)  # fmt: skip
    # Three labels are above zero; the greatest and one is seven.
    products = [o for o in features.operations if o.operation.value == "linear"]
    assert products[0].flops == 2 * (3 + 7) * 4 * 2
    assert features.confidence == 0.95


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("batch_first", [True, False])
def test_packed_sequences_cost_their_lengths_and_come_back_in_shape(
    kind: Any, batch_first: bool
) -> None:
    pack = nn.utils.rnn.pack_padded_sequence
    unpack = nn.utils.rnn.pad_packed_sequence

    def step(module: Any, batch: Any) -> torch.Tensor:
        x, lengths = batch
        packed = pack(x, lengths, batch_first=batch_first, enforce_sorted=False)
        output, state = module(packed)
        last = state[0] if isinstance(state, tuple) else state
        assert last.shape == (1, 3, 6)
        padded, _ = unpack(output, batch_first=batch_first)
        assert padded.shape == ((3, 5, 6) if batch_first else (5, 3, 6))
        return padded.sum() + last.sum()

    shape = (3, 5, 4) if batch_first else (5, 3, 4)
    batch = (torch.zeros(shape), torch.tensor([5, 2, 3]))
    features = capture(
        kind(4, 6, batch_first=batch_first), batch, step=step, optimizer=torch.optim.SGD
    )
    assert features.method.value == "fake_step"
    # Ten rows of 4 and 6 values through one weight matrix for each gate.
    gates = {nn.LSTM: 4, nn.GRU: 3, nn.RNN: 1}[kind]
    forward = sum(
        one.flops
        for one in features.operations
        if one.phase.value == "forward" and one.operation.value in ("recurrent", "linear")
    )
    assert forward == pytest.approx(2 * 10 * gates * 6 * (4 + 6), rel=0.02)


def test_frozen_layers_have_neither_gradients_nor_state() -> None:
    module = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    module[0].requires_grad_(requires_grad=False)
    features = capture(module, torch.zeros(3, 4), optimizer=torch.optim.Adam)
    assert features.parameters == 58
    # 8x2 + 2 trained parameters.
    assert features.gradient_bytes == 72


def test_tied_weights_count_once() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(10, 4)
            self.head = nn.Linear(4, 10, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.embed(x))

    features = capture(Tied(), torch.zeros(3, dtype=torch.int64), optimizer=torch.optim.SGD)
    assert features.parameters == 40
    assert features.gradient_bytes == 160


def test_saved_activations_are_what_backward_needs_and_no_view_of_it_counts_again() -> None:
    module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    features = capture(module, torch.zeros(3, 4), optimizer=torch.optim.SGD)
    # The ReLU's output (3x8 floats) serves ReLU and the second layer; weights and batch are not
    # activations.
    assert features.saved_activation_bytes == 96


class Follower(TorchDispatchMode):
    """An independent reference: follows every storage of a real step."""

    def __init__(self) -> None:
        super().__init__()
        self.live = 0
        self.peak = 0
        self.seen: set[int] = set()

    def follow(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self.seen:
            return
        self.seen.add(key)
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._gone, key, size)

    def _gone(self, key: int, size: int) -> None:
        self.seen.discard(key)
        self.live -= size

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: Any = (), named: Any = None
    ) -> Any:
        result = function(*arguments, **(named or {}))
        for tensor in tensors(result):
            self.follow(tensor)
        return result


class Outputs(nn.Module):
    """A recurrent layer without its last states."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)[0]


def zoo() -> list[Any]:
    torch.manual_seed(0)
    conv = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True),
        2,
        enable_nested_tensor=False,
    )
    return [
        pytest.param(
            nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)),
            torch.randn(128, 64),
            id="perceptron",
        ),
        pytest.param(conv, torch.randn(8, 3, 16, 16), id="convolutions"),
        pytest.param(encoder, torch.randn(4, 16, 32), id="transformer"),
        pytest.param(nn.GRUCell(16, 32), torch.randn(64, 16), id="cell"),
        pytest.param(Outputs(nn.LSTM(16, 64, 2)), torch.randn(20, 8, 16), id="recurrent"),
    ]


@pytest.mark.parametrize(("module", "x"), zoo())
def test_the_peak_is_that_of_a_real_step(module: nn.Module, x: torch.Tensor) -> None:
    features = capture(module, x, optimizer=torch.optim.Adam)
    follower = Follower()
    for tensor in (*module.parameters(), *module.buffers(), x):
        follower.follow(tensor)
    with follower:
        optimizer = torch.optim.Adam(module.parameters())
        module.train()
        loss = torch.stack([module(x).float().sum()]).sum()
        loss.backward()
        del loss
        optimizer.step()
    assert features.peak_live_bytes == pytest.approx(follower.peak, rel=0.05)


def test_nothing_of_the_models_size_is_allocated() -> None:
    before = _resident_bytes()
    # Shapes on the meta device: 16 GiB of parameters that do not exist.
    with torch.device("meta"):
        module = nn.Sequential(*[nn.Linear(32768, 32768, bias=False) for _ in range(4)])
    features = capture(module, torch.empty(1, 32768, device="meta"), optimizer=torch.optim.Adam)
    assert features.parameter_bytes == 4 * 32768 * 32768 * 4
    assert features.peak_live_bytes >= 4 * features.parameter_bytes
    assert _resident_bytes() - before < 200 * 2**20


def _resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096
