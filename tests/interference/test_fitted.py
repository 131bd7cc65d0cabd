"""The slowdown model: its anchors, and rules that hold for every load."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from horus_lab.interference import FittedInterference, fit, form
from horus_lab.interference.fitted import Coefficients
from horus_lab.records import Basis, DeviceKind, DeviceSpec, Interval, Prediction

MODEL = FittedInterference.load()
LOADS = st.floats(0.0, 1.0)


def spec(kind: DeviceKind = DeviceKind.NVIDIA) -> DeviceSpec:
    return DeviceSpec(
        model="A",
        kind=kind,
        memory_bytes=2**34,
        peak_flops={},
        memory_bandwidth=1e12,
        multiprocessors=80,
        launch_seconds=5e-6,
        context_bytes=0,
    )


def load(value: float | None, bandwidth: float | None = None, width: float = 0.0) -> Prediction:
    def around(middle: float | None) -> Interval | None:
        if middle is None:
            return None
        return Interval(max(0.0, middle - width), middle, min(1.0, middle + width))

    return Prediction(
        device_model="A",
        basis=Basis.MODEL,
        utilization=around(value),
        memory_utilization=around(bandwidth),
    )


def middles(*residents: Prediction, kind: DeviceKind = DeviceKind.NVIDIA) -> list[float]:
    found = MODEL.slowdowns(residents, spec(kind))
    assert all(one is not None for one in found)
    return [one.p50 for one in found if one is not None]


def test_alone_nobody_is_slowed_whatever_is_unknown() -> None:
    assert MODEL.slowdowns([load(None)], spec()) == (Interval(1.0, 1.0, 1.0),)


def test_an_unknown_load_makes_everybodys_slowdown_unknown() -> None:
    assert MODEL.slowdowns([load(0.1), load(None)], spec()) == (None, None)


def test_a_neighbour_without_load_takes_nothing() -> None:
    assert middles(load(0.9, 0.5), load(0.0, 0.0)) == [1.0, 1.0]


def test_a_cpus_cores_are_simply_shared() -> None:
    assert middles(load(0.8), load(0.7), kind=DeviceKind.CPU) == pytest.approx([1.5, 1.5])
    assert middles(load(0.4), load(0.5), kind=DeviceKind.CPU) == [1.0, 1.0]
    # 0.8 +- 0.1 and 0.7 +- 0.1 sum to 1.3, 1.5 and 1.7 of the cores.
    (shared, _) = MODEL.slowdowns(
        [load(0.8, width=0.1), load(0.7, width=0.1)], spec(DeviceKind.CPU)
    )
    assert shared is not None
    assert (shared.p10, shared.p90) == (pytest.approx(1.3), pytest.approx(1.7))


def test_three_residents_are_slowed_at_least_as_by_sharing_the_devices_time() -> None:
    assert all(value >= 1.8 - 1e-9 for value in middles(load(0.6), load(0.6), load(0.6)))


def test_two_full_loads_are_slowed_by_about_what_was_measured() -> None:
    # Pairs whose loads sum to 180-200 % kept 0.68 of their speed on average.
    for value in middles(load(0.95, 0.5), load(0.95, 0.5)):
        assert 1 / 0.95 > 1 / value > 0.5


@given(a=LOADS, b=LOADS, more=LOADS, m=LOADS, n=LOADS)
def test_more_load_beside_one_never_speeds_one_up(
    a: float, b: float, more: float, m: float, n: float
) -> None:
    heavier = min(1.0, b + more)
    assert middles(load(a, m), load(heavier, n))[0] >= middles(load(a, m), load(b, n))[0] - 1e-12


@given(a=LOADS, b=LOADS, c=LOADS)
def test_one_neighbour_more_never_speeds_anyone_up(a: float, b: float, c: float) -> None:
    two = middles(load(a), load(b))
    three = middles(load(a), load(b), load(c))
    assert three[0] >= two[0] - 1e-12
    assert three[1] >= two[1] - 1e-12


@given(a=LOADS, b=LOADS, width=st.floats(0.0, 0.5), known=st.booleans())
def test_a_slowdown_is_an_interval_of_at_least_one_that_widens_with_the_loads(
    a: float, b: float, width: float, known: bool
) -> None:
    bandwidth = 0.3 if known else None
    wide = MODEL.slowdowns([load(a, bandwidth), load(b, bandwidth, width)], spec())[0]
    sharp = MODEL.slowdowns([load(a, bandwidth), load(b, bandwidth)], spec())[0]
    assert wide is not None
    assert sharp is not None
    assert 1.0 <= wide.p10 <= wide.p50 <= wide.p90
    assert wide.p90 >= sharp.p90 - 1e-12


def test_a_coefficient_below_zero_is_refused() -> None:
    raw = json.loads((Path(form.__file__).parent / "coefficients.json").read_text())
    raw["with_bandwidth"][0] = -0.1
    with pytest.raises(msgspec.ValidationError, match="speed a job up"):
        msgspec.convert(raw, Coefficients)


def test_the_fit_finds_the_coefficients_of_made_up_pairs(tmp_path: Path) -> None:
    """Pairs made with one known term are fitted back."""
    folder = tmp_path / "lucid_pairs"
    folder.mkdir()
    names = [f"m{i}" for i in range(12)]
    loads = {name: (10 + 8 * i, 5 * (i % 5)) for i, name in enumerate(names)}
    solo = ["model,dataset,batch,amp,samples_per_s,gpu_util_pct,mem_util_pct,memory_mib"]
    solo += [f"{n},d,1,0,1,{u},{m},1" for n, (u, m) in loads.items()]
    (folder / "solo.csv").write_text("\n".join(solo))
    rows = [
        "model1,dataset1,batch1,amp1,relative_speed1,model2,dataset2,batch2,amp2,relative_speed2"
    ]
    for one in names:
        for two in names:
            excess = 0.5 * max(0.0, loads[one][0] / 100 + loads[two][0] / 100 - 1.0)
            excess = min(excess, 0.5 * min(loads[one][0], loads[two][0]) / 100)
            rows.append(f"{one},d,1,0,{1 / (1 + excess)},{two},d,1,0,{1 / (1 + excess)}")
    (folder / "pairs.csv").write_text("\n".join(rows))
    pairs = fit.Pairs(tmp_path)
    guess = fit.predicted(pairs.with_bandwidth, fit.fit(pairs.with_bandwidth, pairs.speed))
    assert abs(guess - pairs.speed).mean() < 0.005


def test_a_missing_set_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fit.main(["--data", str(tmp_path)]) == 2
    assert "lucid_pairs/pairs.csv" in capsys.readouterr().err
