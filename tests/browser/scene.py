"""People at work: runs of real models' graphs on simulated devices, for pictures of the sidebar."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

import horus_lab
from horus_lab.records import encode
from tests.browser.lab import ROOT, Lab


class Blocks(nn.Module):
    """A plain residual network for images."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU())
            for _ in range(depth)
        )
        self.head = nn.Linear(width, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Class scores of a batch of images."""
        hidden = self.stem(images)
        for block in self.blocks:
            hidden = hidden + block(hidden)
        return self.head(hidden.mean(dim=(2, 3)))


class Tokens(nn.Module):
    """A transformer over tokens."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(32_000, width)
        layer = nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True, dropout=0.0)
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, 1000)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Scores of a batch of token sequences."""
        return self.head(self.layers(self.embedding(tokens)).mean(dim=1))


class Series(nn.Module):
    """A recurrent net over series."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.recurrent = nn.LSTM(64, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, 1)

    def forward(self, series: torch.Tensor) -> torch.Tensor:
        """One forecast for each series."""
        return self.head(self.recurrent(series)[0][:, -1])


def _capture(folder: Path, name: str, model: nn.Module, batch: Any) -> Path:
    features = horus_lab.capture(model, batch, optimizer=torch.optim.AdamW(model.parameters()))
    file = folder / f"{name}.json"
    file.write_bytes(encode(features))
    return file


def begin(lab: Lab) -> None:
    """Start the runs, one after the other, and wait until each has been asked for."""
    folder = lab.home
    for example in (ROOT / "examples").glob("*.ipynb"):
        shutil.copy(example, folder)
    retina = _capture(folder, "retina", Blocks(32, 4), torch.zeros(24, 3, 64, 64))
    tokens = _capture(folder, "tokens", Tokens(768, 12), torch.zeros(48, 384, dtype=torch.long))
    series = _capture(folder, "series", Series(256), torch.zeros(32, 64, 64))
    runs: tuple[tuple[str, str, dict[str, Any]], ...] = (
        ("Convolutions", "cnn.ipynb", {"features": retina, "rate": 41.0, "steps": 60_000}),
        ("Tokens", "transformer.ipynb", {"features": tokens, "rate": 1.9, "steps": 900}),
        ("Load forecast", "rnn.ipynb", {"features": series, "rate": 88.0, "steps": 42_000}),
        ("Tabular", "mlp.ipynb", {"gib": 6.0, "utilization": 0.12, "rate": 150.0, "steps": 90_000}),
        ("Tokens, wide", "transformer.ipynb", {"gib": 62.0, "utilization": 0.9}),
        ("Benchmark", "cnn.ipynb", {"gib": 40.0, "devices": 2, "exclusive": True}),
    )
    for name, notebook, options in runs:
        before = len(lab.jobs())
        lab.train(name, notebook=notebook, **options)
        while len(lab.jobs()) == before:
            time.sleep(0.1)
