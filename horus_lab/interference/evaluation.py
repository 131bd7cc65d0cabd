"""What the slowdown model is worth on measured pairs that its fit had not seen.

Beside it stand the rule that people use, a falling curve of the sum of utilizations, and plain
trees on both jobs' loads, with the same folds.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from msgspec import Struct, to_builtins

from horus_lab.interference.fit import fit_middle, high_factor, left_out, overlaps, unseen_model
from horus_lab.interference.fitted import Coefficients
from horus_lab.interference.measured import Array, Mask, Pairs, gavel_pairs

BOUND_SPEED = 0.85
USUAL_BOUND_SPEED = 0.8
NOISE = 0.022  # of one speed, from pairs of a job with itself, by the set's own description
WEIGHTS = (0.0, 0.5, 0.75, 1.0, 1.25, 1.5)

_FOLDS = 5

Learner = Callable[[Pairs, Pairs], Array]


class Decision(Struct, frozen=True, kw_only=True):
    """How one way to decide did: shares of 0-1.

    Attributes:
        admitted: of all pairs.
        admitted_that_keep: of the admitted pairs, those where both jobs kept the bound.
        keepers_admitted: of the pairs that keep the bound, those that were admitted.
    """

    admitted: float
    admitted_that_keep: float
    keepers_admitted: float


class GavelCheck(Struct, frozen=True, kw_only=True):
    """Pairs of another campaign, whose loads nobody measured.

    Attributes:
        median_speed, p5_speed, p95_speed: of the measured speeds.
        losing: share of the pairs that did less together than one after the other.
        below_the_fit: share of the speeds below what the fit says of two full loads.
        below_the_interval: share below the 90th percentile of that slowdown.
    """

    pairs: int
    median_speed: float
    p5_speed: float
    p95_speed: float
    losing: float
    below_the_fit: float
    below_the_interval: float


class Errors(Struct, frozen=True, kw_only=True):
    """Mean absolute errors of the speed, with 5 folds of pairs of models, and by model left out.

    Attributes:
        pairs_left_out: folds by unordered pair of model names, 5 of them, seed 0.
        model_left_out: every pair that the model takes part in; mean over the rows of all models.
        model_left_out_own: of these only the rows of the model itself.
    """

    pairs_left_out: float
    model_left_out: float
    model_left_out_own: float


def figures(pairs: Pairs, coefficients: Coefficients, gavel: Path) -> dict[str, object]:
    """Everything that benchmarks/interference reports."""
    unseen, by_model = unseen_model(pairs)
    seen_by_none = left_out(pairs, pair_folds(pairs))
    power = coefficients.power
    without, _ = unseen_model(pairs, power=power)
    high = unseen_high(pairs, bandwidth=True)
    counts = [int((pairs.models == model).any(axis=1).sum()) for model in by_model]
    found: dict[str, object] = {
        "pairs": len(pairs.speed) // 2,
        "errors": {
            "fit": Errors(
                pairs_left_out=_error(seen_by_none, pairs),
                model_left_out=float(np.average(list(by_model.values()), weights=counts)),
                model_left_out_own=_error(unseen, pairs),
            ),
            "fit_without_bandwidth": Errors(
                pairs_left_out=_error(left_out(pairs, pair_folds(pairs), power=power), pairs),
                model_left_out=_model_error(
                    pairs, lambda a, b: _speed(fit_middle(a, power=power).excess(b))
                ),
                model_left_out_own=_error(without, pairs),
            ),
            "rule_on_sum_of_utilizations": errors_of(pairs, rule),
            "trees": errors_of(pairs, trees),
        },
        "fit_by_model_left_out": by_model,
        "noise_of_identical_pairs": identical_noise(pairs),
        "covered_by_the_90th_percentile": _covered(unseen, high, pairs, 0.0),
        "covered_within_the_noise": _covered(unseen, high, pairs, 2 * NOISE),
    }
    for bound in (BOUND_SPEED, USUAL_BOUND_SPEED):
        found[f"decision_at_speed_{bound}"] = {
            "model_left_out": {
                f"weight_{weight}": decision(unseen, high, pairs.speed, bound, weight)
                for weight in WEIGHTS
            },
            "sum_of_utilizations_at_most": {
                f"{limit:.1f}": _decided(
                    _both(pairs.load + pairs.other_load) <= limit, pairs, bound
                )
                for limit in (0.8, 1.0, 1.2)
            },
        }
    if (gavel / "pairs.csv").is_file():
        found["gavel_motivation"] = gavel_check(coefficients, gavel)
    plain: dict[str, object] = to_builtins(found)
    return plain


def pair_folds(pairs: Pairs, seed: int = 0) -> list[Mask]:
    """Five folds of unordered pairs of models."""
    names = np.array(["|".join(sorted(row)) for row in pairs.models])
    distinct = np.unique(names)
    np.random.default_rng(seed).shuffle(distinct)
    return [np.isin(names, distinct[part::_FOLDS]) for part in range(_FOLDS)]


def unseen_high(pairs: Pairs, *, bandwidth: bool) -> Array:
    """Each row's 90th percentile by a factor found without any pair of its own model."""
    overlap = overlaps(pairs, bandwidth=bandwidth)
    found = np.full(len(pairs.speed), np.nan)
    for model in np.unique(pairs.models):
        fold = (pairs.models == model).any(axis=1)
        own = pairs.models[:, 0] == model
        found[own] = high_factor(pairs.rows(~fold), overlap[~fold]) * overlap[own]
    return found


