"""The Trainer as a captured step sees it: it can be read, and nothing can be done to it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

_STEPS_FOR_SCHEDULERS = 10_000

_WITHOUT_TRAINER: dict[str, Any] = {
    "accumulate_grad_batches": 1,
    "callbacks": [],
    "current_epoch": 0,
    "datamodule": None,
    "global_rank": 0,
    "global_step": 0,
    "gradient_clip_val": None,
    "is_global_zero": True,
    "is_last_batch": False,
    "local_rank": 0,
    "max_epochs": 10,
    "max_steps": _STEPS_FOR_SCHEDULERS,
    "node_rank": 0,
    "num_devices": 1,
    "num_nodes": 1,
    "num_training_batches": 1000,
    "sanity_checking": False,
    "training": True,
    "validating": False,
    "world_size": 1,
}


class TrainerView:
    """Stands for the module's Trainer, or for a plain one where it has none.

    Its loggers swallow everything, its methods do nothing, and what is set on it stays here. It
    never answers what would set the Trainer's data up before their time.

    Attributes:
        optimizers: the optimizers over the stand-ins.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self.optimizers: list[Any] = []
        self.callback_metrics: dict[str, Any] = {}
        self.logged_metrics: dict[str, Any] = {}
        self.progress_bar_metrics: dict[str, Any] = {}

    @property
    def estimated_stepping_batches(self) -> int:
        steps = getattr(self._trainer, "max_steps", None)
        return steps if isinstance(steps, int) and steps > 0 else _STEPS_FOR_SCHEDULERS

    @property
    def logger(self) -> Any:
        if self._trainer is not None and not self._trainer.loggers:
            return None
        return Silent()

    @property
    def loggers(self) -> list[Any]:
        logger = self.logger
        return [] if logger is None else [logger]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if self._trainer is None:
            return _WITHOUT_TRAINER[name] if name in _WITHOUT_TRAINER else Silent()
        value = getattr(self._trainer, name)
        return _nothing if inspect.ismethod(value) else value


class Silent:
    """Takes everything and does nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Silent()

    def __call__(self, *_: Any, **__: Any) -> Any:
        return Silent()

    def __getitem__(self, key: Any) -> Any:
        del key
        return Silent()

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __len__(self) -> int:
        return 0

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        return None


def _nothing(*_: Any, **__: Any) -> None:
    return None
