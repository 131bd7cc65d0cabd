"""`horus_lab.slot`: a lease as a context manager."""

from __future__ import annotations

import pytest
import torch

from horus_lab.errors import (
    OUT_OF_REACH,
    CaptureFailed,
    HorusError,
    InvalidRequest,
    TooManyJobs,
)
from horus_lab.slot import slot
from tests.callbacks.conftest import PaperBroker

GIB = 2**30


def test_a_block_holds_its_slot_and_counts_its_steps() -> None:
    broker = PaperBroker(polls=1)
    with slot(memory="2GiB", client=broker, quiet=True) as held:  # type: ignore[arg-type]
        assert held.device == "cpu"
        held.step()
        held.step(2)
    (request,) = broker.requests
    assert request.declared is not None
    assert request.declared.memory_bytes == 2 * GIB
    assert [(r.outcome, r.steps) for r in broker.releases] == [("done", 3)]


@pytest.mark.parametrize(
    ("error", "outcome"), [(ValueError, "failed"), (KeyboardInterrupt, "cancelled")]
)
def test_a_block_that_raises_gives_its_slot_back(error: type[BaseException], outcome: str) -> None:
    broker = PaperBroker()
    with (
        pytest.raises(error),
        slot(memory=GIB, client=broker, quiet=True),  # type: ignore[arg-type]
    ):
        raise error
    assert [r.outcome for r in broker.releases] == [outcome]


def test_a_model_is_captured() -> None:
    broker = PaperBroker()
    model = torch.nn.Linear(4, 2)
    with slot(model, torch.zeros(3, 4), client=broker, quiet=True):  # type: ignore[arg-type]
        pass
    features = broker.requests[0].features
    assert features is not None
    assert features.parameters == 10


def test_a_batch_of_the_wrong_shape_is_refused_before_anything_is_asked() -> None:
    broker = PaperBroker()
    model = torch.nn.Linear(4, 2)
    with (
        pytest.raises(CaptureFailed),
        slot(model, torch.zeros(3, 5), client=broker, quiet=True),  # type: ignore[arg-type]
    ):
        pass
    assert broker.requests == []


def test_neither_a_model_nor_memory_is_refused_with_both_ways_shown() -> None:
    with pytest.raises(InvalidRequest, match=r'memory="4GiB"'):
        slot()


@pytest.mark.parametrize("error", OUT_OF_REACH)
def test_without_a_working_broker_the_block_runs_with_a_warning(error: type[HorusError]) -> None:
    broker = PaperBroker()
    broker.submit_error = error("This one does not answer.")
    with (
        pytest.warns(UserWarning, match="no working broker"),
        slot(memory=GIB, client=broker, quiet=True) as held,  # type: ignore[arg-type]
    ):
        held.step()
    assert held.device is None


def test_a_refusal_that_protects_others_is_raised() -> None:
    broker = PaperBroker()
    broker.submit_error = TooManyJobs("Your queue is full.", hint="Cancel one.")
    with (
        pytest.raises(TooManyJobs),
        slot(memory=GIB, client=broker, quiet=True),  # type: ignore[arg-type]
    ):
        pass
