"""A LightningModule's training step on fake tensors, of `lightning.pytorch` or `pytorch_lightning`.

The module's own `training_step` and `configure_optimizers` run; what they reach for in the
Trainer is answered without disturbing it.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from horus_lab.errors import CaptureFailed
from horus_lab.graph.step import Driver, FakeStep, needs_closure
from horus_lab.graph.trainer_view import TrainerView

_PACKAGES = ("lightning.", "pytorch_lightning.")


def lightning_driver(module: nn.Module) -> Driver:
    """Drive one training step as the Trainer would."""

    def drive(step: FakeStep) -> None:
        view = _attach(module)
        module.train()
        step.optimizers, schedulers = _configured(module.configure_optimizers())  # type: ignore[operator]
        view.optimizers = [_Stepping(step, optimizer) for optimizer in step.optimizers]
        _answer_harmlessly(module, step, view.optimizers, schedulers)

        def there_and_back() -> torch.Tensor | None:
            with step.forward():
                loss = _loss(module.training_step(*_arguments(module, step.batch)))  # type: ignore[operator]
            if loss is None or not loss.requires_grad:
                return None
            step.backward(loss)
            return loss

        hooks: Any = module
        if hasattr(module, "on_after_batch_transfer"):
            step.batch = hooks.on_after_batch_transfer(step.batch, 0)
        if not module.automatic_optimization:
            with step.forward():
                module.training_step(*_arguments(module, step.batch))  # type: ignore[operator]
        elif any(needs_closure(optimizer) for optimizer in step.optimizers):
            for optimizer in step.optimizers:
                step.step(optimizer, there_and_back)
        else:
            # As in the Trainer, the loss and its graph live on while the optimizer steps.
            loss = there_and_back()
            for optimizer in step.optimizers if loss is not None else []:
                step.step(optimizer)

    return drive


def builders(module: nn.Module) -> list[Callable[[], None] | None]:
    """What may have to run before the module is whole, the lightest first.

    The Trainer calls `setup` and `configure_model` only after a callback has been asked. Both are
    made to be called again; `setup` is left out as long as the step works without it.
    """

    def build() -> None:
        _attach(module)
        hooks: Any = module
        hooks.configure_model()

    def set_up_and_build() -> None:
        _attach(module)
        hooks: Any = module
        hooks.setup("fit")
        if _overrides(module, "configure_model"):
            hooks.configure_model()

    found: list[Callable[[], None] | None] = []
    found.append(build if _overrides(module, "configure_model") else None)
    if _overrides(module, "setup"):
        found.append(set_up_and_build)
    return found


def is_lightning(module: Any) -> bool:
    """Whether the module is a LightningModule, told without importing Lightning."""
    return isinstance(module, nn.Module) and any(
        base.__name__ == "LightningModule" for base in type(module).__mro__
    )


def _attach(module: nn.Module) -> TrainerView:
    """Give the module a view of its Trainer, or of one that it could have."""
    attributes = vars(module)
    present = attributes.get("_trainer")
    view = present if isinstance(present, TrainerView) else TrainerView(present)
    attributes["_trainer"] = view
    return view


def _answer_harmlessly(
    module: nn.Module, step: FakeStep, optimizers: list[_Stepping], schedulers: list[_Scheduler]
) -> None:
    attributes = vars(module)
    for name in ("log", "log_dict", "print", "clip_gradients"):
        attributes[name] = _nothing
    toggles = _Toggles(optimizers)
    attributes["toggle_optimizer"] = toggles.toggle
    attributes["untoggle_optimizer"] = toggles.untoggle
    attributes["toggled_optimizer"] = toggles.toggled
    attributes["all_gather"] = lambda data, *_, **__: data
    attributes["manual_backward"] = step.backward
    attributes["optimizers"] = lambda use_pl_optimizer=True: (  # noqa: ARG005
        optimizers[0] if len(optimizers) == 1 else optimizers
    )
    attributes["lr_schedulers"] = lambda: (
        None if not schedulers else schedulers[0] if len(schedulers) == 1 else schedulers
    )


class _Stepping:
    """An optimizer as manual optimization sees it."""

    def __init__(self, step: FakeStep, optimizer: torch.optim.Optimizer) -> None:
        self._step = step
        self.optimizer = optimizer

    def step(self, closure: Any = None, **_: Any) -> Any:
        return self._step.step(self.optimizer, closure)

    def toggle_model(self, *_: Any, **__: Any) -> Any:
        return contextlib.nullcontext()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.optimizer, name)


class _Toggles:
    """Leaves gradients to one optimizer's parameters at a time."""

    def __init__(self, optimizers: list[_Stepping]) -> None:
        self._optimizers = optimizers
        self._before: dict[torch.Tensor, bool] = {}

    def toggle(self, optimizer: Any) -> None:
        self._before = {p: p.requires_grad for one in self._optimizers for p in _parameters(one)}
        for parameter in self._before:
            parameter.requires_grad = False
        for parameter in _parameters(optimizer):
            parameter.requires_grad = self._before[parameter]

    def untoggle(self, optimizer: Any) -> None:
        del optimizer
        for parameter, wanted in self._before.items():
            parameter.requires_grad = wanted

    @contextlib.contextmanager
    def toggled(self, optimizer: Any) -> Iterator[None]:
        self.toggle(optimizer)
        try:
            yield
        finally:
            self.untoggle(optimizer)


class _Scheduler:
    """A learning-rate scheduler that steps nowhere."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler

    def step(self, *_: Any, **__: Any) -> None:
        return None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scheduler, name)


def _parameters(optimizer: Any) -> list[torch.Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _overrides(module: nn.Module, name: str) -> bool:
    method = getattr(type(module), name, None)
    return method is not None and not str(method.__module__).startswith(_PACKAGES)


def _arguments(module: nn.Module, batch: Any) -> tuple[Any, ...]:
    """The batch, and an index where the step takes one."""
    parameters = inspect.signature(module.training_step).parameters  # type: ignore[arg-type]
    if "dataloader_iter" in parameters:
        raise CaptureFailed("The training step takes the loader's iterator itself.")
    positions = [p for p in parameters.values() if p.kind not in (p.VAR_KEYWORD, p.KEYWORD_ONLY)]
    return (batch, 0) if len(positions) > 1 else (batch,)


def _loss(output: Any) -> torch.Tensor | None:
    if output is None:
        return None
    loss = output.get("loss") if isinstance(output, dict) else output
    if not isinstance(loss, torch.Tensor):
        raise CaptureFailed("The training step gave no loss tensor.")
    return loss


def _configured(given: Any) -> tuple[list[torch.optim.Optimizer], list[_Scheduler]]:
    """The optimizers and schedulers, of each form that `configure_optimizers` may give."""
    if given is None:
        return [], []
    if isinstance(given, torch.optim.Optimizer):
        return [given], []
    if isinstance(given, dict):
        scheduler = given.get("lr_scheduler")
        return [given["optimizer"]], [] if scheduler is None else [_scheduler(scheduler)]
    if (
        isinstance(given, tuple)
        and len(given) == 2
        and all(isinstance(part, list | tuple) for part in given)
    ):
        return list(given[0]), [_scheduler(one) for one in given[1]]
    if isinstance(given, list | tuple):
        parts = [_configured(each) for each in given]
        return [o for part in parts for o in part[0]], [s for part in parts for s in part[1]]
    raise CaptureFailed(f"configure_optimizers gave a {type(given).__name__}.")


def _scheduler(given: Any) -> _Scheduler:
    return _Scheduler(given["scheduler"] if isinstance(given, dict) else given)
