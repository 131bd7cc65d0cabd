"""The sets' other networks: language, translation, points, recommendation, policies, images made.

Sizes follow the public scripts that the sets name, as far as these are known; where a size is not
known the usual one of that example is taken, and said.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional


class LanguageModel(nn.Module):
    """PyTorch's word language model: embedding, LSTM, tied-size decoder (Wikitext-2)."""

    def __init__(self, words: int = 33278, width: int = 200, layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.recurrent = nn.LSTM(width, width, layers, dropout=0.2)
        self.decoder = nn.Linear(width, words)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.recurrent(self.embedding(tokens))
        return self.decoder(hidden).flatten(0, 1)


class Translation(nn.Module):
    """The base Transformer on Multi30k (Vaswani et al., 2017), one shared vocabulary."""

    def __init__(self, words: int = 9521, width: int = 512, layers: int = 6) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.body = nn.Transformer(width, 8, layers, layers, 2048, dropout=0.1, batch_first=True)
        self.decoder = nn.Linear(width, words, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        embedded = self.embedding(tokens)
        return self.decoder(self.body(embedded, embedded)).flatten(0, 1)


class PointNet(nn.Module):
    """PointNet's classifier with its two transform nets (Qi et al., 2017), 2,500 points."""

    def __init__(self, classes: int = 16) -> None:
        super().__init__()
        self.align_points = _Align(3)
        self.first = _points(3, 64)
        self.align_features = _Align(64)
        self.rest = nn.Sequential(_points(64, 128), nn.Conv1d(128, 1024, 1), nn.BatchNorm1d(1024))
        self.head = nn.Sequential(
            *_head(1024, 512), nn.Linear(512, 256), nn.Dropout(0.3), nn.BatchNorm1d(256), nn.ReLU()
        )
        self.last = nn.Linear(256, classes)

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        aligned = torch.bmm(self.align_points(points), points)
        features = self.first(aligned)
        features = torch.bmm(self.align_features(features), features)
        return self.last(self.head(self.rest(features).amax(2)))


class _Align(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.body = nn.Sequential(_points(size, 64), _points(64, 128), _points(128, 1024))
        self.head = nn.Sequential(*_head(1024, 512), *_head(512, 256), nn.Linear(256, size**2))

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        flat = self.head(self.body(points).amax(2))
        return flat.view(-1, self.size, self.size)


def _points(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Conv1d(inputs, outputs, 1), nn.BatchNorm1d(outputs), nn.ReLU())


def _head(inputs: int, outputs: int) -> list[nn.Module]:
    return [nn.Linear(inputs, outputs), nn.BatchNorm1d(outputs), nn.ReLU()]


class NeuMF(nn.Module):
    """Neural matrix factorisation (He et al., 2017) on MovieLens-1M's sizes."""

    def __init__(self, users: int = 6040, items: int = 3706, width: int = 32) -> None:
        super().__init__()
        self.users = nn.ModuleList([nn.Embedding(users, width), nn.Embedding(users, 4 * width)])
        self.items = nn.ModuleList([nn.Embedding(items, width), nn.Embedding(items, 4 * width)])
        sizes = (8 * width, 4 * width, 2 * width, width)
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(sizes):
            layers += [nn.Dropout(0.0), nn.Linear(inputs, outputs), nn.ReLU()]
        self.body = nn.Sequential(*layers)
        self.last = nn.Linear(2 * width, 1)

    def forward(self, pairs: torch.Tensor) -> torch.Tensor:
        user, item = pairs[:, 0], pairs[:, 1]
        product = self.users[0](user) * self.items[0](item)
        joined = torch.cat([self.users[1](user), self.items[1](item)], 1)
        return torch.sigmoid(self.last(torch.cat([product, self.body(joined)], 1)))


def policy(inputs: int, outputs: int, width: int = 256) -> nn.Module:
    """The small network of a reinforcement-learning example."""
    return nn.Sequential(
        nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, outputs),
    )  # fmt: skip


class DCGAN(nn.Module):
    """PyTorch's DCGAN example: one step of discriminator and generator, 64-pixel images."""

    def __init__(self, noise: int = 100, width: int = 64) -> None:
        super().__init__()
        self.noise = noise
        sizes = (8, 4, 2, 1)
        up: list[nn.Module] = [nn.ConvTranspose2d(noise, 8 * width, 4, bias=False)]
        down: list[nn.Module] = [nn.Conv2d(3, width, 4, 2, 1, bias=False), nn.LeakyReLU(0.2)]
        for wide, narrow in pairwise(sizes):
            up += [nn.BatchNorm2d(wide * width), nn.ReLU(inplace=True)]
            up.append(nn.ConvTranspose2d(wide * width, narrow * width, 4, 2, 1, bias=False))
        for narrow, wide in pairwise(sizes[::-1]):
            down.append(nn.Conv2d(narrow * width, wide * width, 4, 2, 1, bias=False))
            down += [nn.BatchNorm2d(wide * width), nn.LeakyReLU(0.2, inplace=True)]
        up += [nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
        up += [nn.ConvTranspose2d(width, 3, 4, 2, 1, bias=False), nn.Tanh()]
        down += [nn.Conv2d(8 * width, 1, 4, bias=False), nn.Sigmoid()]
        self.generator = nn.Sequential(*up)
        self.discriminator = nn.Sequential(*down)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        made = self.generator(images.new_zeros(len(images), self.noise, 1, 1).normal_())
        real = self.discriminator(images).flatten()
        fake = self.discriminator(made.detach()).flatten()
        fooled = self.discriminator(made).flatten()
        return (
            functional.binary_cross_entropy(real, torch.ones_like(real))
            + functional.binary_cross_entropy(fake, torch.zeros_like(fake))
            + functional.binary_cross_entropy(fooled, torch.ones_like(fooled))
        )


class Recommendation(nn.Module):
    """An autoencoder over ML-20M's items (Liang et al., 2018), as Gavel's job."""

    def __init__(self, items: int = 20108, width: int = 600) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Dropout(), nn.Linear(items, width), nn.Tanh(), nn.Linear(width, items)
        )

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.body(rows)
