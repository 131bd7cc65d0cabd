"""Fits the slowdown model on measured pairs: `python -m horus_lab.interference.fit --data DIR`.

Reads `lucid_pairs/solo.csv` and `lucid_pairs/pairs.csv` below the folder (the columns are described
in docs/scheduling.md), fits by least absolute deviations with coefficients of at least zero, tries
itself on models and pairs that it left out, and writes the coefficients and the figures.
Speeds above 1 are noise of the measurement and count as 1.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from horus_lab.interference import form

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

_BOUND = 0.85
_FOLDS = 5
_ROUNDS = 25


class Pairs:
    """Measured pairs, each as two rows: one for each job.

    Attributes:
        with_bandwidth, without_bandwidth: terms, (rows, terms).
        speed: co-located speed over solo speed, at most 1, (rows,).
        models: (rows, 2): the row's model and its neighbour's.
        total: the sum of both solo utilizations, (rows,).
    """

    def __init__(self, folder: Path) -> None:
        solo = {_key(row, ""): row for row in _rows(folder / "lucid_pairs" / "solo.csv")}
        with_bandwidth, without, speed, models, total = [], [], [], [], []
        for row in _rows(folder / "lucid_pairs" / "pairs.csv"):
            one, two = solo.get(_key(row, "1")), solo.get(_key(row, "2"))
            if one is None or two is None:
                continue
            for mine, other, which in ((one, two, "1"), (two, one, "2")):
                u, m = float(mine["gpu_util_pct"]) / 100, float(mine["mem_util_pct"]) / 100
                v, n = float(other["gpu_util_pct"]) / 100, float(other["mem_util_pct"]) / 100
                with_bandwidth.append(form.terms(u, v, m, n))
                without.append(form.terms(u, v, None, None))
                speed.append(min(1.0, float(row[f"relative_speed{which}"])))
                models.append((mine["model"], other["model"]))
                total.append(u + v)
        self.with_bandwidth = np.array(with_bandwidth)
        self.without_bandwidth = np.array(without)
        self.speed = np.array(speed)
        self.models = np.array(models)
        self.total = np.array(total)


def fit(terms: Array, speed: Array) -> Array:
    """Coefficients of at least zero that minimise the absolute error of the speed.

    Least squares with weights, again and again, comes to least absolute deviations; an error of
    the slowdown counts by the square of the speed, since d(1/s) = -ds/s^2.
    """
    from scipy.optimize import nnls

    excess = 1.0 / speed - 1.0
    weight = speed**2
    coefficients: Array = np.zeros(terms.shape[1])
    for _ in range(_ROUNDS):
        coefficients, _residual = nnls(terms * weight[:, None], excess * weight)
        error = np.abs(1.0 / (1.0 + terms @ coefficients) - speed)
        weight = speed**2 / np.sqrt(np.maximum(error, 0.02))
    return coefficients


def predicted(terms: Array, coefficients: Array) -> Array:
    """Speeds."""
    return np.asarray(1.0 / (1.0 + terms @ coefficients))


def left_out(pairs: Pairs, terms: Array, folds: list[Mask]) -> Array:
    """Each row's speed as predicted by a fit that had not seen its fold."""
    found = np.full(len(pairs.speed), np.nan)
    for test in folds:
        found[test] = predicted(terms[test], fit(terms[~test], pairs.speed[~test]))
    return found


def pair_folds(pairs: Pairs, seed: int = 0) -> list[Mask]:
    """Five folds of pairs of models."""
    names = np.array(["|".join(sorted(row)) for row in pairs.models])
    distinct = np.unique(names)
    np.random.default_rng(seed).shuffle(distinct)
    return [np.isin(names, distinct[part::_FOLDS]) for part in range(_FOLDS)]


def model_errors(pairs: Pairs, terms: Array) -> dict[str, float]:
    """Mean absolute error on each model's pairs by a fit without any of them."""
    found = {}
    for model in np.unique(pairs.models[:, 0]):
        test = (pairs.models == model).any(axis=1)
        guess = predicted(terms[test], fit(terms[~test], pairs.speed[~test]))
        found[str(model)] = float(np.abs(guess - pairs.speed[test]).mean())
    return found


def rule(pairs: Pairs, folds: list[Mask]) -> Array:
    """The rule to beat: a falling curve of the sum of utilizations."""
    from sklearn.isotonic import IsotonicRegression

    found = np.full(len(pairs.speed), np.nan)
    for test in folds:
        curve = IsotonicRegression(increasing=False, out_of_bounds="clip")
        curve.fit(pairs.total[~test], pairs.speed[~test])
        found[test] = curve.predict(pairs.total[test])
    return found


