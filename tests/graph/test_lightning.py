"""LightningModules of both packages: what a training step reaches for is answered harmlessly."""

from __future__ import annotations

import random
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import lightning.pytorch
import numpy as np
import pytest
import pytorch_lightning
import torch
from torch import nn
from torch.nn import functional

from benchmarks.capture.reference import Loader, quiet_lightning
from benchmarks.capture.setups import habit_setups
from horus_lab.graph import capture, capture_lightning
from horus_lab.records import CaptureMethod, OperationClass, OperationStatistics, Phase

pytestmark = pytest.mark.filterwarnings("ignore")
BOTH = pytest.mark.parametrize(
    "package",
    [lightning.pytorch, pytorch_lightning],
    ids=["lightning.pytorch", "pytorch_lightning"],
)


def module_of(package: ModuleType, **methods: Any) -> Any:
    """A classifier whose named methods are replaced."""

    class Module(package.LightningModule):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(4, 3)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return functional.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    return type("Module", (Module,), methods)()


def batch() -> Any:
    return torch.randn(6, 4), torch.arange(6) % 3


def phase(features: Any, wanted: Phase) -> list[OperationStatistics]:
    return [one for one in features.operations if one.phase is wanted]


def linear(features: Any, wanted: Phase) -> tuple[int, float]:
    for one in phase(features, wanted):
        if one.operation is OperationClass.LINEAR:
            return one.launches, one.flops
    return 0, 0.0


@BOTH
def test_a_step_logs_prints_and_reads_its_trainer_without_one(package: ModuleType) -> None:
    def training_step(self: Any, batch: Any, batch_idx: int) -> Any:
        loss = functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("loss", loss, prog_bar=True)
        self.log_dict({"epoch": self.current_epoch, "step": self.global_step})
        self.print(loss)
        self.logger.experiment.add_scalar("loss", loss, self.global_step)
        assert self.trainer.is_global_zero
        assert batch_idx < self.trainer.num_training_batches
        return {"loss": loss}

    features = capture(module_of(package, training_step=training_step), batch())
    assert features.method is CaptureMethod.FAKE_STEP
    assert features.confidence == 0.95


@BOTH
def test_the_trainers_loggers_hear_nothing_and_nothing_set_on_it_stays(package: ModuleType) -> None:
    heard: list[Any] = []

    class Logger(package.loggers.CSVLogger):  # type: ignore[name-defined,misc]
        def log_metrics(self, *arguments: Any, **named: Any) -> None:
            heard.append(arguments)

    def training_step(self: Any, batch: Any, batch_idx: int) -> Any:
        loss = functional.cross_entropy(self.net(batch[0]), batch[1])
        self.logger.log_metrics({"loss": loss})
        self.trainer.should_stop = True
        self.trainer.save_checkpoint("nowhere.ckpt")
        return loss

    module = module_of(package, training_step=training_step)
    with quiet_lightning():
        trainer = package.Trainer(
            accelerator="cpu", logger=Logger("nowhere"), enable_checkpointing=False
        )
    module.trainer = trainer
    assert capture(module, batch()).method is CaptureMethod.FAKE_STEP
    assert heard == []
    assert trainer.should_stop is False
    assert module.trainer is trainer


OPTIMIZERS = {
    "one": lambda one: one,
    "list": lambda one: [one],
    "tuple": lambda one: (one,),
    "dictionary": lambda one: {"optimizer": one},
    "with scheduler": lambda one: {
        "optimizer": one,
        "lr_scheduler": torch.optim.lr_scheduler.StepLR(one, 1),
    },
    "pair": lambda one: ([one], [torch.optim.lr_scheduler.StepLR(one, 1)]),
    "pair with settings": lambda one: (
        [one],
        [{"scheduler": torch.optim.lr_scheduler.StepLR(one, 1), "interval": "step"}],
    ),
}


@pytest.mark.parametrize("form", OPTIMIZERS)
def test_every_form_of_configure_optimizers_is_understood(form: str) -> None:
    def configure_optimizers(self: Any) -> Any:
        return OPTIMIZERS[form](torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9))

    module = module_of(lightning.pytorch, configure_optimizers=configure_optimizers)
    features = capture(module, batch())
    # 4x3 weights and 3 biases, each with its momentum of 4 bytes.
    assert features.optimizer_state_bytes == 15 * 4


