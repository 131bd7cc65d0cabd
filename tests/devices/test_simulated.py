"""Simulated devices play what is predicted of their residents, and say that they are simulated."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horus_lab.devices.attribution import attribute
from horus_lab.devices.simulated import SimulatedProbe, parse_devices
from horus_lab.errors import ConfigurationError
from horus_lab.predict.specs import SPECS
from horus_lab.records import DeviceKind
from horus_lab.testing import a_prediction

GIB = 2**30


def test_a_description_names_counts_and_models() -> None:
    devices = parse_devices("2xA100-80GB, T4,3 x RTX 3090")
    models = ["A100-80GB", "A100-80GB", "T4", "RTX 3090", "RTX 3090", "RTX 3090"]
    assert [device.spec.model for device in devices] == models
    assert [device.index for device in devices] == [0, 1, 2, 3, 4, 5]
    assert devices[0].capacity_bytes == 80 * GIB


def test_every_simulated_device_is_marked_as_one() -> None:
    devices = parse_devices("4xH100-80GB")
    assert all(device.simulated for device in devices)
    assert {device.kind for device in devices} == {DeviceKind.SIMULATED}
    assert all(device.uuid.startswith("SIM-") for device in devices)
    assert len({device.uuid for device in devices}) == 4
    # Its specification is the real model's.
    assert devices[0].spec == SPECS["H100-80GB"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "does not describe"),
        (",", "does not describe"),
        ("2xA100-80GB,", "does not describe"),
        ("2x", "does not describe"),
        ("x", "no specification"),
        ("2*A100", "does not describe"),
        ("-1xT4", "does not describe"),
        ("1.5xT4", "does not describe"),
        ("2xWarp9000", "no specification of a device model 'Warp9000'"),
        ("0xT4", "asks for 0 devices"),
        ("1025xT4", "asks for 1025 devices"),
        ("1000xT4,1000xA100-80GB", "asks for 1000 devices"),
        ("99999999999999xT4", "does not describe"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_what_can(text: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words) as caught:
        parse_devices(text)
    assert caught.value.hint


@given(st.text(max_size=40) | st.text("0123456789xAT14-0GB, ", max_size=20))
def test_any_text_is_understood_or_refused_clearly(text: str) -> None:
    try:
        devices = parse_devices(text)
    except ConfigurationError as error:
        hint = error.hint
    else:
        hint = f"{len(devices)} devices"
        assert all(device.simulated for device in devices)
    assert hint
    assert hint != "0 devices"


def test_an_empty_device_is_idle() -> None:
    (reading,) = SimulatedProbe("T4").read(5.0, {})
    assert reading.read_at == 5.0
    assert reading.utilization == 0.0
    assert reading.memory_used_bytes == 0
    assert reading.processes == ()
    assert reading.unknown == {}


def test_residents_hold_their_predicted_memory_and_load_with_a_small_wobble() -> None:
    probe = SimulatedProbe("A100-80GB")
    (device,) = probe.devices()
    probe.set_residents(
        {
            device.uuid: {
                "a": a_prediction(gib=4, utilization=0.3, memory_utilization=0.1),
                "b": a_prediction(gib=6, utilization=0.2, memory_utilization=0.1),
            }
        }
    )
    (reading,) = probe.read(1.0, {"a": frozenset({30, 20}), "b": frozenset({40})})
    assert reading.memory_used_bytes == 10 * GIB
    # 0.3 + 0.2 and 0.1 + 0.1, each give or take 3 %.
    assert reading.utilization == pytest.approx(0.5, rel=0.03)
    assert reading.memory_utilization == pytest.approx(0.2, rel=0.03)
    (use,) = attribute((reading,), {"a": frozenset({30, 20}), "b": frozenset({40})})
    assert use.by_job == {"a": 4 * GIB, "b": 6 * GIB}
    assert use.utilization_by_job["a"] == pytest.approx(0.3, rel=0.03)
    assert use.unmanaged_bytes == 0


def test_loads_that_add_up_to_more_than_the_device_are_cut_down_in_proportion() -> None:
    probe = SimulatedProbe("A100-80GB")
    (device,) = probe.devices()
    probe.set_residents(
        {device.uuid: {"a": a_prediction(utilization=0.9), "b": a_prediction(utilization=0.9)}}
    )
    trees = {"a": frozenset({1}), "b": frozenset({2})}
    (reading,) = probe.read(1.0, trees)
    assert reading.utilization == 1.0
    (use,) = attribute((reading,), trees)
    assert sum(use.utilization_by_job.values()) == pytest.approx(1.0)
    # Equal loads, each give or take 3 %.
    assert use.utilization_by_job["a"] == pytest.approx(0.5, rel=0.03)


def test_what_a_prediction_does_not_know_is_unknown_of_the_device() -> None:
    probe = SimulatedProbe("A100-80GB")
    (device,) = probe.devices()
    unknown = a_prediction(gib=4, utilization=None, memory_utilization=None)
    probe.set_residents({device.uuid: {"a": unknown, "b": a_prediction()}})
    (reading,) = probe.read(1.0, {"a": frozenset({1}), "b": frozenset({2})})
    assert reading.utilization is None
    assert reading.memory_utilization is None
    assert reading.memory_used_bytes == 8 * GIB
    assert set(reading.unknown) == {"utilization", "memory_utilization"}


def test_devices_are_played_apart_and_a_gang_shows_on_each() -> None:
    probe = SimulatedProbe("3xT4")
    first, second, third = (device.uuid for device in probe.devices())
    gang = {"gang": a_prediction(gib=2)}
    probe.set_residents({first: gang, second: gang})
    trees = {"gang": frozenset({9})}
    used = {r.uuid: r.memory_used_bytes for r in probe.read(1.0, trees)}
    assert used == {first: 2 * GIB, second: 2 * GIB, third: 0}


def test_the_same_seed_plays_the_same_and_another_seed_another_wobble() -> None:
    def played(seed: int) -> list[float | None]:
        probe = SimulatedProbe("T4", seed=seed)
        probe.set_residents({probe.devices()[0].uuid: {"a": a_prediction(utilization=0.5)}})
        return [probe.read(float(turn), {})[0].utilization for turn in range(5)]

    assert played(1) == played(1)
    assert played(1) != played(2)


@given(st.lists(st.tuples(st.floats(0.0, 1.0), st.floats(0.0, 100.0)), min_size=0, max_size=8))
def test_no_crowd_makes_a_device_more_than_full(crowd: list[tuple[float, float]]) -> None:
    probe = SimulatedProbe("T4")
    (device,) = probe.devices()
    playing = {
        f"job-{number}": a_prediction(utilization=load, gib=gib)
        for number, (load, gib) in enumerate(crowd)
    }
    probe.set_residents({device.uuid: playing})
    trees = {job: frozenset({number + 1}) for number, job in enumerate(playing)}
    (reading,) = probe.read(1.0, trees)
    assert 0.0 <= (reading.utilization or 0.0) <= 1.0
    assert 0 <= (reading.memory_used_bytes or 0) <= device.capacity_bytes
    shares = [one.utilization or 0.0 for one in reading.processes]
    assert sum(shares) <= 1.0 + 1e-9
