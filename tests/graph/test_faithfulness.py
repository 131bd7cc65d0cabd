"""A capture leaves no trace: training after it is bit-identical to training without it."""

from __future__ import annotations

import random
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from horus_lab.graph import capture
from horus_lab.records import CaptureMethod


class Habits(nn.Module):
    """What people do in a forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.register_buffer("queue", torch.zeros(4, 6))
        self.losses: list[torch.Tensor] = []
        self.calls = {"forward": 0}
        self.cache = torch.zeros(6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x) + torch.randn(6) * random.random() * float(np.random.rand())
        self.queue[0] = y[0].detach()
        self.cache += 1
        self.hidden = y
        self.losses.append(y.sum())
        self.calls["forward"] += 1
        print("loss", y.sum().item())
        warnings.warn("a warning of the user's code", stacklevel=1)
        return y


def zoo() -> dict[str, tuple[Any, Any]]:
    return {
        "batch norm and dropout": (
            lambda: nn.Sequential(
                nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 6)
            ),
            lambda: torch.randn(5, 6),
        ),
        "recurrent": (lambda: nn.LSTMCell(6, 6), lambda: torch.randn(5, 6)),
        "sparse embedding": (
            lambda: nn.EmbeddingBag(10, 6, sparse=True),
            lambda: torch.randint(0, 10, (5, 3)),
        ),
        "habits": (Habits, lambda: torch.randn(5, 6)),
        "spectral norm": (
            lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(6, 6)),
            lambda: torch.randn(5, 6),
        ),
    }


def trained(make: Any, batch: Any, *, look: bool) -> tuple[Any, ...]:
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    module = make()
    module.layer_hook_calls = 0
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    x = batch()
    for _ in range(3):
        if look:
            capture(module, x, optimizer=optimizer)
        output = module(x)
        first = output[0] if isinstance(output, tuple) else output
        optimizer.zero_grad()
        (first.sum() ** 2).backward()
        optimizer.step()
    attributes = {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, int | float | bool) or name == "calls"
    }
    return (
        {name: value.clone() for name, value in module.state_dict().items()},
        attributes,
        [value.item() for value in getattr(module, "losses", [])],
        getattr(module, "cache", torch.zeros(())).clone(),
        torch.get_rng_state(),
        random.getstate(),
        np.random.get_state()[1].tolist(),
        [p.requires_grad for p in module.parameters()],
        torch.get_default_dtype(),
    )


def same(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor):
        return torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[k], right[k]) for k in left)
    return bool(left == right)


@pytest.mark.parametrize("name", zoo())
@pytest.mark.filterwarnings("ignore")
def test_training_after_a_capture_is_bit_identical(name: str) -> None:
    make, batch = zoo()[name]
    for with_look, without in zip(
        trained(make, batch, look=True), trained(make, batch, look=False), strict=True
    ):
        assert same(with_look, without)


def test_a_module_in_evaluation_mode_stays_so() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout())
    module.eval()
    capture(module, torch.zeros(2, 4))
    assert not module.training
    assert not module[1].training


def test_what_the_users_code_prints_and_warns_does_not_reach_the_user(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        capture(Habits(), torch.zeros(2, 6))
    assert capsys.readouterr() == ("", "")


def test_existing_gradients_stay() -> None:
    module = nn.Linear(4, 2)
    module(torch.ones(1, 4)).sum().backward()
    gradient = module.weight.grad
    capture(module, torch.zeros(3, 4))
    assert module.weight.grad is gradient
    assert torch.equal(gradient, torch.ones(2, 4))


def test_a_lazy_module_is_captured_on_a_copy_and_stays_lazy() -> None:
    module = nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d(), nn.Linear(3, 2))
    features = capture(module, torch.zeros(2, 4))
    assert features.method is CaptureMethod.FAKE_STEP
    # Linear 4x3 + 3, batch norm 3 + 3, linear 3x2 + 2.
    assert features.parameters == 15 + 6 + 8
    assert isinstance(module[0], nn.LazyLinear)
    assert isinstance(module[0].weight, nn.UninitializedParameter)
    assert isinstance(module[1].running_mean, nn.UninitializedBuffer)


def test_a_lazy_module_whose_first_pass_fails_falls_to_the_last_method() -> None:
    class Refusing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.LazyLinear(3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise TypeError("not today")

    features = capture(Refusing(), torch.zeros(2, 4))
    assert features.method is CaptureMethod.MODULE_WALK
    assert features.confidence <= 0.2
    assert "2 parameters have no shape yet" in " ".join(features.notes)


def test_a_tensor_outside_the_module_is_not_written_to() -> None:
    counter = torch.zeros(3)

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            counter.add_(1)
            return self.layer(x) + counter

    capture(Counting(), torch.zeros(2, 4))
    assert torch.equal(counter, torch.zeros(3))


class Helper:
    """A plain object of the user's that a module keeps."""

    def __init__(self) -> None:
        self.calls = 0
        self.seen: dict[str, list[int]] = {"sizes": []}