def spread(guess: Array, speed: Array) -> tuple[tuple[float, float], tuple[float, float]]:
    """The excess's 10th and 90th percentile as (constant, factor) of the predicted excess."""
    from sklearn.linear_model import QuantileRegressor

    predicted_excess = (1.0 / guess - 1.0)[:, None]
    excess = 1.0 / speed - 1.0
    low = QuantileRegressor(quantile=0.1, alpha=0.0, fit_intercept=False)
    low.fit(predicted_excess, excess)
    high = QuantileRegressor(quantile=0.9, alpha=0.0)
    high.fit(predicted_excess, excess)
    return (
        (0.0, float(max(0.0, low.coef_[0]))),
        (float(max(0.0, high.intercept_)), float(max(1.0, high.coef_[0]))),
    )


def decision(
    guess: Array, speed: Array, high: tuple[float, float], weight: float
) -> dict[str, float]:
    """Of pairs admitted at the bound, how many keep it; of those that keep it, how many are in."""
    excess = 1.0 / guess - 1.0
    cautious = excess + weight * (np.maximum(excess, high[0] + high[1] * excess) - excess)
    admitted = (1.0 / (1.0 + cautious)).reshape(-1, 2).min(axis=1) >= _BOUND
    keeps = speed.reshape(-1, 2).min(axis=1) >= _BOUND
    return {
        "weight": weight,
        "admitted": float(admitted.mean()),
        "admitted_that_keep": float(keeps[admitted].mean()) if admitted.any() else float("nan"),
        "keepers_admitted": float(admitted[keeps].mean()),
    }


def run(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The coefficients, and the figures of the evaluation."""
    pairs = Pairs(folder)
    folds = pair_folds(pairs)
    guess = left_out(pairs, pairs.with_bandwidth, folds)
    without = left_out(pairs, pairs.without_bandwidth, folds)
    low, high = spread(guess, pairs.speed)
    by_model = model_errors(pairs, pairs.with_bandwidth)
    counts = {m: int((pairs.models == m).any(axis=1).sum()) for m in by_model}
    coefficients = {
        "with_bandwidth": fit(pairs.with_bandwidth, pairs.speed).round(5).tolist(),
        "without_bandwidth": fit(pairs.without_bandwidth, pairs.speed).round(5).tolist(),
        "low": [round(v, 5) for v in low],
        "high": [round(v, 5) for v in high],
        "trained_on": f"lucid_pairs: {len(pairs.speed) // 2} co-located pairs on an RTX 3090",
    }
    excess, truth = 1 / guess - 1, 1 / pairs.speed - 1
    inside = (truth >= low[1] * excess - low[0]) & (truth <= high[0] + high[1] * excess)
    figures = {
        "pairs": len(pairs.speed) // 2,
        "mae_left_out_pairs": float(np.abs(guess - pairs.speed).mean()),
        "mae_left_out_pairs_without_bandwidth": float(np.abs(without - pairs.speed).mean()),
        "mae_rule_on_sum_of_utilizations": float(np.abs(rule(pairs, folds) - pairs.speed).mean()),
        "mae_left_out_model": float(
            np.average(list(by_model.values()), weights=[counts[m] for m in by_model])
        ),
        "mae_by_left_out_model": by_model,
        "interval_coverage": float(inside.mean()),
        "decision_at_15_percent": [
            decision(guess, pairs.speed, high, weight) for weight in (0.0, 0.25, 0.5, 0.75, 1.0)
        ],
    }
    return coefficients, figures


def main(arguments: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the folder with lucid_pairs/")
    parser.add_argument("--out", type=Path, help="where the coefficients are written (JSON)")
    parser.add_argument("--figures", type=Path, help="where the evaluation is written (JSON)")
    options = parser.parse_args(arguments)
    if not (options.data / "lucid_pairs" / "pairs.csv").is_file():
        print(f"{options.data} has no lucid_pairs/pairs.csv.", file=sys.stderr)  # noqa: T201
        return 2
    coefficients, figures = run(options.data)
    for path, content in ((options.out, coefficients), (options.figures, figures)):
        if path is not None:
            path.write_text(json.dumps(content, indent=1) + "\n")
    print(json.dumps(figures, indent=1))  # noqa: T201
    return 0


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def _key(row: dict[str, str], which: str) -> tuple[str, ...]:
    return tuple(row[f"{column}{which}"] for column in ("model", "dataset", "batch", "amp"))


if __name__ == "__main__":
    sys.exit(main())
