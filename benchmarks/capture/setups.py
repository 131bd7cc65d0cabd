"""A training set-up, and those of LightningModules with habits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from benchmarks.capture import habits

Step = Callable[[nn.Module, Any], Any]


@dataclass(frozen=True)
class Setup:
    """One training set-up.

    Attributes:
        step: the loss of module and batch; `None` for a LightningModule, which has its own.
        optimizer: a factory; a LightningModule brings its own.
        real: a real step on the CPU is small enough, and possible, to compare with.
    """

    make: Callable[[], nn.Module]
    batch: Callable[[], Any]
    step: Step | None = None
    optimizer: Callable[[Any], torch.optim.Optimizer] = torch.optim.Adam
    precision: str = "32-true"
    real: bool = True


def habit_setups() -> dict[str, Setup]:
    """The set-ups of `habits` by name."""
    plain = habits.Classifier
    found = {
        "plain LightningModule": _habit(plain),
        "logs and metrics": _habit(habits.Logging),
        "reads values": _habit(habits.Reading),
        "masks": _habit(habits.Masking),
        "lazy layers": _habit(habits.LateBuilt),
        "configure_model": _habit(habits.BuiltByHook),
        "two optimizers by hand": _habit(habits.Adversarial, lambda: images(32, 16, channels=1)),
        "accumulates by hand": _habit(habits.Accumulating),
        "LBFGS": _habit(habits.WithClosure),
        "groups and scheduler": _habit(habits.Scheduled),
        "checkpointing": _habit(habits.Checkpointed),
        "reentrant checkpointing": _habit(habits.CheckpointedByReentry),
        "tied weights, GRU": _habit(habits.Tied, _language),
        "average of weights": _habit(habits.Averaged),
        "memory bank": _habit(habits.Banked),
        "frozen with adapters": _habit(habits.Adapted),
        "own function and optimizer": _habit(habits.OwnFunction),
        "torch.compile": _habit(habits.Compiled, real=False),
        "DataParallel": _habit(habits.Parallel),
        "channels_last and hooks": _habit(habits.ChannelsLast, lambda: images(16, 24)),
        "graph network": _habit(habits.MessagePassing, _graphs),
        "ragged sequences": _habit(habits.Ragged, _sequences),
        "PPO": _habit(habits.Policy, _rollout),
        "names the GPU": _habit(habits.OnGpu, real=False),
    }
    found["bf16-mixed"] = _habit(plain, precision="bf16-mixed")
    found["16-mixed"] = _habit(plain, precision="16-mixed", real=False)
    found["bf16-true"] = _habit(plain, precision="bf16-true")
    return found


def images(samples: int, size: int, channels: int = 3, classes: int = 10) -> Any:
    """Random images and labels."""
    return torch.randn(samples, channels, size, size), torch.randint(0, classes, (samples,))


def _habit(make: Callable[[], nn.Module], batch: Any = habits.pairs, **more: Any) -> Setup:
    return Setup(make, batch, **more)


def _language() -> Any:
    tokens = torch.randint(0, 500, (16, 33))
    return {"tokens": tokens[:, :-1], "next": tokens[:, 1:]}


def _graphs() -> habits.Graphs:
    return habits.Graphs(
        nodes=torch.randn(400, 16),
        edges=torch.randint(0, 400, (2, 3000)),
        owner=torch.arange(400) // 50,
        y=torch.randint(0, habits.CLASSES, (8,)),
        graphs=8,
    )


def _sequences() -> Any:
    lengths = [5 + 3 * (i % 7) for i in range(24)]
    return [torch.randn(one, 8) for one in lengths], torch.randint(0, habits.CLASSES, (24,))


def _rollout() -> Any:
    return (
        torch.randn(128, habits.WIDTH),
        torch.randint(0, 4, (128,)),
        torch.randn(128),
        torch.randn(128),
    )
