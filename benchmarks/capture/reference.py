"""A real step on the CPU whose storages are all followed: what a capture is compared with."""

from __future__ import annotations

import contextlib
import logging
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.capture.setups import Setup

_AUTOCAST = {"16-mixed": torch.float16, "bf16-mixed": torch.bfloat16}


class Follower(TorchDispatchMode):
    """Counts the bytes of every storage from its first sight to its end."""

    def __init__(self) -> None:
        super().__init__()
        self.live = 0
        self.peak = 0
        self._seen: set[int] = set()

    def follow(self, tensor: torch.Tensor) -> None:
        if tensor.layout is not torch.strided:
            return
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._seen:
            return
        self._seen.add(key)
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._gone, key, size)

    def _gone(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.live -= size

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: Any = (), named: Any = None
    ) -> Any:
        del types
        result = function(*arguments, **(named or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self.follow(leaf)
        return result


def peak_bytes(setup: Setup) -> int:
    """The most bytes alive at once in one real step, parameters and batch included."""
    module, batch = setup.make(), setup.batch()
    if setup.precision == "bf16-true":
        module = module.to(torch.bfloat16)
        batch = _cast(batch)
    follower = Follower()
    for tensor in (*module.parameters(), *module.buffers(), *_tensors(batch)):
        if not nn.parameter.is_lazy(tensor):
            follower.follow(tensor)
    with follower:
        _step(setup, module, batch)
    return follower.peak


def product_flops(setup: Setup) -> int:
    """FLOPs of one real step by torch's own counter: its products and convolutions alone."""
    module, batch = setup.make(), setup.batch()
    if setup.precision == "bf16-true":
        module, batch = module.to(torch.bfloat16), _cast(batch)
    with FlopCounterMode(display=False) as counter:
        _step(setup, module, batch)
    return counter.get_total_flops()


def _step(setup: Setup, module: nn.Module, batch: Any) -> None:
    if setup.step is None:
        _fit(setup, module, batch)
        return
    module.train()
    optimizer = setup.optimizer(module.parameters())
    with _autocast(setup.precision):
        loss = setup.step(module, batch)
    loss.backward()
    optimizer.step()


def _fit(setup: Setup, module: Any, batch: Any) -> None:
    with quiet_lightning():
        trainer = pl.Trainer(
            accelerator="cpu",
            precision=setup.precision if setup.precision.endswith("mixed") else "32-true",
            max_steps=-1,
            max_epochs=1,
            limit_train_batches=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(module, train_dataloaders=Loader(batch))


class Loader:
    """A loader of given batches, which it does not copy."""

    def __init__(self, *batches: Any) -> None:
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._batches)


@contextlib.contextmanager
def quiet_lightning() -> Iterator[None]:
    """Without Lightning's messages about its set-up."""
    logger = logging.getLogger("lightning.pytorch")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


@contextlib.contextmanager
def _autocast(precision: str) -> Iterator[None]:
    if precision not in _AUTOCAST:
        yield
        return
    with torch.autocast("cpu", dtype=_AUTOCAST[precision]):
        yield


def _tensors(batch: Any) -> list[torch.Tensor]:
    leaves = tree_leaves(vars(batch) if hasattr(batch, "__dataclass_fields__") else batch)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _cast(batch: Any) -> Any:
    return torch.utils._pytree.tree_map(
        lambda leaf: (
            leaf.to(torch.bfloat16)
            if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
            else leaf
        ),
        batch,
    )