def test_without_an_optimizer_there_is_a_backward_pass_and_no_state() -> None:
    module = module_of(lightning.pytorch, configure_optimizers=lambda self: None)
    features = capture(module, batch())
    assert features.optimizer_state_bytes == 0
    assert not phase(features, Phase.OPTIMIZER)
    assert phase(features, Phase.BACKWARD)


@BOTH
def test_manual_optimization_steps_each_optimizer_and_toggles_the_other_ones_gradients(
    package: ModuleType,
) -> None:
    class Two(package.LightningModule):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False
            self.first = nn.Linear(4, 4, bias=False)
            self.second = nn.Linear(4, 3, bias=False)

        def training_step(self, batch: Any, batch_idx: int) -> None:
            first, _ = self.optimizers()
            self.toggle_optimizer(first)
            assert not self.second.weight.requires_grad
            loss = functional.cross_entropy(self.second(self.first(batch[0])), batch[1])
            self.manual_backward(loss)
            first.step()
            first.zero_grad()
            self.untoggle_optimizer(first)
            assert self.second.weight.requires_grad
            for scheduler in self.lr_schedulers():
                scheduler.step()

        def configure_optimizers(self) -> Any:
            made = [torch.optim.Adam(one.parameters()) for one in (self.first, self.second)]
            return made, [torch.optim.lr_scheduler.ConstantLR(one) for one in made]

    features = capture(Two(), batch())
    assert features.method is CaptureMethod.FAKE_STEP
    # Forward 6x4x4 and 6x4x3 multiply-adds; backward the second layer's input and the first
    # layer's weight: the second's weight waits for its turn, the batch needs none.
    assert linear(features, Phase.FORWARD) == (2, 2 * (6 * 16 + 6 * 12))
    assert linear(features, Phase.BACKWARD) == (2, 2 * (6 * 12 + 6 * 16))
    # Only the first has stepped: two moments of 16 values and a counter.
    assert features.optimizer_state_bytes == 2 * 16 * 4 + 4


def test_an_optimizer_that_needs_a_closure_evaluates_the_step_itself() -> None:
    def configure_optimizers(self: Any) -> Any:
        return torch.optim.LBFGS(self.parameters(), max_iter=1)

    module = module_of(lightning.pytorch, configure_optimizers=configure_optimizers)
    features = capture(module, batch())
    assert features.method is CaptureMethod.FAKE_STEP
    # One evaluation of 6x4x3 multiply-adds.
    assert linear(features, Phase.FORWARD) == (1, 2.0 * 72)
    assert phase(features, Phase.OPTIMIZER)


def test_accumulation_repeats_forward_and_backward_but_not_the_optimizer() -> None:
    once = capture_lightning(module_of(lightning.pytorch), batch())
    four = capture_lightning(module_of(lightning.pytorch), batch(), accumulate=4)
    for wanted, times in ((Phase.FORWARD, 4), (Phase.BACKWARD, 4), (Phase.OPTIMIZER, 1)):
        assert sum(one.flops for one in phase(four, wanted)) == times * sum(
            one.flops for one in phase(once, wanted)
        )


def test_a_condition_that_ends_the_step_early_is_answered_the_other_way() -> None:
    def training_step(self: Any, batch: Any, batch_idx: int) -> Any:
        loss = functional.cross_entropy(self.net(batch[0]), batch[1])
        return None if loss > 100 else loss

    features = capture(module_of(lightning.pytorch, training_step=training_step), batch())
    assert features.method is CaptureMethod.FAKE_STEP
    assert features.confidence == 0.8


def test_no_loss_is_taken_as_nan_or_infinite() -> None:
    def training_step(self: Any, batch: Any, batch_idx: int) -> Any:
        loss = functional.cross_entropy(self.net(batch[0]), batch[1])
        if torch.isnan(loss).any() or torch.isinf(loss):
            raise ValueError("no finite loss")
        return loss if torch.isfinite(loss) else None

    features = capture(module_of(lightning.pytorch, training_step=training_step), batch())
    assert features.method is CaptureMethod.FAKE_STEP


