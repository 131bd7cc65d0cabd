"""LightningModules as people write them, each with a habit that a capture has to live with.

Every module is small enough for a real step on the CPU. Losses and data mean nothing.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import lightning.pytorch as pl
import torch
import torchmetrics
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

WIDTH = 64
CLASSES = 10


def perceptron(inputs: int = WIDTH, outputs: int = CLASSES) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 256), nn.ReLU(), nn.Linear(256, outputs))


def pairs(samples: int = 128) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(samples, WIDTH), torch.randint(0, CLASSES, (samples,))


class Classifier(pl.LightningModule):
    """The plain case that the others change."""

    def __init__(self) -> None:
        super().__init__()
        self.net: nn.Module = perceptron()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        del batch_idx
        x, y = batch
        return functional.cross_entropy(self(x), y)

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=1e-3)


class Logging(Classifier):
    """Logs everything, keeps torchmetrics, and reads the Trainer."""

    def __init__(self) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.accuracy = torchmetrics.classification.MulticlassAccuracy(CLASSES)
        self.mean = torchmetrics.MeanMetric()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        logits = self(x)
        loss = functional.cross_entropy(logits, y)
        self.accuracy(logits, y)
        self.mean.update(loss)
        self.log("loss", loss, prog_bar=True, on_step=True, on_epoch=True)
        self.log("accuracy", self.accuracy)
        self.log_dict({"epoch": float(self.current_epoch), "step": float(self.global_step)})
        if self.trainer.is_global_zero and self.logger is not None:
            self.logger.log_metrics({"loss": loss.item()}, batch_idx)
        self.print("loss", loss)
        return {"loss": loss, "logits": logits.detach()}


class Reading(Classifier):
    """Reads values out of tensors, and branches on them."""

    def __init__(self) -> None:
        super().__init__()
        self.history: list[float] = []
        self.nested: dict[str, list[float]] = {"loss": []}

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        del batch_idx
        x, y = batch
        logits = self(x)
        loss = functional.cross_entropy(logits, y)
        print(loss)
        self.history.append(loss.item())
        self.nested["loss"].append(float(loss))
        if loss > 3:
            loss = loss * 0.5
        if torch.isnan(loss).any() or not torch.isfinite(loss):
            return None
        predicted = logits.detach().argmax(1).cpu().numpy()
        self.hits = int((predicted == y.cpu().numpy()).sum())
        return loss


class Masking(Classifier):
    """Sizes that depend on data."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        del batch_idx
        x, y = batch
        chosen = y > 4
        logits = self(x[chosen])
        rows = torch.nonzero(y <= 4).squeeze(1)
        others = self(x[rows])
        classes = torch.unique(y)
        loss = functional.cross_entropy(logits, y[chosen]) + others.masked_select(others > 0).mean()
        return loss + 0.0 * classes.float().sum()


class LateBuilt(Classifier):
    """Lazy layers."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.LazyLinear(256), nn.LazyBatchNorm1d(), nn.LazyLinear(CLASSES))


class BuiltByHook(Classifier):
    """Builds its layers in `configure_model`, as sharded strategies want it."""

    def __init__(self) -> None:
        super().__init__()
        self.net = None  # type: ignore[assignment]

    def configure_model(self) -> None:
        if self.net is None:
            self.net = perceptron()


class Adversarial(pl.LightningModule):
    """A DCGAN by hand: two optimizers, toggles, schedulers, manual backward."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.generator = nn.Sequential(
            nn.ConvTranspose2d(16, 32, 4), nn.BatchNorm2d(32), nn.ReLU(inplace=True),
            nn.ConvTranspose2d(32, 16, 4, 2, 1), nn.BatchNorm2d(16), nn.ReLU(inplace=True),
            nn.ConvTranspose2d(16, 1, 4, 2, 1), nn.Tanh(),
        )  # fmt: skip
        self.discriminator = nn.Sequential(
            nn.Conv2d(1, 16, 4, 2, 1), nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(16, 32, 4, 2, 1), nn.LeakyReLU(0.2, inplace=True),
            nn.Flatten(), nn.Linear(32 * 16, 1),
        )  # fmt: skip

    def training_step(self, batch: Any, batch_idx: int) -> None:
        del batch_idx
        images, _ = batch
        first, second = self.optimizers()
        scheduler, _ = self.lr_schedulers()
        noise = torch.randn(len(images), 16, 1, 1, device=self.device)
        ones = torch.ones(len(images), 1, device=self.device)
        self.toggle_optimizer(first)
        fooled = functional.binary_cross_entropy_with_logits(
            self.discriminator(self.generator(noise)), ones
        )
        first.zero_grad()
        self.manual_backward(fooled)
        self.clip_gradients(first, gradient_clip_val=1.0, gradient_clip_algorithm="norm")
        first.step()
        self.untoggle_optimizer(first)
        self.toggle_optimizer(second)
        real = functional.binary_cross_entropy_with_logits(self.discriminator(images), ones)
        fake = functional.binary_cross_entropy_with_logits(
            self.discriminator(self.generator(noise).detach()), 1 - ones
        )
        second.zero_grad()
        self.manual_backward((real + fake) / 2)
        second.step()
        self.untoggle_optimizer(second)
        scheduler.step()
        self.log_dict({"generator": fooled, "discriminator": real})

    def configure_optimizers(self) -> Any:
        optimizers = [
            torch.optim.Adam(self.generator.parameters(), lr=2e-4, betas=(0.5, 0.999)),
            torch.optim.Adam(self.discriminator.parameters(), lr=2e-4),
        ]
        return optimizers, [torch.optim.lr_scheduler.StepLR(one, 10) for one in optimizers]


