"""Small Lightning trainings on this CPU, measured.

`python -m benchmarks.predict.measure_cpu_small`. Each run is a process of its own: a model on
scikit-learn's digits, captured first, then trained by a plain Trainer. Writes `cpu_small.json`:
graph features, memory held before and at the peak, CPU seconds and wall seconds a step. On a
shared machine the wall times are noisy; the file says so.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

RESULTS = Path(__file__).with_name("cpu_small.json")
MODELS = ("mlp", "wide_mlp", "cnn", "lstm", "transformer")
BATCHES = (32, 256)
SECONDS = 4.0


def network(name: str) -> Any:
    """One of the small networks, for images of 8 x 8 pixels as 64 numbers."""
    import torch
    from torch import nn

    class Rows(nn.Module):
        def __init__(self, body: nn.Module, outputs: int) -> None:
            super().__init__()
            self.first = nn.Linear(8, 64)
            self.body = body
            self.last = nn.Linear(outputs, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = self.body(self.first(x.view(-1, 8, 8)))
            hidden = hidden[0] if isinstance(hidden, tuple) else hidden
            return self.last(hidden[:, -1])

    if name == "mlp":
        return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    if name == "wide_mlp":
        return nn.Sequential(
            nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
        )
    if name == "cnn":
        return nn.Sequential(
            nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(1024, 128), nn.ReLU(), nn.Linear(128, 10),
        )  # fmt: skip
    if name == "lstm":
        return Rows(nn.LSTM(64, 128, 2, batch_first=True), 128)
    layer = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True)
    return Rows(nn.TransformerEncoder(layer, 2), 64)


def one(name: str, batch: int, seconds: float) -> None:
    """Measure one run and print it as JSON."""
    import lightning
    import psutil
    import torch
    from sklearn.datasets import load_digits
    from torch import nn

    from horus_lab.graph import capture

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = network(name)

        def training_step(self, pair: Any) -> Any:
            return nn.functional.cross_entropy(self.network(pair[0]), pair[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), lr=1e-3)

    process = psutil.Process()
    marks: list[tuple[float, float]] = []

    class Watch(lightning.Callback):
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            marks.append((time.perf_counter(), time.process_time()))
            if marks[-1][0] - marks[0][0] > seconds:
                trainer.should_stop = True

    digits = load_digits()
    data = torch.utils.data.TensorDataset(
        torch.tensor(digits.data, dtype=torch.float32) / 16.0, torch.tensor(digits.target)
    )
    loader = torch.utils.data.DataLoader(data, batch_size=batch, shuffle=True, drop_last=True)
    module = Module()
    features = capture(module, next(iter(loader)))
    held = process.memory_info().rss
    peak, done = [held], threading.Event()

    def watch_memory() -> None:
        while not done.wait(0.05):
            peak[0] = max(peak[0], process.memory_info().rss)

    watcher = threading.Thread(target=watch_memory, daemon=True)
    watcher.start()
    trainer = lightning.Trainer(
        accelerator="cpu", max_epochs=-1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[Watch()],
    )  # fmt: skip
    trainer.fit(module, loader)
    done.set()
    # Neighbours on the machine can only lengthen a step: the quicker half stands for it.
    steady = marks[len(marks) // 4 :]
    lengths = sorted(
        (after[0] - before[0], after[1] - before[1]) for before, after in pairwise(steady)
    )
    steps = len(lengths)
    quick = lengths[: max(1, steps // 2)]
    wall, cpu = (sum(column) for column in zip(*quick, strict=True))
    print(
        json.dumps(
            {
                "model": name,
                "batch": batch,
                "steps": steps,
                "step_seconds": wall / len(quick),
                "cpu_seconds_per_step": cpu / len(quick),
                "median_step_seconds": lengths[steps // 2][0],
                "held_bytes": held,
                "peak_bytes": peak[0],
                "threads": torch.get_num_threads(),
                "features": msgspec.to_builtins(features),
            }
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", nargs=2, metavar=("MODEL", "BATCH"))
    parser.add_argument("--seconds", type=float, default=SECONDS, help="training time of a run")
    parser.add_argument("--to", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.one:
        one(options.one[0], int(options.one[1]), options.seconds)
        return
    from horus_lab.predict import measure_cpu

    cores = os.cpu_count() or 1
    spec = measure_cpu(cores, 8 * 2**30, name=_processor())
    runs = []
    for name in MODELS:
        for batch in BATCHES:
            command = [sys.executable, "-m", "benchmarks.predict.measure_cpu_small",
                       "--one", name, str(batch), "--seconds", str(options.seconds)]  # fmt: skip
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            run = json.loads(done.stdout.strip().splitlines()[-1])
            run["load_average"] = os.getloadavg()[0]
            runs.append(run)
            print(
                f"{name} {batch}: {run['step_seconds'] * 1e3:.2f} ms a step, "
                f"{run['cpu_seconds_per_step'] / run['step_seconds']:.2f} cores busy, "
                f"{(run['peak_bytes'] - run['held_bytes']) / 2**20:.0f} MiB grown",
                flush=True,
            )
    result = {
        "device": spec.model,
        "specification": msgspec.to_builtins(spec),
        "date": datetime.date.today().isoformat(),
        "note": "A virtual machine that others use at the same time: wall times are noisy.",
        "platform": platform.platform(terse=True),
        "runs": runs,
    }
    options.to.write_text(json.dumps(result, indent=1) + "\n")


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or "CPU"


if __name__ == "__main__":
    main()
