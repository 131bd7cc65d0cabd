"""The training step of a plain module: how its batch, its loss and its optimizer are used."""

from __future__ import annotations

import inspect
from collections import OrderedDict, defaultdict
from typing import Any

import torch
from torch import nn

from horus_lab.errors import CaptureFailed
from horus_lab.graph import fakes
from horus_lab.graph.step import Driver, FakeStep, needs_closure


def plain_driver(
    module: nn.Module, *, loss: Any, optimizer: Any, step: Any, train: bool = True
) -> Driver:
    """Forward, loss, backward and optimizer step of a plain module."""

    def drive(one: FakeStep) -> None:
        optimizers = make_optimizers(module, optimizer, one.stand_ins)
        one.optimizers = optimizers
        if train and not module.training:
            module.train()
        if any(needs_closure(each) for each in optimizers):
            for each in optimizers:
                one.step(each, lambda: there_and_back(one))
        else:
            # As in people's loops, the loss and its graph live on while the optimizer steps.
            value = there_and_back(one)
            for each in optimizers if value is not None else []:
                one.step(each)

    def there_and_back(one: FakeStep) -> torch.Tensor | None:
        with one.forward():
            if step is not None:
                value = step(module, one.batch)
            else:
                value = _loss_of(_forward(module, one.batch), one.batch, loss)
        if not isinstance(value, torch.Tensor):
            raise CaptureFailed(
                f"The step gave a {type(value).__name__} in place of a loss.",
                hint="Return the loss as a scalar tensor, or pass loss=… .",
            )
        if not value.requires_grad:
            return None
        one.backward(value if value.dim() == 0 else value.sum())
        return value

    return drive


def make_optimizers(
    module: nn.Module, optimizer: Any, stand_ins: dict[int, torch.Tensor]
) -> list[torch.optim.Optimizer]:
    """The user's optimizer over the module's current (fake) parameters.

    `optimizer` is an instance (its class and hyperparameters are taken over), a class or a
    factory of parameters, or `None` for Adam.
    """
    trained = [p for p in module.parameters() if p.requires_grad]
    if isinstance(optimizer, torch.optim.Optimizer):
        return [_over_stand_ins(optimizer, stand_ins)]
    if not trained:
        return []
    if optimizer is None:
        return [torch.optim.Adam(trained)]
    made = optimizer(trained)
    return [made] if isinstance(made, torch.optim.Optimizer) else list(made)


def _over_stand_ins(
    optimizer: torch.optim.Optimizer, stand_ins: dict[int, torch.Tensor]
) -> torch.optim.Optimizer:
    """The same optimizer with its own groups and settings, over stand-ins and without state.

    Made without its constructor, whose arguments only its author knows. Parameters of other
    modules keep no gradient here, and are passed over as any optimizer does.
    """

    def stand_in(tensor: torch.Tensor) -> torch.Tensor:
        return stand_ins.get(id(tensor), tensor)

    made: torch.optim.Optimizer = object.__new__(type(optimizer))
    attributes = {
        name: fakes.mapped(value, stand_in) if isinstance(value, list | tuple) else value
        for name, value in vars(optimizer).items()
        if name != "step"
    }
    attributes["param_groups"] = [
        {**group, "params": [stand_in(one) for one in group["params"]]}
        for group in optimizer.param_groups
    ]
    attributes["state"] = defaultdict(dict)
    for hooks in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"):
        attributes[hooks] = OrderedDict()
    vars(made).update(attributes)
    return made


def _forward(module: nn.Module, batch: Any) -> Any:
    """Call the module with the batch as people call it.

    A mapping gives keyword arguments, a pair (inputs, targets) its inputs where the module takes
    one argument, a longer tuple as many positions as the module has.
    """
    if isinstance(batch, dict) or hasattr(batch, "keys"):
        accepted = _positions(module)
        if accepted is not None and len(accepted) == 1 and next(iter(accepted)) not in batch:
            return module(batch)
        return module(**dict(batch))
    if isinstance(batch, list | tuple):
        accepted = _positions(module)
        count = len(batch) if accepted is None else min(len(accepted), len(batch))
        return module(*batch[: max(1, count)])
    return module(batch)


def _positions(module: nn.Module) -> dict[str, Any] | None:
    """The forward's parameters that can be filled by position; `None` where any number may."""
    parameters = inspect.signature(module.forward).parameters
    if any(p.kind is p.VAR_POSITIONAL for p in parameters.values()):
        return None
    required = {
        name: p
        for name, p in parameters.items()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty
    }
    return required or dict(list(parameters.items())[:1])


def _loss_of(output: Any, batch: Any, loss: Any) -> Any:
    if loss is not None:
        accepted = len(
            inspect.signature(loss.forward if isinstance(loss, nn.Module) else loss).parameters
        )
        target = batch
        if isinstance(loss, nn.Module) or _is_functional(loss):
            # nn.CrossEntropyLoss() and its like compare with the target alone.
            target = batch[-1] if isinstance(batch, list | tuple) else batch
        return loss(output) if accepted == 1 else loss(output, target)
    found = getattr(output, "loss", None)
    if found is None and isinstance(output, dict):
        found = output.get("loss")
    if found is not None:
        return found
    floating = [t for t in fakes.tensors_in(output) if t.is_floating_point()]
    if not floating:
        raise CaptureFailed(
            "The model's output has no floating-point tensor to make a loss of.",
            hint="Pass loss=…, a function of the output and the batch.",
        )
    return torch.stack([t.float().sum() for t in floating]).sum()


def _is_functional(loss: Any) -> bool:
    return getattr(loss, "__module__", "").startswith("torch.nn.functional")
