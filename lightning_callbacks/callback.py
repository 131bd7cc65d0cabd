"""`HorusCallback`: the Lightning callback. Life cycle only; the work is in `admission`.

It serves `lightning.pytorch` and `pytorch_lightning` alike. The two have separate `Callback`
classes, so the class is put together at first use from the ones that are imported.

Lightning calls a callback's `setup` before the module's own `setup` and `configure_model`; the
model is complete only when the strategy is about to move it to the device. So `setup` hooks the
accelerator's `setup(trainer)`, which every strategy calls right before the move: there the step
is captured, the slot is asked for, and a single device's strategy is pointed at what was granted.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import sys
from typing import TYPE_CHECKING, Any

from horus_lab.client.lease import Outcome
from horus_lab.graph import untouched_randomness
from horus_lab.records import Constraints, DeclaredNeeds, GraphFeatures, Job
from lightning_callbacks import batches
from lightning_callbacks.admission import Admission, AdmissionCancelled, Needs

if TYPE_CHECKING:
    from horus_lab.client import HorusClient


class HorusHooks:
    """The callback's hooks, without a framework's base class.

    Args:
        name: what people see; the module's class name by default.
        exclusive: no neighbours (for benchmarks).
        max_slowdown: how much slower this run may get through neighbours (1.25: a quarter).
        priority: higher goes first within your fair share.
        memory_bytes: declares the memory where the capture cannot know it.
        client: a client to use instead of the discovered broker.
        quiet: show nothing.
    """

    def __init__(
        self,
        *,
        name: str = "",
        exclusive: bool = False,
        max_slowdown: float = 1.25,
        priority: int = 0,
        memory_bytes: int | None = None,
        client: HorusClient | None = None,
        quiet: bool = False,
    ) -> None:
        super().__init__()
        self._name = name
        self._constraints = Constraints(
            exclusive=exclusive, max_slowdown=max_slowdown, priority=priority
        )
        self._declared = DeclaredNeeds(memory_bytes=memory_bytes) if memory_bytes else None
        self._client = client
        self._quiet = quiet
        self._admission: Admission | None = None
        self._last: Admission | None = None
        self._hooked: Any = None

    @property
    def job(self) -> Job | None:
        """The run's job as last seen; `None` where there was no broker."""
        return self._last.job if self._last is not None else None

    @property
    def features(self) -> GraphFeatures | None:
        """The captured graph features of the last run."""
        return self._last.features if self._last is not None else None

    # --- Lightning's hooks ----------------------------------------------------------------------

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Arrange for the admission right before the model moves to the device."""
        if stage != "fit" or not trainer.is_global_zero:
            return
        accelerator = trainer.strategy.accelerator
        self._unhook()

        def setup_after_admission(trainer: Any) -> None:
            self._unhook()
            self._admit(trainer, pl_module)
            accelerator.setup(trainer)

        accelerator.setup = setup_after_admission
        self._hooked = accelerator

    def on_train_batch_end(
        self,
        trainer: Any,
        pl_module: Any,  # noqa: ARG002 - Lightning's signature
        outputs: Any,  # noqa: ARG002
        batch: Any,  # noqa: ARG002
        batch_idx: int,  # noqa: ARG002
    ) -> None:
        """Report progress; stop where somebody cancelled the job."""
        admission = self._admission
        if admission is None:
            return
        admission.report(steps=trainer.global_step, allocator_peak_bytes=_allocator_peak(trainer))
        if admission.cancelled:
            trainer.should_stop = True

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Give the slot back."""
        cancelled = self._admission is not None and self._admission.cancelled
        self._leave("cancelled" if cancelled else "done")

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Give the slot back whatever went wrong."""
        del trainer, pl_module
        if isinstance(exception, KeyboardInterrupt):
            self._leave("cancelled", "interrupted")
        else:
            self._leave("failed", type(exception).__name__)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """The last hook: nothing may be left held."""
        del trainer, pl_module
        if stage == "fit":
            self._leave("done")

    def _unhook(self) -> None:
        """Give the accelerator its own `setup` back (a failing `setup` hook may have kept it)."""
        accelerator, self._hooked = self._hooked, None
        if accelerator is not None:
            vars(accelerator).pop("setup", None)

    # --- the admission --------------------------------------------------------------------------

    def _admit(self, trainer: Any, pl_module: Any) -> None:
        admission = Admission(client=self._client, quiet=self._quiet)
        self._last = admission
        loader = _Loader(trainer)
        device = admission.enter(
            Needs(
                name=self._name or type(pl_module).__name__,
                capture=lambda: _capture(trainer, pl_module, loader),
                parameters=_parameter_count(pl_module),
                declared=self._declared,
                constraints=self._constraints,
                devices=trainer.num_devices if _device_type(trainer) == "cuda" else 1,
                device_type=_device_type(trainer),
                steps=loader.optimizer_steps(),
            )
        )
        self._admission = admission
        if device is not None:
            try:
                _use(trainer, device)
            except BaseException:
                self._leave("failed", "hand-over")
                raise

    def _leave(self, outcome: Outcome, message: str = "") -> None:
        self._unhook()
        admission, self._admission = self._admission, None
        if admission is not None:
            admission.leave(outcome, message)


class _Loader:
    """The training data as the Trainer will ask for it, looked at without disturbing it."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._loader: Any = None
        self._asked = False

    def get(self) -> Any:
        if not self._asked:
            self._asked = True
            source = self._trainer.fit_loop._data_source
            with untouched_randomness():
                self._loader = source.dataloader()
        return self._loader

    def optimizer_steps(self) -> int | None:
        """How many optimizer steps the fit will take, where limits and lengths tell."""
        trainer = self._trainer
        steps = trainer.max_steps if trainer.max_steps and trainer.max_steps > 0 else math.inf
        epochs = trainer.max_epochs if trainer.max_epochs and trainer.max_epochs > 0 else math.inf
        # A loader that cannot be made or measured leaves the number of steps unknown.
        with contextlib.suppress(Exception):
            count = batches.batches_per_epoch(self.get())
            if count is not None:
                limit = trainer.limit_train_batches
                count = min(count, limit) if isinstance(limit, int) else int(count * limit)
                per_epoch = math.ceil(count / trainer.accumulate_grad_batches)
                steps = min(steps, per_epoch * epochs)
        return max(1, int(steps)) if math.isfinite(steps) else None


