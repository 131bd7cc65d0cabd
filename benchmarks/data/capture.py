"""Capture every step of the zoo: `python -m benchmarks.data.capture [--only PREFIX]`.

Writes `benchmarks/data/captured.jsonl`: one line a step, our own graph features, no measurement.
Steps already there are kept, so that it can be stopped and resumed.
"""

from __future__ import annotations

import argparse
import gc
import time
from pathlib import Path

import torch

from benchmarks.data.zoo import Entry, zoo
from horus_lab.graph import capture_step
from horus_lab.predict.captured import CapturedStep, read_captured, write_captured

TABLE = Path(__file__).with_name("captured.jsonl")
_OPTIMIZERS = {
    "adam": torch.optim.Adam,
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
}


def steps_of(name: str, entry: Entry, known: set[tuple[str, int, str]]) -> list[CapturedStep]:
    """The entry's steps that are not known yet."""
    wanted = [
        (batch, precision)
        for precision in entry.precisions
        for batch in entry.batches
        if (name, batch, precision) not in known
    ]
    if not wanted:
        return []
    module = entry.make()
    found = []
    for batch, precision in wanted:
        features = capture_step(
            module,
            entry.batch(batch),
            loss=entry.loss,
            step=entry.step,
            optimizer=_OPTIMIZERS[entry.optimizer],
            precision=precision,
            time_limit_seconds=60.0,
        )
        found.append(
            CapturedStep(name=name, batch=batch, optimizer=entry.optimizer, features=features)
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="names that start with this")
    parser.add_argument("--to", type=Path, default=TABLE)
    options = parser.parse_args()
    torch.set_num_threads(1)
    known = read_captured(options.to) if options.to.exists() else []
    keys = {(one.name, one.batch, one.features.precision) for one in known}
    for name, entry in zoo().items():
        if not name.startswith(options.only):
            continue
        started = time.monotonic()
        new = steps_of(name, entry, keys)
        known += new
        write_captured(options.to, known)
        for one in new:
            f = one.features
            print(
                f"{name} {one.batch} {f.precision}: {f.flops:.3g} FLOP, {f.launches} launches, "
                f"peak {f.peak_live_bytes / 2**20:.0f} MiB, {f.method.value} {f.confidence:.2f}",
                flush=True,
            )
        if new:
            print(f"  {time.monotonic() - started:.1f} s", flush=True)
        gc.collect()


if __name__ == "__main__":
    main()