class Keeping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.helper = Helper()
        self.nested = {"a": [{"b": []}]}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.helper.calls += 1
        self.helper.seen["sizes"].append(len(x))
        self.nested["a"][0]["b"].append(1)
        return self.layer(x)


def test_nested_containers_and_the_modules_own_objects_stay_as_they_were() -> None:
    module = Keeping()
    assert capture(module, torch.zeros(2, 4)).method is CaptureMethod.FAKE_STEP
    assert module.helper.calls == 0
    assert module.helper.seen == {"sizes": []}
    assert module.nested == {"a": [{"b": []}]}


def test_a_parameter_outside_the_module_gets_no_gradient() -> None:
    teacher = nn.Linear(4, 3)
    module = nn.Linear(4, 3)

    def step(student: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return (student(x) - teacher(x)).pow(2).mean()

    optimizer = torch.optim.SGD([*module.parameters(), *teacher.parameters()], lr=0.1)
    before = teacher.weight.detach().clone()
    features = capture(module, torch.zeros(2, 4), step=step, optimizer=optimizer)
    assert features.method is CaptureMethod.FAKE_STEP
    assert teacher.weight.grad is None
    assert torch.equal(teacher.weight, before)


@pytest.mark.parametrize(
    "move",
    [
        lambda x: x.cuda(),
        lambda x: x.to("cuda:1"),
        lambda x: x.to(torch.device("cuda"), torch.float32),
        lambda x: x.to(device=0),
        lambda x: x + torch.ones(4, device="cuda"),
        lambda x: x + torch.tensor([1.0, 2.0, 3.0, 4.0], device="cuda"),
        lambda x: x.pin_memory(),
    ],
    ids=["cuda", "to", "device", "keyword", "factory", "values", "pinned"],
)
def test_a_device_that_the_code_names_is_not_touched(move: Any) -> None:
    module = nn.Linear(4, 3)
    features = capture(module, torch.zeros(2, 4), step=lambda m, x: m(move(x)).sum())
    assert features.method is CaptureMethod.FAKE_STEP
    assert not torch.cuda.is_initialized()


def test_code_that_would_start_cuda_falls_down_the_chain_instead() -> None:
    def step(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
        torch.cuda.synchronize()
        return module(x).sum()

    start = torch.cuda._lazy_init
    features = capture(nn.Linear(4, 3), torch.zeros(2, 4), step=step)
    assert "CUDA is not started" in " ".join(features.notes)
    assert not torch.cuda.is_initialized()
    assert torch.cuda._lazy_init is start


def test_global_settings_that_a_step_changes_are_put_back() -> None:
    def step(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
        torch.set_default_dtype(torch.float64)
        torch.use_deterministic_algorithms(True)
        torch.set_grad_enabled(True)
        return module(x).sum()

    capture(nn.Linear(4, 3), torch.zeros(2, 4), step=step)
    assert torch.get_default_dtype() is torch.float32
    assert not torch.are_deterministic_algorithms_enabled()


def test_the_users_optimizer_and_its_schedulers_stay_as_they_were() -> None:
    module = nn.Linear(4, 3)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    before = repr(optimizer.state_dict())
    capture(module, torch.zeros(2, 4), optimizer=optimizer)
    assert repr(optimizer.state_dict()) == before
    assert scheduler.last_epoch == 0
    assert optimizer.param_groups[0]["params"][0] is module.weight