def decision(middle: Array, high: Array, speed: Array, bound: float, weight: float) -> Decision:
    """Admitted where both jobs' excess, `weight` of the way to the 90th percentile, keeps it.

    All arrays hold a pair's two rows next to each other.
    """
    cautious = middle + weight * (np.maximum(high, middle) - middle)
    admitted = _both(cautious) <= 1.0 / bound - 1.0
    return _shares(admitted, speed.reshape(-1, 2).min(axis=1) >= bound)


def rule(seen: Pairs, asked: Pairs) -> Array:
    """Speeds by a falling curve of the sum of utilizations."""
    from sklearn.isotonic import IsotonicRegression

    curve = IsotonicRegression(increasing=False, out_of_bounds="clip")
    curve.fit(seen.load + seen.other_load, seen.speed)
    return np.asarray(curve.predict(asked.load + asked.other_load))


def trees(seen: Pairs, asked: Pairs) -> Array:
    """Speeds by extremely randomized trees on both jobs' loads."""
    from sklearn.ensemble import ExtraTreesRegressor

    learner = ExtraTreesRegressor(200, min_samples_leaf=3, random_state=0)
    learner.fit(_columns(seen), seen.speed)
    return np.asarray(learner.predict(_columns(asked)))


def errors_of(pairs: Pairs, learner: Learner) -> Errors:
    """The errors of a way to predict the speeds."""
    by_pairs = np.full(len(pairs.speed), np.nan)
    for fold in pair_folds(pairs):
        by_pairs[fold] = learner(pairs.rows(~fold), pairs.rows(fold))
    own = np.full(len(pairs.speed), np.nan)
    for model in np.unique(pairs.models):
        fold = (pairs.models == model).any(axis=1)
        mine = pairs.models[:, 0] == model
        own[mine] = learner(pairs.rows(~fold), pairs.rows(mine))
    return Errors(
        pairs_left_out=float(np.abs(by_pairs - pairs.speed).mean()),
        model_left_out=_model_error(pairs, learner),
        model_left_out_own=float(np.abs(own - pairs.speed).mean()),
    )


def identical_noise(pairs: Pairs) -> float:
    """Mean difference of the two speeds where a job ran beside another of itself."""
    same = (pairs.load == pairs.other_load) & (pairs.bandwidth == pairs.other_bandwidth)
    same &= pairs.models[:, 0] == pairs.models[:, 1]
    speeds = pairs.speed[same].reshape(-1, 2)
    return float(np.abs(speeds[:, 0] - speeds[:, 1]).mean()) if len(speeds) else float("nan")


def gavel_check(coefficients: Coefficients, folder: Path) -> dict[str, GavelCheck]:
    """The other campaign's speeds against what the fit says of two full loads, by GPU model."""
    take = coefficients.take + coefficients.take_per_bandwidth
    middle = 1.0 / (1.0 + take)
    most = 1.0 / (1.0 + max(take, 2 * coefficients.high))
    found = {}
    for gpu, speeds in gavel_pairs(folder):
        found[gpu] = GavelCheck(
            pairs=len(speeds),
            median_speed=float(np.median(speeds)),
            p5_speed=float(np.quantile(speeds, 0.05)),
            p95_speed=float(np.quantile(speeds, 0.95)),
            losing=float((speeds.sum(axis=1) < 1.0).mean()),
            below_the_fit=float((speeds < middle).mean()),
            below_the_interval=float((speeds < most).mean()),
        )
    return found


def _model_error(pairs: Pairs, learner: Learner) -> float:
    errors, counts = [], []
    for model in np.unique(pairs.models):
        fold = (pairs.models == model).any(axis=1)
        guess = learner(pairs.rows(~fold), pairs.rows(fold))
        errors.append(float(np.abs(guess - pairs.speed[fold]).mean()))
        counts.append(int(fold.sum()))
    return float(np.average(errors, weights=counts))


def _covered(middle: Array, high: Array, pairs: Pairs, noise: float) -> float:
    """Share of the speeds at least as high as the interval says, less the noise."""
    return float((pairs.speed >= _speed(np.maximum(middle, high)) - noise).mean())


def _decided(admitted: Mask, pairs: Pairs, bound: float) -> Decision:
    return _shares(admitted, _both(-pairs.speed) <= -bound)


def _shares(admitted: Mask, keeps: Mask) -> Decision:
    return Decision(
        admitted=float(admitted.mean()),
        admitted_that_keep=float(keeps[admitted].mean()) if admitted.any() else float("nan"),
        keepers_admitted=float(admitted[keeps].mean()) if keeps.any() else float("nan"),
    )


def _both(values: Array) -> Array:
    """The larger of a pair's two values."""
    return np.asarray(values.reshape(-1, 2).max(axis=1))


def _columns(pairs: Pairs) -> Array:
    return np.column_stack(pairs[:4])


def _speed(excess: Array) -> Array:
    return 1.0 / (1.0 + excess)


def _error(excess: Array, pairs: Pairs) -> float:
    return float(np.abs(_speed(excess) - pairs.speed).mean())
