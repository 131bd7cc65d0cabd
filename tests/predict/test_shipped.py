"""The predictor that the broker uses."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import horus_lab.predict
from horus_lab.predict import SPECS, ShippedPredictor, spec_for
from horus_lab.records import (
    MAX_BYTES,
    MAX_SECONDS,
    Basis,
    CaptureMethod,
    DeclaredNeeds,
    DeviceKind,
    DeviceSpec,
    GraphFeatures,
    Interval,
    OperationClass,
    OperationStatistics,
    Phase,
    Prediction,
)
from tests.predict.conftest import features

GIB = 2**30
A100 = spec_for("A100-40GB")
CPU = DeviceSpec(
    model="a CPU",
    kind=DeviceKind.CPU,
    memory_bytes=16 * GIB,
    peak_flops={"float32": 2e11},
    memory_bandwidth=2e10,
    multiprocessors=4,
    launch_seconds=1e-5,
    context_bytes=400 * 2**20,
    source="measured",
)


def log_width(interval: Interval | None) -> float:
    assert interval is not None
    return math.log(interval.p90 / interval.p10)


def test_the_shipped_model_loads_without_a_notice(shipped: ShippedPredictor) -> None:
    assert shipped.notices == ()


def test_a_prediction_has_every_quantity_and_names_its_device(shipped: ShippedPredictor) -> None:
    found = shipped.predict(features(), None, A100)
    assert (found.device_model, found.basis) == ("A100-40GB", Basis.MODEL)
    for interval in intervals(found):
        assert interval is not None
    assert found.explanation


def test_many_devices_at_once_are_as_one_by_one(shipped: ShippedPredictor) -> None:
    specs = [*list(SPECS.values())[:15], CPU]
    held = [None if index % 2 else 2 * GIB for index in range(16)]
    together = shipped.predict_many(features(), None, specs, held)
    for spec, one, found in zip(specs, held, together, strict=True):
        alone = shipped.predict(features(), None, spec, held_bytes=one)
        for left, right in zip(intervals(found), intervals(alone), strict=True):
            assert left is not None
            assert right is not None
            assert left.p50 == pytest.approx(right.p50, rel=1e-5)
            assert left.p90 == pytest.approx(right.p90, rel=1e-5)


def test_more_live_bytes_need_more_memory(shipped: ShippedPredictor) -> None:
    sizes = [
        shipped.predict(
            features(saved_activation_bytes=n * GIB, peak_live_bytes=n * GIB), None, A100
        ).memory_bytes
        for n in (1, 4, 16)
    ]
    assert sizes[0].p50 < sizes[1].p50 < sizes[2].p50  # type: ignore[union-attr]


def test_memory_holds_the_live_bytes_and_a_context(shipped: ShippedPredictor) -> None:
    found = shipped.predict(features(), None, A100).memory_bytes
    assert found is not None
    assert found.p90 > features().peak_live_bytes + A100.context_bytes


def test_a_gpu_process_that_holds_more_than_its_context_needs_that_on_top(
    shipped: ShippedPredictor,
) -> None:
    fresh = shipped.predict(features(), None, A100).memory_bytes
    context = shipped.predict(features(), None, A100, held_bytes=A100.context_bytes).memory_bytes
    full = shipped.predict(
        features(), None, A100, held_bytes=A100.context_bytes + 3 * GIB
    ).memory_bytes
    assert context == fresh
    assert full is not None
    assert fresh is not None
    assert full.p50 == pytest.approx(fresh.p50 + 3 * GIB)


def test_on_a_cpu_the_process_holds_its_baseline_already(shipped: ShippedPredictor) -> None:
    small = shipped.predict(features(), None, CPU, held_bytes=GIB).memory_bytes
    large = shipped.predict(features(), None, CPU, held_bytes=3 * GIB).memory_bytes
    assert small is not None
    assert large is not None
    assert large.p50 == pytest.approx(small.p50 + 2 * GIB)
    assert large.p10 >= 3 * GIB


def test_an_unsure_capture_widens_every_interval(shipped: ShippedPredictor) -> None:
    sure = shipped.predict(features(confidence=1.0), None, A100)
    unsure = shipped.predict(features(confidence=0.4), None, A100)
    assert log_width(unsure.memory_bytes) > log_width(sure.memory_bytes)
    assert log_width(unsure.step_seconds) > log_width(sure.step_seconds)
    assert "40%" in unsure.explanation


def test_an_unseen_device_model_is_wider_and_says_so(shipped: ShippedPredictor) -> None:
    seen = shipped.predict(features(), None, A100)
    # The same device under a name that no training run had.
    unseen = shipped.predict(features(), None, replace(A100, model="Z9000"))
    assert log_width(unseen.memory_bytes) > log_width(seen.memory_bytes)
    assert "no training measurement" in unseen.explanation
    assert "no training measurement" not in seen.explanation


def test_an_assumed_specification_is_wider_still_and_says_so(shipped: ShippedPredictor) -> None:
    unseen = shipped.predict(features(), None, replace(A100, model="Z9000"))
    assumed = shipped.predict(features(), None, replace(A100, model="Z9000", source="assumed"))
    assert log_width(assumed.memory_bytes) > log_width(unseen.memory_bytes)
    assert "nothing is published" in assumed.explanation


def test_what_is_declared_stands_and_the_rest_stays_unknown(shipped: ShippedPredictor) -> None:
    found = shipped.predict(None, DeclaredNeeds(memory_bytes=2 * GIB), A100)
    assert found.basis is Basis.DECLARED
    assert found.memory_bytes is not None
    assert (found.memory_bytes.p10, found.memory_bytes.p50) == (2 * GIB, 2 * GIB)
    assert 2 * GIB <= found.memory_bytes.p90 < 2.1 * GIB
    assert found.memory_startup_bytes == found.memory_bytes
    assert found.utilization is None
    assert found.memory_utilization is None
    assert found.step_seconds is None


def test_declared_needs_win_over_features_field_by_field(shipped: ShippedPredictor) -> None:
    modelled = shipped.predict(features(), None, A100)
    found = shipped.predict(features(), DeclaredNeeds(memory_bytes=2 * GIB, utilization=0.25), A100)
    assert found.basis is Basis.DECLARED
    assert found.memory_bytes is not None
    assert found.memory_bytes.p50 == 2 * GIB
    assert found.utilization is not None
    assert found.utilization.p50 == 0.25
    assert found.step_seconds == modelled.step_seconds


def test_a_declared_utilization_of_zero_is_not_overruled(shipped: ShippedPredictor) -> None:
    found = shipped.predict(features(), DeclaredNeeds(memory_bytes=GIB, utilization=0.0), A100)
    assert found.utilization == Interval(0.0, 0.0, 0.0)


def test_neither_features_nor_needs_is_unknown(shipped: ShippedPredictor) -> None:
    found = shipped.predict(None, None, A100)
    assert found.basis is Basis.UNKNOWN
    assert intervals(found) == (None,) * 5


def test_no_device_gives_no_prediction(shipped: ShippedPredictor) -> None:
    assert shipped.predict_many(features(), None, ()) == ()


def test_held_bytes_must_match_the_devices(shipped: ShippedPredictor) -> None:
    with pytest.raises(ValueError, match="one element"):
        shipped.predict_many(features(), None, (A100, A100), (1,))


# --- broken files -------------------------------------------------------------------------------


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The shipped files, to be broken."""
    folder = Path(horus_lab.predict.__file__).parent / "shipped"
    for name in ("manifest.json", "residual.onnx"):
        shutil.copy(folder / name, tmp_path)
    return tmp_path


