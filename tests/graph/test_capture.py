"""What can be captured, by which method, and what is said where it cannot."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections import namedtuple
from typing import Any

import pytest
import torch
from torch import nn

from horus_lab.errors import CaptureFailed
from horus_lab.graph import capture, capture_step, summary
from horus_lab.records import CaptureMethod

Pair = namedtuple("Pair", ["x", "y"])


@dataclasses.dataclass
class Sample:
    x: torch.Tensor
    name: str = "a"


class DataDependent(nn.Module):
    def __init__(self, change: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.change = change

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.change(self.layer(x))


def branch(y: torch.Tensor) -> torch.Tensor:
    return y * 2 if y.mean() > 3 else y


def loops(y: torch.Tensor) -> torch.Tensor:
    for _ in range(int(y.sum().item()) % 3):
        y = y + 1
    return y


def through_numpy(y: torch.Tensor) -> torch.Tensor:
    return y * float(y.detach().cpu().numpy().mean() + 1)


@pytest.mark.parametrize(
    "change",
    [
        branch,
        loops,
        through_numpy,
        lambda y: y[y > 0],
        lambda y: y[torch.nonzero(y[:, 0])[:, 0]],
        lambda y: y.masked_select(y > 0),
        lambda y: y * len(y.detach().tolist()),
        lambda y: y * torch.unique(y.detach()).numel(),
        lambda y: y if bool((y > 0).any()) else y + 1,
    ],
    ids=["if", "loop", "numpy", "mask", "nonzero", "masked_select", "tolist", "unique", "any"],
)
def test_what_depends_on_data_is_answered_and_makes_the_capture_less_sure(change: Any) -> None:
    features = capture(DataDependent(change), torch.zeros(3, 4))
    assert features.method is CaptureMethod.FAKE_STEP
    assert features.confidence < capture(nn.Linear(4, 4), torch.zeros(3, 4)).confidence


@pytest.mark.parametrize(
    ("module", "batch"),
    [
        (nn.Linear(4, 2), (torch.zeros(3, 4), torch.zeros(3))),
        (nn.Linear(4, 2), [torch.zeros(3, 4)]),
        (nn.Linear(4, 2), Pair(torch.zeros(3, 4), torch.zeros(3))),
        (nn.Bilinear(4, 5, 2), (torch.zeros(3, 4), torch.zeros(3, 5), torch.zeros(3))),
    ],
)
def test_a_batch_is_given_to_the_module_as_people_give_it(module: nn.Module, batch: Any) -> None:
    features = capture(module, batch)
    assert features.method is CaptureMethod.FAKE_STEP
    assert features.samples == 3


def test_mappings_become_keywords_and_dataclasses_stay_whole() -> None:
    class Keywords(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
            assert mask is not None
            return self.layer(x) * mask

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, sample: Sample) -> torch.Tensor:
            assert sample.name == "a"
            return self.layer(sample.x)

    batch = {"x": torch.zeros(3, 4), "mask": torch.ones(3, 1)}
    assert capture(Keywords(), batch).method is CaptureMethod.FAKE_STEP
    assert capture(Whole(), Sample(torch.zeros(3, 4))).method is CaptureMethod.FAKE_STEP


def test_a_loss_a_step_and_an_optimizer_can_be_given() -> None:
    module = nn.Linear(4, 3)
    batch = (torch.zeros(5, 4), torch.zeros(5, dtype=torch.int64))
    by_loss = capture(module, batch, loss=nn.CrossEntropyLoss(), optimizer=torch.optim.SGD)
    by_step = capture_step(
        module,
        batch,
        step=lambda m, b: nn.functional.cross_entropy(m(b[0]), b[1]),
        optimizer=torch.optim.SGD,
    )
    assert by_loss.graph_hash == by_step.graph_hash
    assert by_loss.method is CaptureMethod.FAKE_STEP
    assert any("Adam" in note for note in capture(module, batch[0]).notes)


def test_equal_steps_have_equal_hashes_and_others_differ() -> None:
    def digest(width: int = 4, samples: int = 3, **options: Any) -> str:
        return capture(nn.Linear(4, width), torch.zeros(samples, 4), **options).graph_hash

    assert digest() == digest()
    others = [
        digest(width=5),
        digest(samples=4),
        digest(optimizer=torch.optim.SGD),
        digest(precision="bf16-mixed"),
    ]
    assert len({digest(), *others}) == 5


def test_the_hash_is_the_same_in_another_process() -> None:
    code = (
        "import torch; from horus_lab.graph import capture; "
        "print(capture(torch.nn.Linear(4, 4), torch.zeros(3, 4)).graph_hash)"
    )
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == capture(nn.Linear(4, 4), torch.zeros(3, 4)).graph_hash


@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed", "bf16-true"])
def test_lower_precisions_compute_in_their_dtype(precision: str) -> None:
    features = capture(
        nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 8)), torch.zeros(32, 64), precision=precision
    )
    low = "float16" if precision == "16-mixed" else "bfloat16"
    assert features.dtype_flops[low] > features.dtype_flops.get("float32", 0.0) / 2
    assert features.method is CaptureMethod.FAKE_STEP
    whole = 64 * 64 + 64 + 64 * 8 + 8
    assert features.parameter_bytes == whole * (2 if precision == "bf16-true" else 4)


@pytest.mark.parametrize(
    ("module", "batch"),
    [
        (nn.Linear(4, 2), torch.zeros(3, 5)),
        (nn.Conv2d(3, 4, 3), torch.zeros(2, 1, 8, 8)),
    ],
)
def test_a_batch_of_the_wrong_shape_is_an_error_that_says_so(module: nn.Module, batch: Any) -> None:
    with pytest.raises(CaptureFailed, match="does not take this batch"):
        capture(module, batch)


@pytest.mark.parametrize("batch", [None, "text", [], {}, torch.zeros(()), 3])
def test_a_batch_without_samples_is_refused(batch: Any) -> None:
    with pytest.raises(CaptureFailed, match="batch"):
        capture(nn.Linear(4, 2), batch)


def test_something_else_than_a_module_is_refused() -> None:
    with pytest.raises(CaptureFailed, match="not a torch module"):
        capture("resnet50", torch.zeros(3, 4))


class Stubborn(nn.Module):
    """Fails on anything that is not a real tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if type(x) is not torch.Tensor:
            raise TypeError("only real tensors")
        return self.layer(x)


