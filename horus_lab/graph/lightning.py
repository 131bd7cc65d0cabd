"""A LightningModule's training step on fake tensors, of `lightning.pytorch` or `pytorch_lightning`.

The module's own `training_step` and `configure_optimizers` run; what they reach for in the
Trainer is answered without disturbing it.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn

from horus_lab.errors import CaptureFailed
from horus_lab.graph.step import Driver, FakeStep

_STEPS_FOR_SCHEDULERS = 10_000


def lightning_driver(module: nn.Module) -> Driver:
    """Drive one training step as the Trainer would."""

    def drive(step: FakeStep) -> None:
        attributes = vars(module)
        trainer = attributes.get("_trainer")
        if trainer is not None:
            attributes["_trainer"] = _TrainerView(trainer)
        module.train()
        step.optimizers = _optimizers(module)
        wrapped = [_Stepping(step, optimizer) for optimizer in step.optimizers]
        for name in ("log", "log_dict", "print", "toggle_optimizer", "untoggle_optimizer"):
            attributes[name] = _nothing
        attributes["clip_gradients"] = _nothing
        attributes["manual_backward"] = step.backward
        attributes["optimizers"] = lambda use_pl_optimizer=True: _one_or_all(wrapped)  # noqa: ARG005
        attributes["lr_schedulers"] = _Scheduler
        output = module.training_step(*_arguments(module, step.batch))  # type: ignore[operator]
        if not module.automatic_optimization:
            return
        loss = _loss(output)
        if loss is None:
            return
        step.backward(loss)
        for optimizer in step.optimizers:
            step.step(optimizer)

    return drive


def is_lightning(module: Any) -> bool:
    """Whether the module is a LightningModule, told without importing Lightning."""
    return isinstance(module, nn.Module) and any(
        base.__name__ == "LightningModule" for base in type(module).__mro__
    )


class _TrainerView:
    """The Trainer, without the questions that would set its data up before their time."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    @property
    def estimated_stepping_batches(self) -> int:
        return _STEPS_FOR_SCHEDULERS

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trainer, name)


class _Stepping:
    """An optimizer as manual optimization sees it."""

    def __init__(self, step: FakeStep, optimizer: torch.optim.Optimizer) -> None:
        self._step = step
        self.optimizer = optimizer

    def step(self, closure: Any = None, **_: Any) -> Any:
        return self._step.step(self.optimizer, closure)

    def toggle_model(self, *_: Any, **__: Any) -> Any:
        import contextlib

        return contextlib.nullcontext()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.optimizer, name)


class _Scheduler:
    """A learning-rate scheduler that steps nowhere."""

    def step(self, *_: Any, **__: Any) -> None:
        return None


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _one_or_all(optimizers: list[_Stepping]) -> Any:
    return optimizers[0] if len(optimizers) == 1 else optimizers


def _arguments(module: nn.Module, batch: Any) -> tuple[Any, ...]:
    """The batch, and an index where the step takes one."""
    parameters = inspect.signature(module.training_step).parameters  # type: ignore[arg-type]
    if "dataloader_iter" in parameters:
        raise CaptureFailed("The training step takes the loader's iterator itself.")
    return (batch, 0) if len(parameters) > 1 else (batch,)


def _loss(output: Any) -> torch.Tensor | None:
    if output is None:
        return None
    loss = output.get("loss") if isinstance(output, dict) else output
    if not isinstance(loss, torch.Tensor):
        raise CaptureFailed("The training step gave no loss tensor.")
    return loss


def _optimizers(module: nn.Module) -> list[torch.optim.Optimizer]:
    """What `configure_optimizers` gives, in each of the forms that Lightning knows."""
    return _listed(module.configure_optimizers())  # type: ignore[operator]


def _listed(given: Any) -> list[torch.optim.Optimizer]:
    if given is None:
        return []
    if isinstance(given, torch.optim.Optimizer):
        return [given]
    if isinstance(given, dict):
        return [given["optimizer"]]
    if (
        isinstance(given, tuple)
        and len(given) == 2
        and all(isinstance(part, list | tuple) for part in given)
    ):
        return list(given[0])
    if isinstance(given, list | tuple):
        return [optimizer for each in given for optimizer in _listed(each)]
    raise CaptureFailed(f"configure_optimizers gave a {type(given).__name__}.")
