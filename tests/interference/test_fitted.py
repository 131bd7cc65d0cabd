"""The slowdown model: its anchors, and rules that hold for every load."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from horus_lab.interference import FittedInterference, evaluation, fit, form
from horus_lab.interference.fitted import Coefficients
from horus_lab.interference.measured import Pairs, lucid_pairs
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
    # 0.8 +- 0.1 and 0.7 +- 0.1, independent, sum to 1.5 +- 0.1 sqrt(2) of the cores.
    (shared, _) = MODEL.slowdowns(
        [load(0.8, width=0.1), load(0.7, width=0.1)], spec(DeviceKind.CPU)
    )
    assert shared is not None
    assert (shared.p10, shared.p90) == pytest.approx((1.5 - 0.02**0.5, 1.5 + 0.02**0.5))


def test_three_residents_are_slowed_at_least_as_by_sharing_the_devices_time() -> None:
    assert all(value >= 1.8 - 1e-9 for value in middles(load(0.6), load(0.6), load(0.6)))


def test_the_slowdown_by_hand() -> None:
    # Two alike at half load, each taking half: stretch 1 + a/2, activity
    # a = 0.5 (1 + a/2) / (0.5 + 0.5 (1 + a/2)) = (0.5 + a/4) / (1 + a/4).
    (one, two) = form.excesses([0.5, 0.5], [0.5, 0.5], 1.0)
    # a + a^2/4 = 0.5 + a/4  <=>  a^2 + 3a - 2 = 0  <=>  a = (sqrt(17) - 3) / 2 = 0.5616.
    active = (17**0.5 - 3) / 2
    assert one == two == pytest.approx(0.5 * 0.5 * active, abs=1e-4)


def test_the_90th_percentile_grows_with_how_often_busy_times_meet() -> None:
    raw = json.loads((Path(form.__file__).parent / "coefficients.json").read_text())
    found = MODEL.slowdowns([load(0.4, 0.3), load(0.5, 0.2)], spec())
    assert found[0] is not None
    assert found[0].p90 == pytest.approx(1 + raw["high"] * (0.4 * 0.5 + 0.3 * 0.2))
    unknown = MODEL.slowdowns([load(0.4, 0.3), load(0.5)], spec())
    assert unknown[0] is not None
    assert unknown[0].p90 == pytest.approx(1 + raw["high_without_bandwidth"] * 0.4 * 0.5)


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


BANDWIDTHS = st.one_of(st.none(), LOADS)
RESIDENTS = st.lists(
    st.builds(load, LOADS, BANDWIDTHS, st.floats(0.0, 0.5)), min_size=1, max_size=4
)
KINDS = st.sampled_from([DeviceKind.NVIDIA, DeviceKind.CPU])


@given(residents=RESIDENTS, newcomer=st.builds(load, LOADS, BANDWIDTHS), kind=KINDS)
def test_one_neighbour_more_never_speeds_anyone_up(
    residents: list[Prediction], newcomer: Prediction, kind: DeviceKind
) -> None:
    before = MODEL.slowdowns(residents, spec(kind))
    after = MODEL.slowdowns([*residents, newcomer], spec(kind))
    for few, many in zip(before, after[:-1], strict=True):
        assert few is not None
        assert many is not None
        assert many.p50 >= few.p50 - 1e-9
        assert many.p90 >= few.p90 - 1e-9


@given(residents=RESIDENTS.filter(lambda found: len(found) > 1), kind=KINDS)
def test_the_order_of_the_residents_does_not_matter(
    residents: list[Prediction], kind: DeviceKind
) -> None:
    forward = MODEL.slowdowns(residents, spec(kind))
    backward = MODEL.slowdowns(residents[::-1], spec(kind))[::-1]
    for one, two in zip(forward, backward, strict=True):
        assert one is not None
        assert two is not None
        assert (one.p10, one.p50, one.p90) == pytest.approx((two.p10, two.p50, two.p90))


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


def coefficients() -> dict[str, object]:
    raw: dict[str, object] = json.loads(
        (Path(form.__file__).parent / "coefficients.json").read_text()
    )
    return raw


def test_a_coefficient_below_zero_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="speed a job up"):
        msgspec.convert(coefficients() | {"take": -0.1}, Coefficients)
    with pytest.raises(msgspec.ValidationError, match="at least 1"):
        msgspec.convert(coefficients() | {"power": 0.5}, Coefficients)


def write(folder: Path, solo: list[str], pairs: list[str]) -> Path:
    folder = folder / "lucid_pairs"
    folder.mkdir()
    head = "model,dataset,batch,amp,samples_per_s,gpu_util_pct,mem_util_pct,memory_mib"
    (folder / "solo.csv").write_text("\n".join([head, *solo]) + "\n")
    head = "model1,dataset1,batch1,amp1,relative_speed1,model2,dataset2,batch2,amp2,relative_speed2"
    (folder / "pairs.csv").write_text("\n".join([head, *pairs]) + "\n")
    return folder


def made_up(folder: Path, take: float) -> Path:
    """All pairs of twelve jobs whose neighbours stretch them by `take` while active."""
    loads = {f"m{i}": (10 + 8 * i, 5 * (i % 5)) for i in range(12)}
    solo = [f"{name},d,1,0,1,{u},{m},1" for name, (u, m) in loads.items()]
    pairs = []
    for one, (u, _) in loads.items():
        for two, (v, _) in loads.items():
            mine, other = form.excesses([u / 100, v / 100], [take, take], 1.5)
            pairs.append(f"{one},d,1,0,{1 / (1 + mine)},{two},d,1,0,{1 / (1 + other)}")
    return write(folder, solo, pairs)


def test_the_fit_finds_the_coefficients_of_made_up_pairs(tmp_path: Path) -> None:
    found = fit.fit_middle(lucid_pairs(made_up(tmp_path, take=0.6)))
    assert found.take == pytest.approx(0.6, abs=0.02)
    assert found.take_per_bandwidth == pytest.approx(0.0, abs=0.02)
    assert found.power == pytest.approx(1.5, abs=0.05)


def test_a_fold_is_predicted_by_a_fit_that_has_not_seen_it(tmp_path: Path) -> None:
    """Where one model's pairs are made absurd, the fit without them still predicts sense."""
    pairs = lucid_pairs(made_up(tmp_path, take=0.6))
    absurd = (pairs.models == "m5").any(axis=1)
    speed = pairs.speed.copy()
    speed[absurd] = 0.01
    spoiled = Pairs(*pairs[:4], speed, pairs.models)
    unseen, errors = fit.unseen_model(spoiled)
    own = pairs.models[:, 0] == "m5"
    assert abs(1 / (1 + unseen[own]) - pairs.speed[own]).mean() < 0.02
    assert errors["m5"] > 0.5


