"""A batch is looked at without leaving a trace."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from horus_lab.errors import CaptureFailed
from lightning_callbacks import batches


class Noisy(Dataset):  # type: ignore[type-arg]
    """Draws from every generator that a dataset may use."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> tuple[torch.Tensor, float, float]:
        return torch.randn(3), random.random(), float(np.random.rand())


class Stream(IterableDataset):  # type: ignore[type-arg]
    """Can be iterated once: what was taken is gone."""

    def __init__(self) -> None:
        self.taken = 0

    def __iter__(self) -> Iterator[dict[str, torch.Tensor | str]]:
        while self.taken < 100:
            self.taken += 1
            yield {"x": torch.full((4,), float(self.taken)), "name": "a"}


def states() -> tuple[object, ...]:
    return (random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist())


def test_an_indexed_dataset_gives_its_batch_and_every_generator_stays_where_it_was() -> None:
    loader = DataLoader(Noisy(), batch_size=4, shuffle=True, generator=torch.Generator())
    own = loader.generator.get_state()
    before = states()
    batch = batches.peek(loader)
    assert batch[0].shape == (4, 3)
    assert states() == before
    assert torch.equal(loader.generator.get_state(), own)


def test_the_order_of_a_shuffled_loader_is_the_same_after_a_look() -> None:
    data = TensorDataset(torch.arange(20))

    def order(look: bool) -> list[int]:
        torch.manual_seed(3)
        loader = DataLoader(data, batch_size=5, shuffle=True)
        if look:
            batches.peek(loader)
        return [int(x) for (batch,) in loader for x in batch]

    assert order(look=True) == order(look=False)


def test_a_short_dataset_gives_what_it_has() -> None:
    (batch,) = batches.peek(DataLoader(TensorDataset(torch.arange(3)), batch_size=8))
    assert batch.shape == (3,)


def test_a_stream_is_read_in_a_child_so_that_nothing_of_it_is_used_up() -> None:
    stream = Stream()
    batch = batches.peek(DataLoader(stream, batch_size=2))
    assert stream.taken == 0
    assert batch["x"].shape == (2, 4)
    assert batch["x"].dtype == torch.float32
    assert batch["name"] == ["a", "a"]


def test_a_stream_with_workers_starts_none() -> None:
    loader = DataLoader(Stream(), batch_size=2, num_workers=2, persistent_workers=True)
    assert batches.peek(loader)["x"].shape == (2, 4)
    assert loader.num_workers == 2


def test_several_loaders_give_several_batches() -> None:
    loader = DataLoader(TensorDataset(torch.arange(6)), batch_size=2)
    found = batches.peek({"a": loader, "b": [loader, loader]})
    assert found["a"][0].shape == (2,)
    assert len(found["b"]) == 2


def test_a_list_of_ready_batches_gives_its_first() -> None:
    first = torch.ones(2)
    assert batches.peek([first, torch.zeros(2)]) is first


class Broken(IterableDataset):  # type: ignore[type-arg]
    def __iter__(self) -> Iterator[torch.Tensor]:
        raise RuntimeError("the file is not there")


def test_data_that_cannot_be_looked_at_is_a_failed_capture_with_a_way_out() -> None:
    with pytest.raises(CaptureFailed, match="memory_bytes"):
        batches.peek(DataLoader(Broken()))
