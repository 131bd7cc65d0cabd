"""Leaves the user's process as it was: modules, random states, flags, logs and output."""

from __future__ import annotations

import contextlib
import io
import logging
import random
import warnings
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn


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
    """Put back every submodule's attributes, and the content of the containers among them."""
    kept: list[tuple[nn.Module, dict[str, Any]]] = []
    contents: list[tuple[Any, Any]] = []
    for each in module.modules():
        attributes = dict(vars(each))
        kept.append((each, attributes))
        for value in attributes.values():
            if isinstance(value, list | dict | set | deque):
                contents.append((value, value.copy()))
    gradients = [(parameter, parameter.grad) for parameter in module.parameters()]
    try:
        yield
    finally:
        for each, attributes in kept:
            vars(each).clear()
            vars(each).update(attributes)
        for container, content in contents:
            container.clear()
            if isinstance(container, list | deque):
                container.extend(content)
            else:
                container.update(content)
        for parameter, gradient in gradients:
            parameter.grad = gradient


@contextlib.contextmanager
def untouched_process() -> Iterator[None]:
    """Put back random states, torch's modes and defaults; swallow output, warnings and logs."""
    dtype = torch.get_default_dtype()
    grad = torch.is_grad_enabled()
    disabled = logging.root.manager.disable
    with (
        untouched_randomness(),
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        try:
            with torch.enable_grad():
                yield
        finally:
            logging.disable(disabled)
            torch.set_default_dtype(dtype)
            torch.set_grad_enabled(grad)