class Accumulating(Classifier):
    """Accumulates by hand: steps at every fourth batch only."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        optimizer = self.optimizers()
        for part, target in zip(x.chunk(4), y.chunk(4), strict=True):
            self.manual_backward(functional.cross_entropy(self(part), target) / 4)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if self.trainer.is_last_batch:
            self.log("last", float(batch_idx))


class WithClosure(Classifier):
    """LBFGS, which evaluates its closure again and again."""

    def configure_optimizers(self) -> Any:
        return torch.optim.LBFGS(self.parameters(), max_iter=2, history_size=3)


class Scheduled(Classifier):
    """Groups, a scheduler by the Trainer's number of steps, a dictionary of both."""

    def configure_optimizers(self) -> Any:
        weights = [p for p in self.parameters() if p.dim() > 1]
        others = [p for p in self.parameters() if p.dim() <= 1]
        optimizer = torch.optim.AdamW(
            [{"params": weights, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
            lr=1e-3,
        )
        scheduler = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, 1e-2, total_steps=int(self.trainer.estimated_stepping_batches) + 1
        )
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }


class Checkpointed(Classifier):
    """Recomputes its blocks in the backward pass."""

    reentrant = False

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Dropout(0.1)) for _ in range(6)]
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.clone().requires_grad_()
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant)
        return self.net(x)


class CheckpointedByReentry(Checkpointed):
    reentrant = True


class Tied(pl.LightningModule):
    """One weight for the embedding and the head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(500, WIDTH)
        self.body = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, 500, bias=False)
        self.head.weight = self.embedding.weight

    def training_step(self, batch: Any) -> Any:
        states, _ = self.body(self.embedding(batch["tokens"]))
        return functional.cross_entropy(self.head(states).flatten(0, 1), batch["next"].flatten())

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)]


class Averaged(Classifier):
    """Keeps a running average of its weights, updated inside the step."""

    def __init__(self) -> None:
        super().__init__()
        self.average = copy.deepcopy(self.net).requires_grad_(requires_grad=False)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        with torch.no_grad():
            for kept, new in zip(self.average.parameters(), self.net.parameters(), strict=True):
                kept.mul_(0.99).add_(new, alpha=0.01)
            target = self.average(batch[0])
        return loss + functional.mse_loss(self(batch[0]), target)


class Banked(Classifier):
    """Metric learning with a memory bank that outweighs the model, and a pointer into it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("bank", torch.randn(8192, CLASSES))
        self.register_buffer("pointer", torch.zeros(1, dtype=torch.long))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        del batch_idx
        x, _ = batch
        embedded = functional.normalize(self(x), dim=1)
        logits = embedded @ self.bank.clone().t() / 0.1
        loss = functional.cross_entropy(logits, torch.arange(len(x), device=self.device))
        start = int(self.pointer)
        self.bank[start : start + len(x)] = embedded.detach()
        self.pointer[0] = (start + len(x)) % len(self.bank)
        return loss


class Adapted(Classifier):
    """A frozen network with low-rank adapters."""

    def __init__(self) -> None:
        super().__init__()
        self.net.requires_grad_(requires_grad=False)
        self.down = nn.Linear(WIDTH, 4, bias=False)
        self.up = nn.Linear(4, CLASSES, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x) + self.up(self.down(x))

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW([p for p in self.parameters() if p.requires_grad])


class _Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return 2 * x * gradient