def _capture(trainer: Any, pl_module: Any, loader: _Loader) -> GraphFeatures:
    from horus_lab.graph import capture_lightning

    batch = batches.peek(loader.get())
    return capture_lightning(
        pl_module,
        batch,
        precision=str(trainer.precision),
        accumulate=int(trainer.accumulate_grad_batches),
    )


def _device_type(trainer: Any) -> str:
    return str(trainer.strategy.root_device.type)


def _use(trainer: Any, device: str) -> None:
    """Point a single device's strategy at the granted device, before the model moves there."""
    import torch

    granted = torch.device(device)
    strategy = trainer.strategy
    if granted.type != "cuda" or not hasattr(strategy, "_root_device"):
        return
    if strategy.root_device != granted:
        strategy._root_device = granted
    torch.cuda.set_device(granted)


def _allocator_peak(trainer: Any) -> int | None:
    root = trainer.strategy.root_device
    if root.type != "cuda":
        return None
    import torch

    return int(torch.cuda.max_memory_reserved(root))


def _parameter_count(module: Any) -> int:
    from torch.nn.parameter import is_lazy

    return sum(0 if is_lazy(p) else p.numel() for p in module.parameters())


def _callback_bases() -> tuple[type, ...]:
    """The `Callback` classes of the frameworks in use: imported ones, else an installed one."""
    names = ("lightning.pytorch", "pytorch_lightning")
    imported = [name for name in names if name in sys.modules]
    for name in imported or names:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
            if not imported:
                imported = [name]
                break
    if not imported:
        raise ImportError(
            "HorusCallback needs lightning or pytorch-lightning: pip install lightning"
        )
    return tuple(sys.modules[name].Callback for name in imported)


if TYPE_CHECKING:
    HorusCallback = HorusHooks
else:

    def __getattr__(name: str) -> Any:
        if name != "HorusCallback":
            raise AttributeError(name)
        made = type(
            "HorusCallback", (HorusHooks, *_callback_bases()), {"__doc__": HorusHooks.__doc__}
        )
        made.__module__ = __name__
        globals()["HorusCallback"] = made
        return made


__all__ = ["AdmissionCancelled", "HorusCallback", "HorusHooks"]
