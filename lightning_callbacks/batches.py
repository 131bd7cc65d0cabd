"""A training batch before training starts, without leaving a trace.

The batch only has to have the right shapes and types. A dataset that can be indexed is asked for
its first samples in this process, with every random state put back; anything that can only be
iterated is iterated in a forked child, which sends back shapes and types, so that no iterator,
file position or counter of the user's moves.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from horus_lab.errors import CaptureFailed
from horus_lab.graph import untouched_randomness

_CHILD_SECONDS = 20.0
_MAX_DESCRIPTION_BYTES = 16 * 2**20


def peek(loader: Any) -> Any:
    """A batch like the loader's first.

    Raises:
        CaptureFailed: the loader cannot be looked into without disturbing it.
    """
    if isinstance(loader, dict):
        return {key: peek(value) for key, value in loader.items()}
    if isinstance(loader, list | tuple) and loader and all(_is_loader(one) for one in loader):
        return type(loader)(peek(one) for one in loader)
    if isinstance(loader, list | tuple):
        if not loader:
            raise CaptureFailed("The training data is an empty list.")
        return loader[0]
    dataset = getattr(loader, "dataset", None)
    size = _batch_size(loader)
    if dataset is not None and size is not None and hasattr(dataset, "__getitem__"):
        with contextlib.suppress(TypeError), untouched_randomness():
            count = min(size, len(dataset))
            if count:
                return loader.collate_fn([dataset[index] for index in range(count)])
    return _peek_in_child(loader)


def batches_per_epoch(loader: Any) -> int | None:
    """How many batches one pass gives, where the loader knows."""
    try:
        return len(loader)
    except TypeError:
        return None


def _is_loader(candidate: Any) -> bool:
    return hasattr(candidate, "dataset") and hasattr(candidate, "collate_fn")


def _batch_size(loader: Any) -> int | None:
    size = getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
    if size is None:
        size = getattr(loader, "batch_size", None)
    return size if isinstance(size, int) and size > 0 else None


def _peek_in_child(loader: Any) -> Any:
    """Iterate once in a forked child; shapes and types come back through a pipe as JSON."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        _child(loader, reader, writer)
    os.close(writer)
    try:
        data = _read(reader, time.monotonic() + _CHILD_SECONDS)
    finally:
        os.close(reader)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    if not data:
        raise CaptureFailed(
            "The training data could not be looked into without disturbing it.",
            hint="Set example_input_array, or declare memory_bytes.",
        )
    return _rebuild(msgspec.json.decode(data, type=_Description))


def _child(loader: Any, reader: int, writer: int) -> None:
    try:
        import torch

        os.close(reader)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        # The parent's OpenMP threads do not exist here; one thread needs none.
        torch.set_num_threads(1)
        if hasattr(loader, "num_workers"):
            # Workers of this child would outlive it; it fetches its one batch by itself.
            for name, value in (
                ("num_workers", 0),
                ("persistent_workers", False),
                ("prefetch_factor", None),
                ("timeout", 0),
                ("pin_memory", False),
            ):
                object.__setattr__(loader, name, value)
        payload = memoryview(msgspec.json.encode(_describe(next(iter(loader)))))
        while payload:
            payload = payload[os.write(writer, payload) :]
    finally:
        # Neither the user's exit handlers nor the kernel's may run in the copy.
        os._exit(0)


def _read(reader: int, deadline: float) -> bytes:
    chunks: list[bytes] = []
    size = 0
    while size <= _MAX_DESCRIPTION_BYTES:
        ready, _, _ = select.select([reader], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return b""
        chunk = os.read(reader, 65536)
        if not chunk:
            return b"".join(chunks)
        chunks.append(chunk)
        size += len(chunk)
    return b""


class _Description(msgspec.Struct):
    """A batch's structure: a tensor, a nest, or a plain value."""

    kind: Literal["tensor", "list", "tuple", "dict", "value"]
    shape: list[int] = []
    dtype: str = ""
    items: list[_Description] = []
    keys: list[str] = []
    value: str | int | float | bool | None = None


def _describe(batch: Any) -> _Description:
    import torch

    if isinstance(batch, torch.Tensor):
        return _Description(kind="tensor", shape=list(batch.shape), dtype=str(batch.dtype)[6:])
    if isinstance(batch, Mapping):
        return _Description(
            kind="dict",
            keys=[str(key) for key in batch],
            items=[_describe(value) for value in batch.values()],
        )
    if isinstance(batch, list | tuple):
        return _Description(
            kind="tuple" if isinstance(batch, tuple) else "list",
            items=[_describe(value) for value in batch],
        )
    if batch is None or isinstance(batch, str | int | float | bool):
        return _Description(kind="value", value=batch)
    raise TypeError(f"a {type(batch).__name__} in a batch")


def _rebuild(description: _Description) -> Any:
    """Zeros in place of the values: the smallest index and class are valid everywhere."""
    import torch

    if description.kind == "tensor":
        dtype = getattr(torch, description.dtype)
        # Expanded from one element, a batch of any size costs nothing here.
        return torch.zeros((), dtype=dtype).expand(description.shape)
    items = [_rebuild(item) for item in description.items]
    if description.kind == "dict":
        return dict(zip(description.keys, items, strict=True))
    if description.kind == "value":
        return description.value
    return tuple(items) if description.kind == "tuple" else items
