"""Capture the zoo and compare with real steps: `python -m benchmarks.capture.measure`.

Prints one line a set-up and writes `benchmarks/capture/results.json`. Seconds are those of one
thread and are noisy on a shared machine; sizes and FLOPs are exact and do not change.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.capture.reference import peak_bytes, product_flops
from benchmarks.capture.setups import Setup
from benchmarks.capture.zoo import zoo
from horus_lab.graph import capture_lightning, capture_step
from horus_lab.records import GraphFeatures, OperationClass

TABLE = Path(__file__).with_name("results.json")
_PRODUCTS = (OperationClass.CONVOLUTION, OperationClass.LINEAR)


@dataclass(frozen=True)
class Row:
    """One set-up: how it was captured, and how far from a real step (fractions) it lies."""

    name: str
    method: str
    confidence: float
    cold_seconds: float
    warm_seconds: float
    flops: float
    launches: int
    saved_bytes: int
    peak_bytes: int
    real_peak_bytes: int | None
    peak_error: float | None
    product_flops: float
    real_product_flops: int | None
    note: str


def captured(setup: Setup, module: torch.nn.Module, batch: Any) -> GraphFeatures:
    """The set-up's features."""
    if setup.step is None:
        return capture_lightning(module, batch, precision=setup.precision)
    return capture_step(
        module, batch, step=setup.step, optimizer=setup.optimizer, precision=setup.precision
    )


def measure(name: str, setup: Setup) -> Row:
    """Capture twice, then run for real where that is possible."""
    torch.manual_seed(0)
    module, batch = setup.make(), setup.batch()
    started = time.perf_counter()
    features = captured(setup, module, batch)
    cold = time.perf_counter() - started
    started = time.perf_counter()
    captured(setup, module, batch)
    warm = time.perf_counter() - started
    del module
    real = peak_bytes(setup) if setup.real else None
    flops = product_flops(setup) if setup.real else None
    return Row(
        name=name,
        method=features.method.value,
        confidence=features.confidence,
        cold_seconds=round(cold, 3),
        warm_seconds=round(warm, 3),
        flops=features.flops,
        launches=features.launches,
        saved_bytes=features.saved_activation_bytes,
        peak_bytes=features.peak_live_bytes,
        real_peak_bytes=real,
        peak_error=None if real is None else round(features.peak_live_bytes / real - 1, 4),
        product_flops=sum(o.flops for o in features.operations if o.operation in _PRODUCTS),
        real_product_flops=flops,
        note=" ".join(note for note in features.notes if "Adam" not in note)[:300],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="names that contain this; writes nothing")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    print(
        f"{'set-up':<28}{'method':<14}{'cold s':>7}{'warm s':>7}{'GFLOP':>9}"
        f"{'peak MiB':>10}{'error':>8}  note"
    )
    for name, setup in zoo().items():
        if options.only not in name:
            continue
        row = measure(name, setup)
        rows.append(row)
        error = "" if row.peak_error is None else f"{100 * row.peak_error:+.1f} %"
        print(
            f"{row.name:<28}{row.method:<14}{row.cold_seconds:>7.2f}{row.warm_seconds:>7.2f}"
            f"{row.flops / 1e9:>9.3g}{row.peak_bytes / 2**20:>10.1f}{error:>8}  {row.note}",
            flush=True,
        )
    errors = sorted(abs(row.peak_error) for row in rows if row.peak_error is not None)
    if errors:
        print(
            f"{len(rows)} set-ups, {len(errors)} beside a real step: error of the peak "
            f"{100 * statistics.median(errors):.1f} % at the median, "
            f"{100 * errors[-1]:.1f} % at worst"
        )
    if not options.only:
        TABLE.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