def stands_on_principles(folder: Path) -> str:
    predictor = ShippedPredictor.load(folder)
    (notice,) = predictor.notices
    found = predictor.predict(features(), None, A100)
    shipped = ShippedPredictor.load().predict(features(), None, A100)
    assert found.basis is Basis.MODEL
    assert "without learning" in found.explanation
    assert log_width(found.memory_bytes) > log_width(shipped.memory_bytes)
    return notice


def test_an_untouched_copy_loads(copy: Path) -> None:
    assert ShippedPredictor.load(copy).notices == ()


def test_a_changed_model_is_noticed_by_its_digest(copy: Path) -> None:
    model = copy / "residual.onnx"
    content = bytearray(model.read_bytes())
    content[len(content) // 2] ^= 1
    model.write_bytes(content)
    assert "sha256" in stands_on_principles(copy)


def test_a_truncated_manifest_is_noticed(copy: Path) -> None:
    manifest = copy / "manifest.json"
    manifest.write_bytes(manifest.read_bytes()[:100])
    assert "not usable" in stands_on_principles(copy)


def test_a_manifest_of_another_version_is_noticed(copy: Path) -> None:
    manifest = copy / "manifest.json"
    content = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**content, "version": 99}))
    assert "version is 99" in stands_on_principles(copy)


