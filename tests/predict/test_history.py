"""What ended runs teach."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horus_lab.predict import ShippedPredictor, spec_for
from horus_lab.predict.history import (
    FORGETTING,
    KEPT_RUNS,
    Histories,
    Spread,
    Sums,
)
from horus_lab.records import Basis, Observation
from tests.predict.conftest import features

A100 = spec_for("A100-40GB")
HASH = features().graph_hash


def run(
    at: float,
    memory: int | None = None,
    step: float | None = None,
    utilization: float | None = None,
    model: str = "A100-40GB",
) -> Observation:
    return Observation(
        graph_hash=HASH,
        device_model=model,
        observed_at=at,
        memory_bytes=memory,
        step_seconds=step,
        utilization=utilization,
    )


def test_a_run_moves_the_prediction_towards_its_measurement_without_replacing_it() -> None:
    predictor = ShippedPredictor.load()
    before = predictor.predict(features(), None, A100)
    assert before.memory_bytes is not None
    measured = int(before.memory_bytes.p50 * 1.3)
    predictor.learn(run(1.0, memory=measured))
    after = predictor.predict(features(), None, A100)
    assert after.memory_bytes is not None
    assert after.basis is Basis.HISTORY
    assert before.memory_bytes.p50 < after.memory_bytes.p50 < measured


def test_repeated_runs_narrow_the_interval_around_what_they_measure() -> None:
    predictor = ShippedPredictor.load()
    widths = []
    for at in range(20):
        predictor.learn(run(float(at), memory=5 * 2**30))
        found = predictor.predict(features(), None, A100).memory_bytes
        assert found is not None
        widths.append(math.log(found.p90 / found.p10))
    assert widths == sorted(widths, reverse=True)
    assert found.p50 == pytest.approx(5 * 2**30, rel=0.02)


def test_the_interval_stays_as_wide_as_the_runs_scatter() -> None:
    predictor = ShippedPredictor.load()
    for at in range(40):
        predictor.learn(run(float(at), memory=(4 if at % 2 else 6) * 2**30))
    found = predictor.predict(features(), None, A100).memory_bytes
    assert found is not None
    # The runs' logarithms lie half of log(6/4) either side of their mean.
    spread = math.log(6 / 4) / 2
    assert math.log(found.p90 / found.p50) >= 1.28 * spread


def test_a_change_is_followed_because_old_runs_are_forgotten() -> None:
    predictor = ShippedPredictor.load()
    for at in range(30):
        predictor.learn(run(float(at), step=1.0))
    for at in range(30, 60):
        predictor.learn(run(float(at), step=2.0))
    found = predictor.predict(features(), None, A100).step_seconds
    assert found is not None
    assert found.p50 == pytest.approx(2.0, rel=0.1)


def test_what_a_run_did_not_measure_stays_as_it_was() -> None:
    predictor = ShippedPredictor.load()
    before = predictor.predict(features(), None, A100)
    predictor.learn(run(1.0, memory=5 * 2**30))
    after = predictor.predict(features(), None, A100)
    assert after.step_seconds == before.step_seconds
    assert after.utilization == before.utilization
    assert after.memory_bytes != before.memory_bytes


def test_another_device_model_learns_nothing_from_it() -> None:
    predictor = ShippedPredictor.load()
    other = spec_for("RTX 3090")
    before = predictor.predict(features(), None, other)
    predictor.learn(run(1.0, memory=5 * 2**30))
    assert predictor.predict(features(), None, other) == before


def test_a_measurement_that_cannot_be_one_teaches_nothing() -> None:
    predictor = ShippedPredictor.load()
    before = predictor.predict(features(), None, A100)
    predictor.learn(run(1.0, memory=0, step=0.0))
    predictor.learn(run(2.0, step=math.inf, utilization=math.nan))
    assert predictor.predict(features(), None, A100) == before


def test_an_exported_history_restores_to_the_same_predictions() -> None:
    taught = ShippedPredictor.load()
    for at in range(10):
        taught.learn(run(float(at), memory=(5 + at % 2) * 2**30, step=0.5, utilization=0.7))
    anew = ShippedPredictor.load()
    anew.restore(reversed(taught.export_history()))
    assert anew.predict(features(), None, A100) == taught.predict(features(), None, A100)


def test_restoring_forgets_what_was_learned_before() -> None:
    predictor = ShippedPredictor.load()
    before = predictor.predict(features(), None, A100)
    predictor.learn(run(1.0, memory=5 * 2**30))
    predictor.restore(())
    assert predictor.predict(features(), None, A100) == before


def test_a_graph_keeps_a_bounded_number_of_runs() -> None:
    histories = Histories()
    for at in range(KEPT_RUNS + 10):
        histories.learn(run(float(at), memory=2**30))
    kept = histories.export()
    assert len(kept) == KEPT_RUNS
    assert kept[0].observed_at == 10.0


def test_the_posterior_of_one_run_is_the_conjugate_one() -> None:
    prior, spread = Spread(0.0, 0.2), 0.1
    after = Sums().updated(1.0).posterior(prior, spread)
    # One value has no scatter: variance 3·0.1²/(3+1); precisions 1/0.04 and 1/0.0075.
    variance = 3 * 0.01 / 4
    before, told = 1 / 0.04, 1 / variance
    assert after.centre == pytest.approx(told / (before + told))
    assert after.deviation == pytest.approx(math.sqrt(variance + 1 / (before + told)))


def test_decayed_sums_are_those_of_weighted_runs() -> None:
    values = [1.0, 4.0, 2.0]
    sums = Sums()
    for value in values:
        sums = sums.updated(value)
    weights = [FORGETTING**2, FORGETTING, 1.0]
    mean = sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)
    squares = sum(w * (v - mean) ** 2 for w, v in zip(weights, values, strict=True))
    assert sums.mean == pytest.approx(mean)
    assert sums.squares == pytest.approx(squares)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.none() | st.integers(0, 2**53),
            st.none() | st.floats(0, 1e8),
            st.none() | st.floats(0, 1),
        ),
        max_size=12,
    )
)
def test_any_history_gives_finite_ordered_intervals(
    runs: list[tuple[int | None, float | None, float | None]],
) -> None:
    predictor = ShippedPredictor()
    for at, (memory, step, utilization) in enumerate(runs):
        predictor.learn(run(float(at), memory, step, utilization))
    found = predictor.predict(features(), None, A100)
    assert found.memory_bytes is not None
    assert 0 <= found.memory_bytes.p10 <= found.memory_bytes.p90 <= 2**53
    assert found.utilization is not None
    assert 0 <= found.utilization.p10 <= found.utilization.p90 <= 1