def test_a_decision_is_counted_by_pair() -> None:
    # Four pairs of two rows: excess 0.1/0.1, 0.1/0.3, 0.1/0.1, 0.3/0.3 against a bound of 0.25.
    middle = np.array([0.1, 0.1, 0.1, 0.3, 0.1, 0.1, 0.3, 0.3])
    speed = np.array([0.9, 0.9, 0.9, 0.9, 0.9, 0.5, 0.5, 0.9])
    found = evaluation.decision(middle, middle, speed, bound=0.8, weight=1.0)
    # Admitted: the first and the third; the first two keep it.
    assert found.admitted == 0.5
    assert found.admitted_that_keep == 0.5
    assert found.keepers_admitted == 0.5
    # Halfway to a 90th percentile of 0.5 nothing passes.
    none = evaluation.decision(middle, middle * 0 + 0.5, speed, bound=0.8, weight=0.5)
    assert none.admitted == 0.0


def test_a_speed_above_one_is_noise(tmp_path: Path) -> None:
    folder = write(tmp_path, ["a,d,1,0,1,50,20,1"], ["a,d,1,0,1.3,a,d,1,0,0.9"])
    assert lucid_pairs(folder).speed.tolist() == [1.0, 0.9]


@pytest.mark.parametrize(
    ("pairs", "said"),
    [
        ("a,d,1,0,nan,a,d,1,0,0.9", "line 2: relative_speed1 is 'nan'"),
        ("a,d,1,0,,a,d,1,0,0.9", "line 2: relative_speed1 is ''"),
        ("a,d,1,0,0.9,a,d,1,0", "line 2: relative_speed2 is None"),
        ("a,d,1,0,0,a,d,1,0,0.9", "line 2: a speed of 0.0"),
        ("b,d,1,0,0.9,b,d,1,0,0.9", "No pair"),
    ],
)
def test_what_is_wrong_with_a_set_is_said_with_the_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], pairs: str, said: str
) -> None:
    write(tmp_path, ["a,d,1,0,1,50,20,1"], [pairs])
    assert fit.main(["--data", str(tmp_path)]) == 2
    assert said in capsys.readouterr().err


def test_a_missing_set_or_column_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fit.main(["--data", str(tmp_path)]) == 2
    assert "solo.csv cannot be read" in capsys.readouterr().err
    folder = write(tmp_path, [], [])
    (folder / "solo.csv").write_text("model,dataset,batch,amp\n")
    assert fit.main(["--data", str(tmp_path)]) == 2
    assert "no column gpu_util_pct, mem_util_pct" in capsys.readouterr().err