def test_a_loop_on_a_condition_ends() -> None:
    def training_step(self: Any, batch: Any, batch_idx: int) -> Any:
        scale = batch[0].abs().mean()
        while scale > 1e-3:
            scale = scale / 2
        return functional.cross_entropy(self.net(batch[0]), batch[1]) * scale

    features = capture(module_of(lightning.pytorch, training_step=training_step), batch())
    assert features.method is CaptureMethod.FAKE_STEP


def test_layers_that_setup_and_configure_model_build_are_seen_and_are_not_left_behind() -> None:
    def configure_model(self: Any) -> None:
        if not hasattr(self, "built"):
            self.built = nn.Linear(3, 3)

    def setup(self: Any, stage: str) -> None:
        self.head = nn.Linear(3, 5)

    def training_step(self: Any, batch: Any, batch_idx: int) -> Any:
        return functional.cross_entropy(self.head(self.built(self.net(batch[0]))), batch[1])

    module = module_of(
        lightning.pytorch,
        configure_model=configure_model,
        setup=setup,
        training_step=training_step,
    )
    features = capture(module, batch())
    assert features.method is CaptureMethod.FAKE_STEP
    # 4x3 + 3, 3x3 + 3 and 3x5 + 5.
    assert features.parameters == 15 + 12 + 20
    assert not hasattr(module, "built")
    assert not hasattr(module, "head")
    assert sum(1 for _ in module.parameters()) == 2


def test_what_on_after_batch_transfer_makes_of_the_batch_is_what_is_trained_on() -> None:
    def on_after_batch_transfer(self: Any, batch: Any, dataloader_idx: int) -> Any:
        return torch.cat([batch[0], batch[0]]), torch.cat([batch[1], batch[1]])

    module = module_of(lightning.pytorch, on_after_batch_transfer=on_after_batch_transfer)
    assert linear(capture(module, batch()), Phase.FORWARD) == (1, 2.0 * 12 * 12)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Several threads add a graph's messages in any order, and each order rounds differently."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


HABITS = habit_setups()


@pytest.mark.parametrize("name", HABITS)
def test_every_habit_is_captured_as_a_whole_step(name: str) -> None:
    setup = HABITS[name]
    features = capture_lightning(setup.make(), setup.batch(), precision=setup.precision)
    assert features.method is CaptureMethod.FAKE_STEP


@pytest.mark.parametrize(
    "name",
    [name for name, one in HABITS.items() if one.real and one.precision == "32-true"],
)
@pytest.mark.usefixtures("one_thread")
def test_every_habit_trains_bit_identically_after_a_capture(name: str) -> None:
    for captured, plain in zip(trained(name, look=True), trained(name, look=False), strict=True):
        assert same(captured, plain)


def trained(name: str, *, look: bool) -> tuple[Any, ...]:
    """Two steps by a Trainer, with or without a capture in a callback's `setup`."""
    setup = HABITS[name]
    torch.manual_seed(7)
    random.seed(7)
    np.random.seed(7)
    module, one, other = setup.make(), setup.batch(), setup.batch()

    class Look(lightning.pytorch.Callback):
        def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
            if look:
                features = capture_lightning(pl_module, one)
                assert features.method is CaptureMethod.FAKE_STEP

    with quiet_lightning():
        trainer = lightning.pytorch.Trainer(
            accelerator="cpu",
            max_epochs=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[Look()],
        )
        trainer.fit(module, train_dataloaders=Loader(one, other))
    state = [
        (key, value)
        for optimizer in trainer.optimizers
        for values in optimizer.state.values()
        for key, value in values.items()
        if isinstance(value, torch.Tensor)
    ]
    return (
        module.state_dict(),
        {n: p.requires_grad for n, p in module.named_parameters()},
        {n: m.training for n, m in module.named_modules()},
        state,
        sorted(set(vars(module)) - {"_trainer"}),
        {key: float(value) for key, value in trainer.callback_metrics.items()},
        torch.get_rng_state(),
        random.getstate(),
        np.random.get_state()[1].tolist(),
    )


def same(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor):
        return torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[k], right[k]) for k in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)
