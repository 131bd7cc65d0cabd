"""The Lightning callback, in both of Lightning's packages, on a real Trainer."""

from __future__ import annotations

import importlib
import random
import signal
import threading
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from horus_lab.errors import OUT_OF_REACH, HorusError, NeverFits
from horus_lab.records import GraphFeatures
from lightning_callbacks import AdmissionCancelled, HorusWarning
from lightning_callbacks import callback as callback_module
from tests.callbacks.conftest import PaperBroker

FRAMEWORKS = ("lightning.pytorch", "pytorch_lightning")


@pytest.fixture(params=FRAMEWORKS)
def pl(request: pytest.FixtureRequest) -> Any:
    return importlib.import_module(request.param)


def callback_for(pl: Any, broker: PaperBroker, **options: Any) -> Any:
    """The callback as a user of this package alone would get it."""
    made = type("HorusCallback", (callback_module.HorusHooks, pl.Callback), {})
    return made(client=broker, quiet=True, **options)


def module_for(pl: Any, *, fail_at: int | None = None, late: bool = False) -> Any:
    class Net(pl.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[str] = []
            self.layers = None if late else self._made()

        def _made(self) -> nn.Module:
            return nn.Sequential(
                nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Linear(16, 3)
            )

        def configure_model(self) -> None:
            if self.layers is None:
                self.layers = self._made()

        def training_step(self, batch: Any, batch_index: int) -> torch.Tensor:
            if fail_at is not None and batch_index == fail_at:
                raise RuntimeError("the user's own mistake")
            x, y = batch
            loss = nn.functional.cross_entropy(self.layers(x), y)
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    return Net()


def loader() -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(48, 8, generator=generator)
    y = torch.randint(0, 3, (48,), generator=generator)
    return DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)


def trainer_for(pl: Any, tmp_path: Any, *callbacks: Any, **options: Any) -> Any:
    return pl.Trainer(
        **{"max_epochs": 2, **options},
        callbacks=list(callbacks),
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
    )


def test_a_fit_asks_waits_trains_and_gives_back_once(
    pl: Any, tmp_path: Any, broker: PaperBroker
) -> None:
    broker.polls = 2
    horus = callback_for(pl, broker)
    trainer_for(pl, tmp_path, horus).fit(module_for(pl), loader())
    (request,) = broker.requests
    assert request.name == "Net"
    assert request.steps == 12  # 48 samples / 8 a batch x 2 epochs
    assert isinstance(request.features, GraphFeatures)
    assert request.features.samples == 8
    # 8x16+16, 2x16 of the batch norm, 16x3+3
    assert request.features.parameters == 144 + 32 + 51
    (release,) = broker.releases
    assert (release.outcome, release.steps) == ("done", 12)
    assert horus.job is not None


def test_the_model_is_captured_after_configure_model_has_completed_it(
    pl: Any, tmp_path: Any, broker: PaperBroker
) -> None:
    trainer_for(pl, tmp_path, callback_for(pl, broker)).fit(module_for(pl, late=True), loader())
    features = broker.requests[0].features
    assert features is not None
    assert features.parameters == 144 + 32 + 51


def test_training_with_the_callback_is_bit_identical_to_training_without(
    pl: Any, tmp_path: Any, broker: PaperBroker
) -> None:
    def trained(*callbacks: Any) -> tuple[dict[str, Any], Any]:
        pl.seed_everything(5)
        model = module_for(pl)
        trainer_for(pl, tmp_path, *callbacks).fit(model, loader())
        random_states = (
            random.getstate(),
            torch.get_rng_state().tolist(),
            np.random.get_state()[1].tolist(),
        )
        return model.state_dict(), random_states

    plain, plain_random = trained()
    watched, watched_random = trained(callback_for(pl, broker))
    assert plain.keys() == watched.keys()
    for name, value in plain.items():
        assert torch.equal(value, watched[name]), name
    assert plain_random == watched_random


def test_an_exception_in_training_gives_the_slot_back_as_failed_and_reaches_the_user(
    pl: Any, tmp_path: Any, broker: PaperBroker
) -> None:
    trainer = trainer_for(pl, tmp_path, callback_for(pl, broker))
    with pytest.raises(RuntimeError, match="own mistake"):
        trainer.fit(module_for(pl, fail_at=3), loader())
    assert [r.outcome for r in broker.releases] == ["failed"]


def test_a_second_fit_of_the_same_callback_asks_again(
    pl: Any, tmp_path: Any, broker: PaperBroker
) -> None:
    horus = callback_for(pl, broker)
    for _ in range(2):
        trainer_for(pl, tmp_path, horus, max_epochs=1).fit(module_for(pl), loader())
    assert len({r.request_id for r in broker.requests}) == 2
    assert [r.outcome for r in broker.releases] == ["done", "done"]