def test_missing_files_are_noticed(tmp_path: Path) -> None:
    assert "not usable" in stands_on_principles(tmp_path / "nowhere")


def test_an_intact_digest_over_something_that_is_no_model_is_noticed(copy: Path) -> None:
    import hashlib

    (copy / "residual.onnx").write_bytes(b"not a model")
    manifest = copy / "manifest.json"
    content = json.loads(manifest.read_text())
    content["sha256"]["residual.onnx"] = hashlib.sha256(b"not a model").hexdigest()
    manifest.write_text(json.dumps(content))
    assert "onnxruntime cannot read it" in stands_on_principles(copy)


# --- absurd but bounded numbers -----------------------------------------------------------------

COUNTS = st.sampled_from([0, 1, 2**20, 2**40, MAX_BYTES]) | st.integers(0, MAX_BYTES)
FLOPS = st.sampled_from([0.0, 1.0, 1e12, 1e24]) | st.floats(0, 1e24)
OPERATIONS = st.lists(
    st.builds(
        OperationStatistics,
        operation=st.sampled_from(OperationClass),
        phase=st.sampled_from(Phase),
        launches=COUNTS,
        flops=FLOPS,
        bytes_moved=COUNTS,
    ),
    max_size=6,
).map(tuple)
FEATURES = st.builds(
    GraphFeatures,
    method=st.sampled_from(CaptureMethod),
    confidence=st.floats(0, 1),
    graph_hash=st.just("0" * 16),
    samples=st.none() | st.integers(1, 2**40),
    operations=OPERATIONS,
    flops=FLOPS,
    bytes_moved=COUNTS,
    launches=COUNTS,
    dtype_flops=st.dictionaries(
        st.sampled_from(["float32", "bfloat16", "float64", "int8", "torch.float16"]), FLOPS
    ),
    parameters=COUNTS,
    parameter_bytes=COUNTS,
    gradient_bytes=COUNTS,
    optimizer_state_bytes=COUNTS,
    buffer_bytes=COUNTS,
    input_bytes=COUNTS,
    saved_activation_bytes=COUNTS,
    peak_live_bytes=COUNTS,
)


@settings(max_examples=60, deadline=None)
@given(FEATURES, st.none() | st.integers(0, MAX_BYTES))
def test_absurd_features_never_raise_nor_leave_the_bounds(
    some: GraphFeatures, held: int | None
) -> None:
    for predictor in (_SHIPPED, _PLAIN):
        for found in predictor.predict_many(some, None, _DEVICES, [held] * len(_DEVICES)):
            bounded = (
                (found.memory_bytes, MAX_BYTES),
                (found.memory_startup_bytes, MAX_BYTES),
                (found.utilization, 1.0),
                (found.memory_utilization, 1.0),
                (found.step_seconds, MAX_SECONDS),
            )
            for interval, most in bounded:
                assert interval is not None
                assert 0 <= interval.p10 <= interval.p50 <= interval.p90 <= most


_SHIPPED = ShippedPredictor.load()
_PLAIN = ShippedPredictor()
_DEVICES = (A100, spec_for("K80"), spec_for("who knows"), CPU)


def intervals(prediction: Prediction) -> tuple[Interval | None, ...]:
    """All five intervals of a prediction."""
    return (
        prediction.utilization,
        prediction.memory_utilization,
        prediction.memory_startup_bytes,
        prediction.memory_bytes,
        prediction.step_seconds,
    )