def test_what_fails_on_stand_ins_falls_to_the_parameters_with_the_reason() -> None:
    features = capture(Stubborn(), torch.zeros(3, 4))
    assert features.method is CaptureMethod.MODULE_WALK
    assert features.parameters == 10
    # Two forward and four backward operations for each of 10 parameters and 3 samples, and the
    # optimizer's 12 for each.
    assert features.flops == 6 * 10 * 3 + 12 * 10
    assert "only real tensors" in features.notes[0]
    assert features.peak_live_bytes > 4 * features.parameter_bytes


def test_a_capture_that_takes_too_long_falls_down_the_chain() -> None:
    deep = nn.Sequential(*[nn.Linear(4, 4) for _ in range(50)])
    features = capture_step(deep, torch.zeros(3, 4), time_limit_seconds=0.0)
    assert features.method is CaptureMethod.MODULE_WALK
    assert "TimeLimitReached" in features.notes[0]


def test_the_summary_tells_the_totals_and_the_notes() -> None:
    text = summary(capture(nn.Linear(4, 2), torch.zeros(3, 4)))
    assert "one training step of 3 samples" in text
    assert "fake_step" in text
    assert "Adam is assumed" in text


def test_importing_the_package_needs_no_torch() -> None:
    code = "import sys, horus_lab, horus_lab.graph; print('torch' in sys.modules)"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == "False"