def test_without_a_broker_there_is_one_warning_and_training_goes_on(
    pl: Any, tmp_path: Any, broker: PaperBroker
) -> None:
    broker.down = True
    trainer = trainer_for(pl, tmp_path, callback_for(pl, broker))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.fit(module_for(pl), loader())
    ours = [w for w in caught if issubclass(w.category, HorusWarning)]
    assert len(ours) == 1
    assert "no broker" in str(ours[0].message)
    assert trainer.global_step == 12


@pytest.mark.parametrize("error", OUT_OF_REACH)
def test_a_broker_that_fails_at_the_request_does_not_stop_the_training(
    pl: Any, tmp_path: Any, broker: PaperBroker, error: type[HorusError]
) -> None:
    broker.submit_error = error("It broke.")
    trainer = trainer_for(pl, tmp_path, callback_for(pl, broker))
    with pytest.warns(HorusWarning, match="It broke"):
        trainer.fit(module_for(pl), loader())
    assert trainer.global_step == 12


def test_a_run_that_never_fits_is_refused_with_the_reason(
    pl: Any, tmp_path: Any, broker: PaperBroker
) -> None:
    broker.submit_error = NeverFits("It needs 99 GiB.")
    trainer = trainer_for(pl, tmp_path, callback_for(pl, broker))
    with pytest.raises(NeverFits, match="99 GiB"):
        trainer.fit(module_for(pl), loader())


def test_an_interrupt_while_waiting_cancels_the_job_and_leaves_interrupts_working(
    pl: Any, tmp_path: Any, broker: PaperBroker
) -> None:
    broker.polls = 10**6
    broker.on_poll = lambda: signal.raise_signal(signal.SIGINT)
    trainer = trainer_for(pl, tmp_path, callback_for(pl, broker))
    with pytest.raises(AdmissionCancelled):
        trainer.fit(module_for(pl), loader())
    assert broker.cancelled == ["job-1"]
    assert broker.releases == []
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    # The kernel stays usable: the next fit works.
    broker.polls, broker.on_poll = 0, lambda: None
    trainer_for(pl, tmp_path, callback_for(pl, broker)).fit(module_for(pl), loader())
    assert [r.outcome for r in broker.releases] == ["done"]


def test_a_cancelled_run_stops_after_its_batch_and_is_released_as_cancelled(
    pl: Any, tmp_path: Any, broker: PaperBroker
) -> None:
    horus = callback_for(pl, broker)

    class Cancelling(pl.Callback):  # type: ignore[misc,name-defined]
        def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
            if trainer.global_step == 3:
                horus._admission.lease.cancelled.set()

    trainer = trainer_for(pl, tmp_path, Cancelling(), horus, max_epochs=50)
    trainer.fit(module_for(pl), loader())
    assert trainer.global_step < 12
    assert [r.outcome for r in broker.releases] == ["cancelled"]


def test_what_cannot_be_captured_gets_a_generous_reservation_of_unknown_load(
    pl: Any, tmp_path: Any, broker: PaperBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> GraphFeatures:
        raise ValueError("a very strange model")

    monkeypatch.setattr(callback_module, "_capture", broken)
    trainer = trainer_for(pl, tmp_path, callback_for(pl, broker))
    with pytest.warns(HorusWarning, match="a very strange model"):
        trainer.fit(module_for(pl), loader())
    (request,) = broker.requests
    assert request.features is None
    assert request.declared is not None
    assert request.declared.memory_bytes == 4 * 2**30 + 2 * 16 * 227
    assert request.declared.utilization is None
    assert trainer.global_step == 12


def test_validation_alone_needs_no_slot(pl: Any, tmp_path: Any, broker: PaperBroker) -> None:
    class Validated(type(module_for(pl))):  # type: ignore[misc]
        def validation_step(self, batch: Any, batch_index: int) -> None:
            self.layers(batch[0])

    trainer_for(pl, tmp_path, callback_for(pl, broker)).validate(
        Validated(), loader(), verbose=False
    )
    assert broker.requests == []


def test_the_heartbeats_end_with_the_fit(pl: Any, tmp_path: Any, broker: PaperBroker) -> None:
    trainer_for(pl, tmp_path, callback_for(pl, broker)).fit(module_for(pl), loader())
    for thread in threading.enumerate():
        if thread.name.startswith("horus-heartbeat"):
            thread.join(timeout=5)
            assert not thread.is_alive()


def test_the_class_is_made_from_the_frameworks_in_use() -> None:
    for name in FRAMEWORKS:
        importlib.import_module(name)
    from lightning_callbacks import HorusCallback

    made = HorusCallback(quiet=True)
    for name in FRAMEWORKS:
        assert isinstance(made, importlib.import_module(name).Callback)
