"""Short networks and steps of the kinds that people train, for the capture's zoo."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional


def _block(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
        nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
        nn.GroupNorm(4, outputs),
        nn.SiLU(inplace=True),
    )


class UNet(nn.Module):
    """Three scales with skips (Ronneberger et al., 2015)."""

    def __init__(self, channels: int = 3, outputs: int = 2, width: int = 16) -> None:
        super().__init__()
        self.first = _block(channels, width)
        self.second = _block(width, 2 * width)
        self.third = _block(2 * width, 4 * width)
        self.up_second = nn.ConvTranspose2d(4 * width, 2 * width, 2, 2)
        self.join_second = _block(4 * width, 2 * width)
        self.join_first = _block(3 * width, width)
        self.last = nn.Conv2d(width, outputs, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.first(x)
        second = self.second(functional.max_pool2d(first, 2))
        third = self.third(functional.avg_pool2d(second, 2))
        second = self.join_second(torch.cat([self.up_second(third), second], 1))
        up = functional.interpolate(second, scale_factor=2, mode="bilinear", align_corners=False)
        return self.last(self.join_first(torch.cat([up, first], 1)))


class Variational(nn.Module):
    """A variational autoencoder (Kingma & Welling, 2014)."""

    def __init__(self, inputs: int = 784, hidden: int = 20) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(inputs, 400), nn.ReLU(), nn.Linear(400, 2 * hidden))
        self.decoder = nn.Sequential(nn.Linear(hidden, 400), nn.ReLU(), nn.Linear(400, inputs))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        mean, spread = self.encoder(x).chunk(2, 1)
        drawn = mean + torch.randn_like(mean) * (spread / 2).exp()
        return self.decoder(drawn), mean, spread


def variational_loss(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    rebuilt, mean, spread = module(x)
    error = functional.binary_cross_entropy_with_logits(rebuilt, x, reduction="sum")
    return error - 0.5 * torch.sum(1 + spread - mean.pow(2) - spread.exp())


class Denoiser(nn.Module):
    """A U-Net that predicts noise, told the time by an embedding (Ho et al., 2020)."""

    def __init__(self) -> None:
        super().__init__()
        self.body = UNet(3 + 8, 3)
        self.times = nn.Embedding(1000, 8)
        self.register_buffer("alphas", torch.linspace(0.99, 0.01, 1000))

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        told = self.times(time)[:, :, None, None].expand(-1, -1, *x.shape[2:])
        return self.body(torch.cat([x, told], 1))


def denoising_loss(module: Any, x: torch.Tensor) -> torch.Tensor:
    time = torch.randint(0, 1000, (len(x),), device=x.device)
    noise = torch.randn_like(x)
    kept = module.alphas[time].view(-1, 1, 1, 1)
    return functional.mse_loss(module(kept.sqrt() * x + (1 - kept).sqrt() * noise, time), noise)


class TwoTowers(nn.Module):
    """Images and texts in one space (Radford et al., 2021), small."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.image = nn.Sequential(
            nn.Conv2d(3, 32, 4, 4), nn.GELU(), nn.Conv2d(32, width, 2, 2), nn.AdaptiveAvgPool2d(1)
        )
        self.words = nn.Embedding(500, width)
        self.text = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(width, 4, 128, batch_first=True, norm_first=True),
            2,
            enable_nested_tensor=False,
        )
        self.temperature = nn.Parameter(torch.tensor(2.65))

    def forward(self, images: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        seen = functional.normalize(self.image(images).flatten(1), dim=1)
        read = functional.normalize(self.text(self.words(tokens)).mean(1), dim=1)
        return self.temperature.exp() * seen @ read.t()


def contrastive_loss(module: nn.Module, batch: Any) -> torch.Tensor:
    scores = module(*batch)
    own = torch.arange(len(scores), device=scores.device)
    return (functional.cross_entropy(scores, own) + functional.cross_entropy(scores.t(), own)) / 2


class Temporal(nn.Module):
    """Dilated causal convolutions (Bai et al., 2018) with weight normalization."""

    def __init__(self, inputs: int = 8, width: int = 32, classes: int = 10) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for level in range(4):
            reach = 2 * 2**level
            layers += [
                nn.ConstantPad1d((reach, 0), 0.0),
                nn.utils.parametrizations.weight_norm(
                    nn.Conv1d(inputs if level == 0 else width, width, 3, dilation=2**level)
                ),
                nn.ReLU(),
                nn.Dropout(0.1),
            ]
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x)[:, :, -1])


class Recommender(nn.Module):
    """DLRM (Naumov et al., 2019): sparse embedding bags, dense features, their products."""

    def __init__(self, rows: int = 10000, width: int = 16, tables: int = 4) -> None:
        super().__init__()
        self.tables = nn.ModuleList(
            [nn.EmbeddingBag(rows, width, sparse=True, mode="sum") for _ in range(tables)]
        )
        self.bottom = nn.Sequential(nn.Linear(13, 64), nn.ReLU(), nn.Linear(64, width), nn.ReLU())
        pairs = (tables + 1) * tables // 2
        self.top = nn.Sequential(nn.Linear(width + pairs, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, dense: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        base = self.bottom(dense)
        found = [table(ids[:, i : i + 1]) for i, table in enumerate(self.tables)]
        stacked = torch.stack([base, *found], 1)
        products = torch.bmm(stacked, stacked.transpose(1, 2))
        rows, columns = torch.tril_indices(stacked.shape[1], stacked.shape[1], offset=-1)
        return self.top(torch.cat([base, products[:, rows, columns]], 1)).squeeze(1)


def click_loss(module: nn.Module, batch: Any) -> torch.Tensor:
    dense, ids, clicked = batch
    return functional.binary_cross_entropy_with_logits(module(dense, ids), clicked)
