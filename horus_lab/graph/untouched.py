"""Leaves the user's process as it was: modules, random states, flags, logs and output."""

from __future__ import annotations

import contextlib
import io
import logging
import random
import threading
import warnings
from collections import deque
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn

_MOST_KEPT = 20_000
_NOT_THE_MODULES_OWN = frozenset({"_trainer", "_fabric"})
_LIBRARIES = frozenset(
    {"builtins", "torch", "lightning", "pytorch_lightning", "torchmetrics", "transformers"}
)


@contextlib.contextmanager
def untouched_randomness() -> Iterator[None]:
    """Put back the random states of Python, numpy and torch's CPU generator afterwards.

    CUDA's generators are left alone: reading their state would initialise CUDA.
    """
    python, of_numpy, of_torch = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(of_numpy)
        torch.set_rng_state(of_torch)


@contextlib.contextmanager
def untouched_module(module: nn.Module) -> Iterator[None]:
    """Put back every submodule's attributes, what they hold, and the gradients.

    Containers, and objects of the module's own package, are followed from the attributes as deep
    as they go, up to `_MOST_KEPT` of them. Objects of other packages are left alone: what changes
    in them may be another thread's doing.
    """
    kept = _Kept({_package(each) for each in module.modules()} | {"__main__"})
    for each in module.modules():
        kept.keep_attributes(each)
    gradients = [(parameter, parameter.grad) for parameter in module.parameters()]
    try:
        yield
    finally:
        kept.put_back()
        for parameter, gradient in gradients:
            parameter.grad = gradient


class _Kept:
    """Copies of containers' contents and of objects' attributes, one level each."""

    def __init__(self, packages: set[str]) -> None:
        self._packages = packages - _LIBRARIES
        self._objects: list[tuple[Any, dict[str, Any]]] = []
        self._containers: list[tuple[Any, Any]] = []
        self._seen: set[int] = set()

    def keep_attributes(self, one: Any) -> None:
        """An object's attributes, and what they hold in turn."""
        if id(one) in self._seen:
            return
        self._seen.add(id(one))
        attributes = dict(vars(one))
        self._objects.append((one, attributes))
        for name, value in attributes.items():
            if name not in _NOT_THE_MODULES_OWN:
                self._follow(value)

    def put_back(self) -> None:
        for one, attributes in self._objects:
            vars(one).clear()
            vars(one).update(attributes)
        for container, content in self._containers:
            container.clear()
            if isinstance(container, list | deque):
                container.extend(content)
            else:
                container.update(content)

    def _follow(self, value: Any) -> None:
        if id(value) in self._seen or len(self._seen) > _MOST_KEPT:
            return
        if isinstance(value, list | dict | set | deque):
            self._seen.add(id(value))
            content = value.copy()
            self._containers.append((value, content))
            for item in content.values() if isinstance(content, dict) else content:
                self._follow(item)
        elif isinstance(value, tuple):
            for item in value:
                self._follow(item)
        elif _is_plain_object(value) and _package(value) in self._packages:
            self.keep_attributes(value)


def _is_plain_object(value: Any) -> bool:
    return isinstance(getattr(value, "__dict__", None), dict) and not isinstance(
        value, type | ModuleType | nn.Module | torch.Tensor
    )


def _package(value: Any) -> str:
    return str(type(value).__module__).split(".")[0]


@contextlib.contextmanager
def untouched_process() -> Iterator[None]:
    """Put back random states, torch's modes and defaults; swallow output, warnings and logs."""
    dtype = torch.get_default_dtype()
    deterministic = torch.are_deterministic_algorithms_enabled()
    only_warning = torch.is_deterministic_algorithms_warn_only_enabled()
    grad = torch.is_grad_enabled()
    disabled = logging.root.manager.disable
    with (
        untouched_randomness(),
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
        _no_cuda(),
    ):
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        try:
            with torch.enable_grad():
                yield
        finally:
            logging.disable(disabled)
            torch.set_default_dtype(dtype)
            if torch.are_deterministic_algorithms_enabled() is not deterministic:
                torch.use_deterministic_algorithms(deterministic, warn_only=only_warning)
            torch.set_grad_enabled(grad)


@contextlib.contextmanager
def _no_cuda() -> Iterator[None]:
    """Let nothing in this thread start CUDA: a context would take a device's memory for good."""
    start: Any = torch.cuda._lazy_init
    thread = threading.get_ident()

    def refuse() -> None:
        if threading.get_ident() != thread or torch.cuda._initialized:
            start()
            return
        raise RuntimeError("CUDA is not started while a step is captured")

    torch.cuda._lazy_init = refuse
    try:
        yield
    finally:
        torch.cuda._lazy_init = start
