"""Packed sequences, whose kernels read lengths, as evenly filled ones of the same size."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import _disable_current_modes

from horus_lab.graph import values
from horus_lab.graph.representative import Representative


class _Packing(NamedTuple):
    """Of one packed batch; its `sizes` are kept, so that their id stays theirs."""

    sizes: torch.Tensor
    steps: int
    samples: int
    rows: int


class PackedSequences:
    """Answers for packing, unpacking and the recurrent layers in between.

    Lengths that are not known are taken as full, which no batch exceeds.
    """

    def __init__(self, representative: Representative) -> None:
        self._representative = representative
        self._packed: dict[int, _Packing] = {}

    def answer(self, function: Any, arguments: Any) -> Any:
        """The function's result where it is one of these; else `NotImplemented`."""
        if function is _PACK:
            return self._pack(*arguments)
        if function is _PAD:
            return self._pad(*arguments)
        if function in _RECURRENT and len(arguments) == _ARGUMENTS_WHEN_PACKED:
            return self._recurrent(function, *arguments)
        return NotImplemented

    def _pack(self, padded: torch.Tensor, lengths: torch.Tensor, batch_first: bool) -> Any:
        samples, steps = padded.shape[:2] if batch_first else reversed(padded.shape[:2])
        self._representative.guesses += 1
        real = values.known(lengths)
        if real is None:
            sizes = torch.full((steps,), samples, dtype=torch.int64)
            rows = steps * samples
        else:
            with _disable_current_modes():
                steps, rows = int(real.max()), int(real.sum())
                counted = (real[None] > torch.arange(steps)[:, None]).sum(1)
            sizes = values.with_value(torch.empty((steps,), dtype=torch.int64), counted)
        self._packed[id(sizes)] = _Packing(sizes, steps, samples, rows)
        return _rows(padded.flatten(0, 1), rows), sizes

    def _pad(
        self, data: torch.Tensor, sizes: torch.Tensor, batch_first: bool, value: float, total: int
    ) -> Any:
        del value
        packing = self._packed[id(sizes)]
        steps = max(packing.steps, total)
        lengths = torch.full((packing.samples,), packing.steps, dtype=torch.int64)
        shape = (packing.samples, steps) if batch_first else (steps, packing.samples)
        return _rows(data, steps * packing.samples).reshape(*shape, *data.shape[1:]), lengths

    def _recurrent(self, function: Any, data: torch.Tensor, sizes: Any, *rest: Any) -> Any:
        packing = self._packed.get(id(sizes))
        if packing is None:
            return function(data, sizes, *rest)
        width = -(-packing.rows // packing.steps)
        first, *others = rest
        several = isinstance(first, tuple | list)
        states = [one[:, :width] for one in (first if several else [first])]
        output, *last = function(
            _rows(data, packing.steps * width).reshape(packing.steps, width, -1),
            states if several else states[0],
            *others,
            False,
        )
        every = torch.zeros((packing.samples,), dtype=torch.int64)
        return (
            output.flatten(0, 1)[: packing.rows],
            *(state.index_select(1, every) for state in last),
        )


def _rows(data: torch.Tensor, count: int) -> torch.Tensor:
    """So many rows made of the data's, differentiably."""
    if len(data) == count:
        return data
    return data.index_select(0, torch.zeros((count,), dtype=torch.int64))


_FUNCTIONS = torch._C._VariableFunctions
_PACK = _FUNCTIONS._pack_padded_sequence
_PAD = _FUNCTIONS._pad_packed_sequence
_RECURRENT = tuple(getattr(_FUNCTIONS, name) for name in ("lstm", "gru", "rnn_tanh", "rnn_relu"))
_ARGUMENTS_WHEN_PACKED = 9
