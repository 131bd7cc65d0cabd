"""Device models are recognised by the names that NVML and people give them."""

from __future__ import annotations

import pytest

from horus_lab.predict import SPECS, measure_cpu, spec_for
from horus_lab.records import DeviceKind

GIB = 2**30


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100-80GB"),
        ("NVIDIA A100 80GB PCIe", "A100-80GB"),
        ("NVIDIA A100-PCIE-40GB", "A100-40GB"),
        ("A100-80GB", "A100-80GB"),
        ("NVIDIA GeForce RTX 3090", "RTX 3090"),
        ("NVIDIA GeForce RTX 2080 Ti", "RTX 2080 Ti"),
        ("Tesla V100-SXM2-32GB", "V100-32GB"),
        ("Tesla T4", "T4"),
        ("NVIDIA H100 PCIe", "H100-80GB PCIe"),
        ("NVIDIA H100 80GB HBM3", "H100-80GB"),
        ("NVIDIA RTX A6000", "RTX A6000"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA GB10", "GB10"),
    ],
)
def test_a_product_name_finds_its_device_model(name: str, model: str) -> None:
    assert spec_for(name).model == model
    assert spec_for(name).source == "table"


@pytest.mark.parametrize("model", sorted(SPECS))
def test_every_model_of_the_table_finds_itself(model: str) -> None:
    assert spec_for(model) is SPECS[model]


def test_the_table_knows_at_least_twenty_models_with_positive_rates() -> None:
    assert len(SPECS) >= 20
    for spec in SPECS.values():
        assert min(spec.peak_flops.values()) > 0
        assert spec.memory_bandwidth > 0
        assert spec.multiprocessors > 0


def test_memory_tells_variants_of_one_name_apart() -> None:
    assert spec_for("NVIDIA A100-SXM4", 81920 * 2**20).model == "A100-80GB"
    assert spec_for("NVIDIA A100-SXM4", 40960 * 2**20).model == "A100-40GB"
    assert spec_for("Tesla V100-SXM2", 32 * GIB).model == "V100-32GB"


def test_the_memory_that_the_driver_reports_stands_in_the_specification() -> None:
    assert spec_for("NVIDIA GeForce RTX 3060", 8 * GIB).memory_bytes == 8 * GIB


@pytest.mark.parametrize(
    "name", ["NVIDIA GeForce RTX 3090 Ti", "NVIDIA GeForce RTX 4070 Ti SUPER", "Radeon", ""]
)
def test_an_unknown_name_gets_an_assumed_specification_that_says_so(name: str) -> None:
    spec = spec_for(name, 12 * GIB)
    assert spec.source == "assumed"
    assert spec.memory_bytes == 12 * GIB
    assert spec.model


def test_a_mig_instance_has_its_slices_of_the_whole() -> None:
    spec = spec_for("NVIDIA A100-SXM4-40GB MIG 3g.20gb")
    whole = SPECS["A100-40GB"]
    assert spec.kind is DeviceKind.MIG
    assert spec.memory_bytes == 20 * GIB
    # By NVIDIA's slicing: three of seven compute slices, four of eight memory slices.
    assert spec.peak_flops["float32"] == pytest.approx(whole.peak_flops["float32"] * 3 / 7)
    assert spec.memory_bandwidth == pytest.approx(whole.memory_bandwidth / 2)


def test_a_cpu_is_measured_with_rates_that_a_cpu_can_have() -> None:
    spec = measure_cpu(2, 8 * GIB, name="this")
    assert (spec.model, spec.kind, spec.source) == ("this", DeviceKind.CPU, "measured")
    assert (spec.multiprocessors, spec.memory_bytes) == (2, 8 * GIB)
    # From a busy small core to a large server: anything outside is a broken measurement.
    assert 1e8 < spec.peak_flops["float32"] < 1e14
    assert 1e8 < spec.memory_bandwidth < 1e13


def test_a_cpu_without_cores_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one core"):
        measure_cpu(0, GIB)


def test_one_slip_of_the_clock_does_not_make_a_fast_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    from horus_lab.predict import cpu_spec

    # Each call takes 10 ms; one reading says a nanosecond.
    now = [0.0]
    steps = iter([0.01, 1e-9, *[0.01] * 1000])

    monkeypatch.setattr(cpu_spec.time, "perf_counter", lambda: now[0])

    def work() -> None:
        now[0] += next(steps)

    assert cpu_spec._best(work) == pytest.approx(0.01)