class OwnFunction(Classifier):
    """Its own autograd function and its own optimizer."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        square: torch.Tensor = _Square.apply(self.net(x))
        return square

    def configure_optimizers(self) -> Any:
        return Signed(self.parameters())


class Signed(torch.optim.Optimizer):
    """A hand-written optimizer with an 8-bit state, as quantized ones keep it."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 1e-3})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["sign"] = torch.zeros(p.shape, dtype=torch.int8, device=p.device)
                state["sign"].copy_(p.grad.sign())
                p.add_(state["sign"].to(p.dtype), alpha=-group["lr"])
        return loss


class Compiled(Classifier):
    """Compiled inside, as people speed their network up."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.compile(self.net)  # type: ignore[assignment]


class Parallel(Classifier):
    """A leftover of an earlier time."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.DataParallel(self.net)


class ChannelsLast(pl.LightningModule):
    """A convolutional network in another memory format, with hooks that keep activations."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
            nn.Conv2d(16, 32, 3, 2), nn.BatchNorm2d(32), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, CLASSES),
        ).to(memory_format=torch.channels_last)  # fmt: skip
        self.kept: dict[str, torch.Tensor] = {}
        self.net[0].register_forward_hook(self._keep)

    def _keep(self, module: nn.Module, inputs: Any, output: torch.Tensor) -> None:
        del module, inputs
        self.kept["first"] = output

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        del batch_idx
        x, y = batch
        return functional.cross_entropy(self.net(x.to(memory_format=torch.channels_last)), y)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9, nesterov=True)


@dataclass
class Graphs:
    """A batch of graphs as some loaders give it."""

    nodes: torch.Tensor
    edges: torch.Tensor
    owner: torch.Tensor
    y: torch.Tensor
    graphs: int


class MessagePassing(pl.LightningModule):
    """A graph network with index_add and scatter."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(2 * 16, 16) for _ in range(3)])
        self.head = nn.Linear(16, CLASSES)

    def training_step(self, batch: Graphs, batch_idx: int) -> Any:
        del batch_idx
        nodes = batch.nodes
        source, target = batch.edges
        for layer in self.layers:
            messages = layer(torch.cat([nodes[source], nodes[target]], 1)).relu()
            nodes = nodes + torch.zeros_like(nodes).index_add(0, target, messages)
        pooled = torch.zeros(batch.graphs, 16, device=nodes.device, dtype=nodes.dtype)
        pooled = pooled.scatter_add(0, batch.owner[:, None].expand(-1, 16), nodes)
        return functional.cross_entropy(self.head(pooled), batch.y)

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters())


class Ragged(pl.LightningModule):
    """Sequences of many lengths in a list, packed for an LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.LSTM(8, 32, 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(64, CLASSES)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        del batch_idx
        sequences, y = batch
        padded = nn.utils.rnn.pad_sequence(sequences, batch_first=True)
        lengths = torch.tensor([len(one) for one in sequences])
        packed = nn.utils.rnn.pack_padded_sequence(
            padded, lengths, batch_first=True, enforce_sorted=False
        )
        _, (hidden, _) = self.body(packed)
        return functional.cross_entropy(self.head(torch.cat([hidden[-1], hidden[-2]], 1)), y)

    def configure_optimizers(self) -> Any:
        return torch.optim.RMSprop(self.parameters())


class Policy(pl.LightningModule):
    """PPO's update: several passes over shuffled parts of a rollout, by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.actor = perceptron(WIDTH, 4)
        self.critic = perceptron(WIDTH, 1)

    def training_step(self, batch: Any, batch_idx: int) -> None:
        del batch_idx
        seen, taken, before, returns = batch
        optimizer = self.optimizers()
        for _ in range(2):
            for part in torch.randperm(len(seen), device=seen.device).split(32):
                chosen = torch.distributions.Categorical(logits=self.actor(seen[part]))
                value = self.critic(seen[part]).squeeze(1)
                ratio = (chosen.log_prob(taken[part]) - before[part]).exp()
                gain = returns[part] - value.detach()
                loss = -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
                loss = loss + functional.mse_loss(value, returns[part])
                loss = loss - 0.01 * chosen.entropy().mean()
                optimizer.zero_grad()
                self.manual_backward(loss)
                nn.utils.clip_grad_norm_(self.parameters(), 0.5)
                optimizer.step()

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=3e-4, eps=1e-5)


class OnGpu(Classifier):
    """Names the GPU inside its step. On fake tensors nothing may reach one."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        del batch_idx
        x, y = batch
        weights = torch.ones(CLASSES, device="cuda")
        return functional.cross_entropy(self(x.cuda()), y.to("cuda:0"), weight=weights)
