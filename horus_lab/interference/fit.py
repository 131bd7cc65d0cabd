"""Fits the slowdown model on measured pairs: `python -m horus_lab.interference.fit --data DIR`.

Reads `lucid_pairs/solo.csv` and `lucid_pairs/pairs.csv` below the folder (docs/scheduling.md
describes the columns) and writes the coefficients; `--figures` writes what the evaluation found,
with `gavel_pairs/pairs.csv` as a check where it is there.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import msgspec
import numpy as np

from horus_lab.errors import HorusError
from horus_lab.interference import form
from horus_lab.interference.fitted import Coefficients
from horus_lab.interference.measured import Array, Mask, Pairs, lucid_pairs

_QUANTILE = 0.9
_START = (0.3, 0.4, 0.4)


class Middle(msgspec.Struct, frozen=True):
    """The middle of the slowdown: what a resident takes, and the power of its activity."""

    take: float
    take_per_bandwidth: float
    power: float

    def excess(self, pairs: Pairs) -> Array:
        """Each row's slowdown - 1."""
        takes = [
            self.take + self.take_per_bandwidth * bandwidth
            for bandwidth in (pairs.bandwidth, pairs.other_bandwidth)
        ]
        return form.excesses([pairs.load, pairs.other_load], takes, self.power)[0]


def fit_middle(pairs: Pairs, *, power: float | None = None) -> Middle:
    """The coefficients that minimise the mean absolute error of the speed.

    With a power given only `take` is fitted: the form for jobs of unknown bandwidth.
    """
    from scipy.optimize import minimize

    def middle(values: Array) -> Middle:
        # Absolute values keep every coefficient at least zero, and the power at least one.
        free = np.abs(values)
        if power is not None:
            return Middle(float(free[0]), 0.0, power)
        return Middle(float(free[0]), float(free[1]), 1.0 + float(free[2]))

    def loss(values: Array) -> float:
        speed = 1.0 / (1.0 + middle(values).excess(pairs))
        return float(np.abs(speed - pairs.speed).mean())

    start = _START[:1] if power is not None else _START
    found = minimize(
        loss, start, method="Nelder-Mead", options={"xatol": 1e-3, "fatol": 1e-6, "maxiter": 400}
    )
    return middle(found.x)


def left_out(pairs: Pairs, folds: list[Mask], *, power: float | None = None) -> Array:
    """Each row's excess as predicted by a fit that had not seen its fold."""
    found = np.full(len(pairs.speed), np.nan)
    for fold in folds:
        found[fold] = fit_middle(pairs.rows(~fold), power=power).excess(pairs.rows(fold))
    return found


def unseen_model(pairs: Pairs, *, power: float | None = None) -> tuple[Array, dict[str, float]]:
    """Each row's excess by a fit without any pair of its own model, and the errors by model.

    The error of a model is the mean over all rows of the pairs that it takes part in.
    """
    own = np.full(len(pairs.speed), np.nan)
    errors = {}
    for model in np.unique(pairs.models):
        fold = (pairs.models == model).any(axis=1)
        excess = fit_middle(pairs.rows(~fold), power=power).excess(pairs.rows(fold))
        errors[str(model)] = float(np.abs(1.0 / (1.0 + excess) - pairs.speed[fold]).mean())
        mine = pairs.models[fold][:, 0] == model
        own[np.flatnonzero(fold)[mine]] = excess[mine]
    return own, errors


def overlaps(pairs: Pairs, *, bandwidth: bool = True) -> Array:
    """Each row's overlap."""
    if not bandwidth:
        return pairs.load * pairs.other_load
    return form.overlap(pairs.load, pairs.other_load, pairs.bandwidth, pairs.other_bandwidth)


def high_factor(pairs: Pairs, overlap: Array) -> float:
    """The 90th percentile of the excess as a factor of the overlap."""
    from sklearn.linear_model import QuantileRegressor

    regressor = QuantileRegressor(quantile=_QUANTILE, alpha=0.0, fit_intercept=False)
    regressor.fit(overlap[:, None], 1.0 / pairs.speed - 1.0)
    return float(max(0.0, regressor.coef_[0]))


def low_line(excess: Array, speed: Array) -> tuple[float, float]:
    """The 10th percentile: (factor, constant) of the predicted excess, from its upper half.

    Below, the 10th percentile is no slowdown at all.
    """
    from sklearn.linear_model import QuantileRegressor

    upper = excess >= np.median(excess)
    regressor = QuantileRegressor(quantile=1.0 - _QUANTILE, alpha=0.0)
    regressor.fit(excess[upper][:, None], 1.0 / speed[upper] - 1.0)
    factor = float(min(1.0, max(0.0, regressor.coef_[0])))
    return factor, float(max(0.0, -regressor.intercept_))


def fit(pairs: Pairs) -> Coefficients:
    """Everything that is shipped; the spread comes from models that each fit had not seen."""
    middle = fit_middle(pairs)
    unseen, _ = unseen_model(pairs)
    factor, constant = low_line(unseen, pairs.speed)
    return Coefficients(
        take=round(middle.take, 4),
        take_per_bandwidth=round(middle.take_per_bandwidth, 4),
        take_without_bandwidth=round(fit_middle(pairs, power=middle.power).take, 4),
        power=round(middle.power, 4),
        high=round(high_factor(pairs, overlaps(pairs)), 4),
        high_without_bandwidth=round(high_factor(pairs, overlaps(pairs, bandwidth=False)), 4),
        low=(round(factor, 4), round(constant, 4)),
        trained_on=f"lucid_pairs: {len(pairs.speed) // 2} co-located pairs on an RTX 3090",
    )


def main(arguments: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the folder with lucid_pairs/")
    parser.add_argument("--out", type=Path, help="where the coefficients are written (JSON)")
    parser.add_argument("--figures", type=Path, help="where the evaluation is written (JSON)")
    options = parser.parse_args(arguments)
    try:
        pairs = lucid_pairs(options.data / "lucid_pairs")
        coefficients = fit(pairs)
        if options.out is not None:
            written = msgspec.json.format(msgspec.json.encode(coefficients), indent=1)
            options.out.write_bytes(written + b"\n")
        if options.figures is not None:
            from horus_lab.interference.evaluation import figures

            found = figures(pairs, coefficients, options.data / "gavel_pairs")
            options.figures.write_text(json.dumps(found, indent=1) + "\n")
    except (HorusError, OSError) as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 2
    print(msgspec.json.encode(coefficients).decode())  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
