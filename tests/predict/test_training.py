"""From described networks and measured sets to a model that runs without scikit-learn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from horus_lab.errors import ConfigurationError
from horus_lab.predict import train
from horus_lab.predict.analytic import Layer, Totals, mlp_step, totals_step
from horus_lab.predict.captured import CapturedStep, at_batch, read_captured, write_captured
from horus_lab.predict.datasets import Captures, family_of, gpumemnet_mlp, paper_formula
from tests.predict.conftest import features

torch = pytest.importorskip("torch")
nn = torch.nn

BATCH = 64
NETWORKS: dict[str, tuple[list[Any], list[Layer]]] = {
    "relu": (
        [nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 10)],
        [Layer("linear", 32, 672), Layer("ReLU", 32, 0), Layer("linear", 10, 330)],
    ),
    "norm and dropout": (
        [nn.Linear(20, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 10)],
        [
            Layer("linear", 32, 672),
            Layer("batch_normalization", 32, 64),
            Layer("ReLU", 32, 0),
            Layer("dropout", 32, 0),
            Layer("linear", 10, 330),
        ],
    ),
    "gelu": (
        [nn.Linear(20, 48), nn.GELU(), nn.Linear(48, 32), nn.GELU(), nn.Linear(32, 10)],
        [
            Layer("linear", 48, 1008),
            Layer("GELU", 48, 0),
            Layer("linear", 32, 1568),
            Layer("GELU", 32, 0),
            Layer("linear", 10, 330),
        ],
    ),
}


@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_a_described_mlp_counts_as_its_captured_step_does(name: str) -> None:
    from horus_lab.graph import capture_step

    modules, layers = NETWORKS[name]
    captured = capture_step(
        nn.Sequential(*modules),
        (torch.empty(BATCH, 20), torch.zeros(BATCH, dtype=torch.int64)),
        loss=nn.functional.cross_entropy,
        optimizer=torch.optim.Adam,
        time_limit_seconds=200.0,
    )
    described = mlp_step(layers, 20, BATCH)
    products = [
        sum(row.flops for row in one.operations if row.operation == "linear")
        for one in (described, captured)
    ]
    assert products[0] == products[1]
    assert described.flops == pytest.approx(captured.flops, rel=0.02)
    assert described.bytes_moved == pytest.approx(captured.bytes_moved, rel=0.05)
    assert described.parameter_bytes == captured.parameter_bytes
    assert described.optimizer_state_bytes == pytest.approx(
        captured.optimizer_state_bytes, rel=0.02
    )
    assert described.saved_activation_bytes == pytest.approx(
        captured.saved_activation_bytes, rel=0.05
    )
    assert described.peak_live_bytes == pytest.approx(captured.peak_live_bytes, rel=0.15)


def test_an_mlp_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="layers"):
        mlp_step([], 10, 10)


def test_totals_cost_three_forward_passes_of_products() -> None:
    totals = Totals(
        name="net",
        multiply_adds=4e9,
        activations=1e7,
        parameters=25e6,
        image=224,
        attention=False,
        live_bytes=1e9,
    )
    step = totals_step(totals, 8)
    products = sum(row.flops for row in step.operations if row.operation == "convolution")
    assert products == pytest.approx(3 * 2 * 4e9 * 8)
    assert step.peak_live_bytes == 1e9 + 4 * 25e6


def test_a_third_batch_size_follows_from_two() -> None:
    two, four = features(samples=2, peak_live_bytes=120), features(samples=4, peak_live_bytes=220)
    assert at_batch(two, four, 10).peak_live_bytes == 520
    with pytest.raises(ValueError, match="two different"):
        at_batch(two, two, 10)


def test_captured_steps_survive_their_file(tmp_path: Path) -> None:
    steps = [CapturedStep(name="timm/a", batch=32, optimizer="sgd", features=features())]
    write_captured(tmp_path / "table.jsonl", steps)
    assert read_captured(tmp_path / "table.jsonl") == steps


def test_a_broken_table_of_captures_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "table.jsonl").write_text('{"name": 3}\n')
    with pytest.raises(ConfigurationError, match="not a table of captured steps"):
        read_captured(tmp_path / "table.jsonl")
    with pytest.raises(ConfigurationError, match="no table"):
        read_captured(tmp_path / "other.jsonl")


@pytest.mark.parametrize(
    ("left", "right"),
    [("ResNet50", "resnet18"), ("vgg16", "VGG"), ("tf_efficientnet_b0", "EfficientNet")],
)
def test_one_family_has_one_name_in_every_set(left: str, right: str) -> None:
    assert family_of(left) == family_of(right)


def test_the_papers_formula_counts_gradients_once_a_sample() -> None:
    # 4 · (10·2 + 5 + 2·5)
    assert paper_formula(10, 2, 5) == 140


def test_an_mlp_row_becomes_a_sample(tmp_path: Path) -> None:
    import gzip

    header = "configuration,layers,total_activations,total_parameters,batch,max_memory_mib"
    layers = "\"[('linear', 4, 12), ('ReLU', 4, 0)]\""
    setting = "input:2_output:4_depth:1_arch:uniform_batch:8.out"
    with gzip.open(tmp_path / "mlp.csv.gz", "wt") as file:
        file.write(f"{header},gpu_util_pct\n{setting},{layers},8,12,8,1500,25\n")
    (sample,) = gpumemnet_mlp(tmp_path, Captures([]))
    assert (sample.family, sample.utilization) == ("mlp uniform", 0.25)
    assert sample.memory_bytes == 1500 * 2**20
    assert sample.features.parameters == 12


def test_a_missing_set_is_named_with_where_to_find_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "captured.jsonl"
    write_captured(table, [])
    status = train.main(
        ["--data", str(tmp_path), "--out", str(tmp_path / "out"), "--captured", str(table)]
    )
    assert status == 2
    said = capsys.readouterr().err
    assert "gpumemnet_mlp is missing" in said
    assert "docs/prediction.md" in said
    assert not (tmp_path / "out").exists()


def test_merged_trees_answer_as_scikit_learn_does() -> None:
    import onnxruntime
    from sklearn.ensemble import GradientBoostingRegressor

    from horus_lab.predict.fitting import merged_trees

    random = np.random.default_rng(0)
    inputs = random.normal(size=(400, 5)).astype(np.float32)
    targets = (inputs[:, 0] * 2 + np.sin(inputs[:, 1]), inputs[:, 2] ** 2)
    models = [
        GradientBoostingRegressor(n_estimators=20, max_depth=3, random_state=0).fit(inputs, one)
        for one in targets
    ]
    session = onnxruntime.InferenceSession(merged_trees(models, 5))
    (found,) = session.run(None, {"inputs": inputs})
    expected = np.stack([model.predict(inputs) for model in models], axis=1)
    assert np.abs(found - expected).max() < 1e-4


def test_a_file_without_cpu_measurements_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "cpu.json").write_text("{}")
    with pytest.raises(ConfigurationError, match="CPU measurements"):
        train.cpu_widths(tmp_path / "cpu.json")


def test_captures_give_any_batch_of_a_name_captured_at_two() -> None:
    captures = Captures(
        CapturedStep(
            name="timm/a",
            batch=batch,
            optimizer="adam",
            features=replace(features(), samples=batch, peak_live_bytes=100 * batch),
        )
        for batch in (8, 32)
    )
    found = captures.get("timm/a", 64)
    assert found is not None
    assert found.peak_live_bytes == 6400
    assert captures.get("timm/b", 64) is None
