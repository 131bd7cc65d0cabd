"""Train the shipped prediction model: `python -m horus_lab.predict.train --data PATH --out DIR`.

`--data` is a folder of the public measured sets, `--captured` the table of captured steps that
`benchmarks.data.capture` makes, `--cpu` what `benchmarks.predict.measure_cpu_small` measured.
Needs scikit-learn and onnx (the `dev` extra); prediction itself needs neither.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path

import msgspec
import numpy as np

from horus_lab.errors import ConfigurationError
from horus_lab.predict.captured import read_captured
from horus_lab.predict.datasets import Captures, Sample, load_samples
from horus_lab.predict.footprint import footprint
from horus_lab.predict.history import Quantity, to_scale
from horus_lab.predict.residual import QUANTITIES, Widths
from horus_lab.predict.roofline import capability_of, estimate, work_of
from horus_lab.records import DeviceSpec, GraphFeatures

MLP_ROWS = 1500
CONTEXT = "gpumemnet"
_SEED = 20261201
_REPOSITORY = Path(__file__).parents[2]

# Where fewer than this many CPU runs were measured, the spread of a few says little.
_LEAST_WIDTH = {"memory": 0.05, "utilization": 0.35, "memory_utilization": 1.3, "step": 0.25}


def training_samples(data: Path, captured: Path) -> list[Sample]:
    """The samples that the shipped model is trained on: all sets, a part of the many MLPs.

    Raises:
        ConfigurationError: a set or the table is missing or unreadable.
    """
    samples = load_samples(data, Captures(read_captured(captured)))
    many = [index for index, one in enumerate(samples) if one.source == "gpumemnet_mlp"]
    random = np.random.default_rng(_SEED)
    kept = set(random.choice(many, min(MLP_ROWS, len(many)), replace=False).tolist())
    return [
        one for index, one in enumerate(samples) if one.source != "gpumemnet_mlp" or index in kept
    ]


def cpu_widths(path: Path) -> dict[str, Widths]:
    """The widths on CPU devices: how far the measured runs lie from first principles.

    Raises:
        ConfigurationError: the file is missing or is not what the measuring script writes.
    """
    try:
        content = json.loads(path.read_text())
        spec = msgspec.convert(content["specification"], DeviceSpec)
        missed: dict[str, list[float]] = {"memory": [], "utilization": [], "step": []}
        for run in content["runs"]:
            features = msgspec.convert(run["features"], GraphFeatures)
            step = estimate(work_of(features), capability_of([spec]))
            busy = run["cpu_seconds_per_step"] / run["step_seconds"] / spec.multiprocessors
            for name, measured, predicted in (
                ("memory", run["peak_bytes"], footprint(features, spec, run["held_bytes"])),
                ("utilization", min(1.0, busy), float(step.utilization[0])),
                ("step", run["step_seconds"], float(step.step[0])),
            ):
                scale = Quantity(name)
                missed[name].append(to_scale(scale, measured) - to_scale(scale, predicted))
    except (OSError, KeyError, TypeError, ValueError, msgspec.ValidationError) as error:
        raise ConfigurationError(
            f"The CPU measurements in {path} cannot be read: {error}.",
            hint="Make them with `python -m benchmarks.predict.measure_cpu_small`.",
        ) from error
    widths = {}
    for name in QUANTITIES:
        least = _LEAST_WIDTH[name]
        values = np.array(missed.get(name, [0.0]))
        widths[name] = Widths(
            below=max(least, float(-np.quantile(values, 0.1))),
            above=max(least, float(np.quantile(values, 0.9))),
        )
    return widths


def main(arguments: list[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m horus_lab.predict.train")
    parser.add_argument("--data", type=Path, required=True, help="folder of the measured sets")
    parser.add_argument("--out", type=Path, required=True, help="folder for the model's files")
    benchmarks = _REPOSITORY / "benchmarks"
    parser.add_argument("--captured", type=Path, default=benchmarks / "data" / "captured.jsonl")
    parser.add_argument("--cpu", type=Path, default=benchmarks / "predict" / "cpu_small.json")
    options = parser.parse_args(arguments)
    try:
        return _train(options.data, options.out, options.captured, options.cpu)
    except ConfigurationError as error:
        print(error, file=sys.stderr)  # noqa: T201 - a command's answer
        return 2


def _train(data: Path, out: Path, captured: Path, cpu: Path) -> int:
    try:
        import onnx  # noqa: F401 - asked for before the work begins
        import sklearn  # noqa: F401
    except ImportError as error:
        raise ConfigurationError(
            f"Training needs {error.name}, which is not installed.",
            hint="Install horus-lab[dev].",
        ) from error
    from horus_lab.predict import fitting

    widths = cpu_widths(cpu)
    samples = training_samples(data, captured)
    _say(f"{len(samples)} runs of {len({one.source for one in samples})} sets")
    table = fitting.table_of(samples)
    fitted = {}
    for name in QUANTITIES:
        fitted[name] = fitting.fit(table, name)
        low, middle, high = fitting.held_out_interval(table, name, fitted[name])
        truth = table.measured[name][fitted[name].rows]
        inside = float(np.mean((truth >= low) & (truth <= high)))
        missed = float(np.median(np.abs(truth - middle)))
        _say(
            f"{name}: {len(truth)} runs; families left out: median error "
            f"{math.expm1(missed):.1%} in its scale, {inside:.0%} inside p10-p90"
        )
    fitting.write_model(out, table, fitted, widths, CONTEXT)
    _say(f"written to {out}")
    return 0


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - a command's progress


if __name__ == "__main__":
    raise SystemExit(main())
