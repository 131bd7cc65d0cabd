"""Fits the residual model to samples, calibrates its intervals, writes the shipped files.

The centre is gradient-boosted trees on how far measurements lie from first principles; the width
is a second, smaller model of how far the centre misses families that it never saw; two factors
then make eight of ten such misses fall inside (split conformal prediction, folds by family).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Struct

from horus_lab.predict.datasets import INSTALLATIONS, Sample
from horus_lab.predict.footprint import footprint
from horus_lab.predict.residual import (
    INPUTS,
    MANIFEST,
    MODEL,
    QUANTITIES,
    VERSION,
    Calibration,
    Manifest,
    Widths,
    inputs_of,
)
from horus_lab.predict.roofline import capability_of, estimate, work_of

Floats = npt.NDArray[np.float64]

_FOLDS = 8
_MANY = 300
_ROWS_TO_SPEAK = 20
_LEAST_SHARE, _MOST_SHARE = 0.01, 0.99
_SEED = 20261201

# The campaigns of gavel_pairs disagree among themselves, and many of its jobs wait for input.
_SET_WEIGHTS = {"gavel_pairs": 0.15, "timm_memory": 3.0, "timm_train": 2.0}


class Table(Struct, frozen=True):
    """Samples as arrays: inputs, first principles and measurements in the learned scale (NaN where
    a quantity was not measured), families, weights."""

    samples: tuple[Sample, ...]
    inputs: npt.NDArray[np.float32]
    principles: dict[str, Floats]
    measured: dict[str, Floats]
    families: npt.NDArray[np.str_]
    weights: Floats
    context_bytes: dict[str, int]


def table_of(samples: Sequence[Sample]) -> Table:
    """Everything that fitting needs of the samples."""
    context = _contexts(samples)
    rows, principles, measured = [], [], []
    for one in samples:
        step = estimate(
            work_of(one.features, INSTALLATIONS[one.surroundings]), capability_of([one.spec])
        )
        size = footprint(one.features, one.spec, None, context.get(one.surroundings, 0))
        rows.append(inputs_of(one.features, step, np.array([size]))[0])
        principles.append(
            (
                math.log(size),
                logit(float(step.utilization[0])),
                logit(float(step.memory_utilization[0])),
                math.log(float(step.step[0])),
            )
        )
        bound = one.input_bound
        measured.append(
            (
                math.log(one.memory_bytes) if one.memory_bytes else math.nan,
                math.nan if one.utilization is None or bound else logit(one.utilization),
                math.nan
                if one.memory_utilization is None or bound
                else logit(one.memory_utilization),
                math.log(one.step_seconds) if one.step_seconds else math.nan,
            )
        )
    families = np.array([one.family for one in samples])
    return Table(
        tuple(samples),
        np.array(rows, dtype=np.float32),
        dict(zip(QUANTITIES, np.array(principles).T, strict=True)),
        dict(zip(QUANTITIES, np.array(measured).T, strict=True)),
        families,
        _weights(samples),
        context,
    )


def logit(share: float) -> float:
    """Log-odds, kept away from certainty."""
    kept = min(_MOST_SHARE, max(_LEAST_SHARE, share))
    return math.log(kept / (1.0 - kept))


def _contexts(samples: Sequence[Sample]) -> dict[str, int]:
    """What each surroundings adds to the published context: the low end of what is unexplained."""
    found: dict[str, int] = {}
    for name in {one.surroundings for one in samples if one.memory_bytes}:
        rest = []
        for one in samples:
            if one.surroundings != name or not one.memory_bytes:
                continue
            size = footprint(one.features, one.spec, None)
            if size < 1.5 * 2**30:
                rest.append(one.memory_bytes - size)
        found[name] = max(0, int(np.quantile(rest, 0.25))) if rest else 0
    return found


def _weights(samples: Sequence[Sample]) -> Floats:
    """Sets by `_SET_WEIGHTS`, and in a set a family by the root of its size."""
    sizes: dict[tuple[str, str], int] = {}
    for one in samples:
        key = (one.source, one.family)
        sizes[key] = sizes.get(key, 0) + 1
    raw = np.array([sizes[(one.source, one.family)] ** -0.5 for one in samples])
    sources = np.array([one.source for one in samples])
    for source in set(sources):
        raw[sources == source] *= _SET_WEIGHTS.get(source, 1.0) / raw[sources == source].sum()
    return raw * len(samples)


class Fitted(Struct, frozen=True):
    """One quantity: its two models, its calibration, and the out-of-family predictions.

    Attributes:
        rows: which samples it was fitted on.
        centre, width: of each of them, predicted without its family.
    """

    rows: npt.NDArray[np.int64]
    centre_model: Any
    width_model: Any
    calibration: Calibration
    centre: Floats
    width: Floats
    folds: npt.NDArray[np.int64]


def fit(table: Table, quantity: str, chosen: npt.NDArray[np.bool_] | None = None) -> Fitted:
    """Fit one quantity on the samples that measured it (and are chosen)."""
    from sklearn.model_selection import GroupKFold

    usable = ~np.isnan(table.measured[quantity])
    if chosen is not None:
        usable &= chosen
    rows = np.flatnonzero(usable)
    inputs = table.inputs[rows]
    target = table.measured[quantity][rows] - table.principles[quantity][rows]
    weights, groups = table.weights[rows], table.families[rows]
    folds = np.zeros(len(rows), dtype=np.int64)
    splits = list(GroupKFold(min(_FOLDS, len(set(groups)))).split(inputs, target, groups))
    centre = np.zeros(len(rows))
    for index, (train, test) in enumerate(splits):
        folds[test] = index
        centre[test] = (
            _trees(len(train))
            .fit(inputs[train], target[train], sample_weight=weights[train])
            .predict(inputs[test])
        )
    missed = np.abs(target - centre)
    least, most = np.quantile(missed, 0.1), np.quantile(missed, 0.98)
    # Widths span orders of magnitude, so their logarithm is learned.
    logs = np.log(np.clip(missed, least, most))
    width = np.zeros(len(rows))
    for train, test in splits:
        width[test] = (
            _small_trees()
            .fit(inputs[train], logs[train], sample_weight=weights[train])
            .predict(inputs[test])
        )
    width = np.exp(np.clip(width, math.log(least), math.log(most)))
    sources = np.array([table.samples[index].source for index in rows])
    below, above = _factors(target - centre, width, weights, sources)
    return Fitted(
        rows,
        _trees(len(rows)).fit(inputs, target, sample_weight=weights),
        _small_trees().fit(inputs, logs, sample_weight=weights),
        Calibration(
            shift_low=float(np.quantile(target, 0.005)),
            shift_high=float(np.quantile(target, 0.995)),
            width_low=float(least),
            width_high=float(most),
            below=below,
            above=above,
        ),
        centre,
        width,
        folds,
    )


def _trees(rows: int) -> Any:
    from sklearn.ensemble import GradientBoostingRegressor

    many = rows > _MANY
    return GradientBoostingRegressor(
        loss="huber",
        n_estimators=90 if many else 15,
        max_depth=4 if many else 1,
        learning_rate=0.1,
        subsample=0.7,
        min_samples_leaf=12 if many else 8,
        max_features=0.6,
        random_state=_SEED,
    )


def _small_trees() -> Any:
    from sklearn.ensemble import GradientBoostingRegressor

    return GradientBoostingRegressor(
        n_estimators=25,
        max_depth=3,
        learning_rate=0.15,
        subsample=0.7,
        min_samples_leaf=10,
        max_features=0.6,
        random_state=_SEED,
    )


def _factors(
    missed: Floats, width: Floats, weights: Floats, sources: npt.NDArray[np.str_]
) -> tuple[float, float]:
    """How many widths reach the tenth percentile of the misses, and the ninetieth.

    The tenth is of all rows together. The ninetieth holds on every set of some size by itself: a
    reservation rests on it, and the largest set must not speak for other installations.
    """
    scores = missed / width
    below = -_quantile(scores, weights, 0.1)
    above = _quantile(scores, weights, 0.9)
    for source in np.unique(sources):
        part = sources == source
        if part.sum() >= _ROWS_TO_SPEAK:
            above = max(above, _quantile(scores[part], weights[part], 0.9))
    return max(0.05, below), max(0.05, above)


def _quantile(scores: Floats, weights: Floats, share: float) -> float:
    order = np.argsort(scores)
    reached = np.cumsum(weights[order]) / weights.sum()
    return float(scores[order][min(len(scores) - 1, int(np.searchsorted(reached, share)))])


def held_out_interval(table: Table, quantity: str, fitted: Fitted) -> tuple[Floats, Floats, Floats]:
    """p10, p50, p90 of each fitted row in the learned scale, none of which saw its family: the
    centre, the width and the two factors come from the other folds."""
    rows = fitted.rows
    middle = table.principles[quantity][rows] + fitted.centre
    missed = table.measured[quantity][rows] - middle
    sources = np.array([table.samples[index].source for index in rows])
    low, high = np.zeros(len(rows)), np.zeros(len(rows))
    for fold in np.unique(fitted.folds):
        inside, outside = fitted.folds == fold, fitted.folds != fold
        below, above = _factors(
            missed[outside],
            fitted.width[outside],
            table.weights[rows][outside],
            sources[outside],
        )
        low[inside] = middle[inside] - below * fitted.width[inside]
        high[inside] = middle[inside] + above * fitted.width[inside]
    return low, middle, high


def write_model(
    folder: Path, table: Table, fitted: dict[str, Fitted], cpu: dict[str, Widths], context: str
) -> None:
    """Write the ONNX model and its manifest.

    Args:
        context: the surroundings whose context is taken for granted in predictions.
    """
    folder.mkdir(parents=True, exist_ok=True)
    models = [fitted[name].centre_model for name in QUANTITIES]
    models += [fitted[name].width_model for name in QUANTITIES]
    content = merged_trees(models, len(INPUTS))
    (folder / MODEL).write_bytes(content)
    rows: dict[str, int] = {}
    for one in table.samples:
        rows[one.source] = rows.get(one.source, 0) + 1
    manifest = Manifest(
        version=VERSION,
        sha256={MODEL: hashlib.sha256(content).hexdigest()},
        context_bytes=table.context_bytes[context],
        device_models=tuple(sorted({one.spec.model for one in table.samples})),
        rows=rows,
        quantities={name: fitted[name].calibration for name in QUANTITIES},
        cpu=cpu,
    )
    text = msgspec.json.format(msgspec.json.encode(manifest), indent=2)
    (folder / MANIFEST).write_bytes(text + b"\n")


def merged_trees(models: Sequence[Any], inputs: int) -> bytes:
    """Several boosted-tree regressors as one ONNX operator with one output for each.

    A threshold is rounded down to float32: for float32 inputs that decides as scikit-learn does.
    """
    from onnx import TensorProto, helper

    nodes: dict[str, list[Any]] = {
        name: []
        for name in ("treeids", "nodeids", "featureids", "modes", "values", "truenodeids",
                     "falsenodeids")
    }  # fmt: skip
    leaves: dict[str, list[Any]] = {name: [] for name in ("treeids", "nodeids", "ids", "weights")}
    base = []
    tree_id = 0
    for target, model in enumerate(models):
        base.append(float(np.ravel(model.init_.constant_)[0]))
        for estimator in model.estimators_[:, 0]:
            tree = estimator.tree_
            for node in range(tree.node_count):
                leaf = tree.children_left[node] == -1
                nodes["treeids"].append(tree_id)
                nodes["nodeids"].append(node)
                nodes["featureids"].append(0 if leaf else int(tree.feature[node]))
                nodes["modes"].append("LEAF" if leaf else "BRANCH_LEQ")
                nodes["values"].append(0.0 if leaf else _down(float(tree.threshold[node])))
                nodes["truenodeids"].append(0 if leaf else int(tree.children_left[node]))
                nodes["falsenodeids"].append(0 if leaf else int(tree.children_right[node]))
                if leaf:
                    leaves["treeids"].append(tree_id)
                    leaves["nodeids"].append(node)
                    leaves["ids"].append(target)
                    leaves["weights"].append(float(model.learning_rate * tree.value[node, 0, 0]))
            tree_id += 1
    attributes: dict[str, Any] = {f"nodes_{name}": values for name, values in nodes.items()}
    attributes |= {f"target_{name}": values for name, values in leaves.items()}
    operator = helper.make_node(
        "TreeEnsembleRegressor",
        ["inputs"],
        ["outputs"],
        domain="ai.onnx.ml",
        n_targets=len(models),
        base_values=base,
        post_transform="NONE",
        aggregate_function="SUM",
        **attributes,
    )
    graph = helper.make_graph(
        [operator],
        "residual",
        [helper.make_tensor_value_info("inputs", TensorProto.FLOAT, [None, inputs])],
        [helper.make_tensor_value_info("outputs", TensorProto.FLOAT, [None, len(models)])],
    )
    model = helper.make_model(
        graph,
        producer_name="horus-lab",
        opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)],
    )
    model.ir_version = 8
    content: bytes = model.SerializeToString()
    return content


def _down(threshold: float) -> float:
    single = np.float32(threshold)
    if float(single) > threshold:
        single = np.nextafter(single, np.float32(-np.inf))
    return float(single)
