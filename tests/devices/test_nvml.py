"""What NVML says is taken as it is, what it does not say is unknown, and one bad GPU is one.

The library is scripted at its own boundary (`horus_lab.testing.ScriptedNvml`); everything above it
is the probe's own code.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import psutil
import pytest

from horus_lab.devices.attribution import attribute
from horus_lab.devices.margins import gpu_margin, host_margin
from horus_lab.devices.nvml import NvmlProbe
from horus_lab.errors import DeviceUnavailable
from horus_lab.records import DeviceKind, DeviceReading, Health
from horus_lab.testing import ManualClock, ScriptedCard, ScriptedNvml, ScriptedSlice
from tests.devices.namespaces import outside_of_containers

GIB = 2**30
MIB = 2**20
NOBODY: Mapping[str, frozenset[int]] = {}


def opened(script: ScriptedNvml) -> NvmlProbe:
    probe = NvmlProbe(library=script, processes=outside_of_containers())
    probe.open()
    return probe


def card(**changes: object) -> ScriptedCard:
    values: dict[str, object] = {"uuid": "GPU-0", "name": "NVIDIA A100-SXM4-80GB"}
    return ScriptedCard(**{**values, **changes})  # type: ignore[arg-type]


def look(script: ScriptedNvml) -> DeviceReading:
    """The one device's reading."""
    (reading,) = opened(script).read(1.0, NOBODY)
    return reading


# --- a GPU that is well -------------------------------------------------------------------------


def test_a_gpu_is_known_by_its_uuid_and_read_whole() -> None:
    me = os.getpid()
    script = ScriptedNvml(
        [
            card(
                used=10 * GIB,
                reserved=600 * MIB,
                utilization=55,
                memory_utilization=20,
                compute={me: 9 * GIB},
                loads={me: 50},
            )
        ]
    )
    probe = opened(script)
    (device,) = probe.devices()
    assert device.uuid == "GPU-0"
    assert device.kind is DeviceKind.NVIDIA
    assert device.spec.model == "A100-80GB"
    (reading,) = probe.read(7.0, NOBODY)
    assert reading.read_at == 7.0
    assert reading.health is Health.OK
    assert reading.utilization == 0.55
    assert reading.memory_utilization == 0.2
    assert reading.memory_used_bytes == 10 * GIB
    (process,) = reading.processes
    assert (process.pid, process.memory_bytes, process.utilization) == (me, 9 * GIB, 0.5)
    assert process.name == psutil.Process(me).name()[:15]
    assert process.user == psutil.Process(me).username()
    assert reading.unknown == {}


def test_the_index_is_the_place_in_pci_order_and_the_uuid_follows_the_card() -> None:
    script = ScriptedNvml.with_cards(3)
    probe = opened(script)
    assert [(d.index, d.uuid) for d in probe.devices()] == [
        (0, "GPU-0"),
        (1, "GPU-1"),
        (2, "GPU-2"),
    ]
    script.cards[0].used = 5 * GIB
    script.cards.reverse()  # as after a reboot with another numbering
    assert [(d.index, d.uuid) for d in probe.devices()] == [
        (0, "GPU-2"),
        (1, "GPU-1"),
        (2, "GPU-0"),
    ]
    used = {reading.uuid: reading.memory_used_bytes for reading in probe.read(1.0, NOBODY)}
    assert used == {"GPU-0": 5 * GIB, "GPU-1": 0, "GPU-2": 0}


def test_what_the_driver_reserves_is_neither_capacity_nor_anybody_s_use() -> None:
    script = ScriptedNvml([card(total=80 * GIB, reserved=600 * MIB, used=0)])
    (device,) = opened(script).devices()
    assert device.capacity_bytes == 80 * GIB - 600 * MIB
    assert look(script).memory_used_bytes == 0


def test_a_driver_without_the_second_memory_version_counts_its_reserve_as_used_and_says_so() -> (
    None
):
    script = ScriptedNvml([card(total=80 * GIB, reserved=600 * MIB, used=GIB)])
    script.memory_version = 1
    (device,) = opened(script).devices()
    assert device.capacity_bytes == 80 * GIB
    reading = look(script)
    assert reading.memory_used_bytes == GIB + 600 * MIB
    assert "reserves" in reading.unknown["memory_reserved"]


@pytest.mark.parametrize(
    ("capacity", "expected"),
    [(80 * GIB, int(1.6 * GIB)), (8 * GIB, 512 * MIB), (141 * GIB, 2 * GIB), (2 * GIB, GIB // 4)],
)
def test_a_gpu_s_margin_is_two_percent_within_bounds(capacity: int, expected: int) -> None:
    assert gpu_margin(capacity) == pytest.approx(expected, abs=1)


@pytest.mark.parametrize(
    ("capacity", "expected"), [(100 * GIB, 5 * GIB), (16 * GIB, GIB), (2 * GIB, GIB // 4)]
)
def test_the_host_s_margin_is_five_percent_within_bounds(capacity: int, expected: int) -> None:
    assert host_margin(capacity) == expected


# --- processes ----------------------------------------------------------------------------------


def test_a_process_in_several_lists_is_counted_once() -> None:
    script = ScriptedNvml(
        [
            card(
                used=7 * GIB,
                compute={1: 4 * GIB, 5: GIB},
                graphics={1: 4 * GIB, 9: GIB},
                mps={5: GIB, 6: GIB},
            )
        ]
    )
    held = {one.pid: one.memory_bytes for one in look(script).processes}
    assert held == {1: 4 * GIB, 5: GIB, 6: GIB, 9: GIB}


@pytest.mark.parametrize("told", [None, 2**64 - 1, 2**63, 81 * GIB])
def test_a_process_whose_memory_the_driver_does_not_tell_is_listed_with_unknown_bytes(
    told: int | None,
) -> None:
    script = ScriptedNvml([card(used=6 * GIB, compute={1: told, 2: GIB})])
    reading = look(script)
    assert {one.pid: one.memory_bytes for one in reading.processes} == {1: None, 2: GIB}
    assert reading.unknown["process_memory"]
    assert reading.health is Health.OK


def test_one_list_that_tells_is_enough_whatever_the_other_says() -> None:
    script = ScriptedNvml([card(used=GIB, compute={1: None, 2: 0}, graphics={1: GIB, 2: None})])
    held = {one.pid: one.memory_bytes for one in look(script).processes}
    assert held == {1: GIB, 2: 0}


@pytest.mark.parametrize("pid", [0, -1, 2**32 - 1])
def test_a_garbage_process_record_is_dropped(pid: int) -> None:
    script = ScriptedNvml([card(used=GIB, compute={pid: GIB, 3: MIB})])
    assert [one.pid for one in look(script).processes] == [3]


def test_without_process_lists_the_totals_stay_and_the_lists_are_unknown() -> None:
    one = card(used=6 * GIB, utilization=30)
    one.errors["nvmlDeviceGetComputeRunningProcesses"] = ScriptedNvml.NVML_ERROR_NO_PERMISSION
    reading = look(ScriptedNvml([one]))
    assert reading.memory_used_bytes == 6 * GIB
    assert reading.utilization == 0.3
    assert reading.processes == ()
    assert reading.unknown["processes"] == "the driver does not permit it"


def test_an_old_driver_s_process_lists_are_read_by_their_old_names() -> None:
    script = ScriptedNvml([card(used=GIB, compute={4: GIB})])
    script.process_version = 2
    assert [one.pid for one in look(script).processes] == [4]


def test_a_process_without_a_sample_did_nothing_where_others_have_samples() -> None:
    script = ScriptedNvml([card(used=2 * GIB, compute={1: GIB, 2: GIB}, loads={1: 90})])
    loads = {one.pid: one.utilization for one in look(script).processes}
    assert loads == {1: 0.9, 2: 0.0}


def test_without_samples_loads_are_unknown_unless_the_device_is_idle() -> None:
    busy = ScriptedNvml([card(used=GIB, compute={1: GIB}, utilization=80)])
    assert look(busy).processes[0].utilization is None
    idle = ScriptedNvml([card(used=GIB, compute={1: GIB}, utilization=0)])
    assert look(idle).processes[0].utilization == 0.0


def test_a_load_past_a_hundred_percent_is_garbage_and_unknown() -> None:
    script = ScriptedNvml([card(used=GIB, compute={1: GIB}, loads={1: 4_294_967_295})])
    assert look(script).processes[0].utilization is None


def test_a_process_that_nobody_can_look_at_keeps_its_bytes() -> None:
    gone = 2**22 + 1  # past the largest pid that Linux gives
    reading = look(ScriptedNvml([card(used=GIB, compute={gone: GIB})]))
    assert reading.processes[0].memory_bytes == GIB
    assert reading.processes[0].name is None
    assert reading.processes[0].user is None


# --- utilization --------------------------------------------------------------------------------


def test_utilization_that_the_device_does_not_support_is_unknown_and_not_zero() -> None:
    one = card()
    one.errors["nvmlDeviceGetUtilizationRates"] = ScriptedNvml.NVML_ERROR_NOT_SUPPORTED
    reading = look(ScriptedNvml([one]))
    assert reading.utilization is None
    assert reading.memory_utilization is None
    assert reading.unknown["utilization"] == "not supported by this device"
    assert reading.health is Health.OK


def test_a_counter_that_sticks_at_full_with_nobody_there_becomes_unknown() -> None:
    script = ScriptedNvml([card(utilization=100)])
    probe = opened(script)
    seen = [probe.read(float(i), NOBODY)[0].utilization for i in range(5)]
    assert seen == [1.0, 1.0, 1.0, None, None]
    script.cards[0].compute = {1: GIB}
    script.cards[0].used = GIB
    assert probe.read(6.0, NOBODY)[0].utilization == 1.0


# --- MIG ----------------------------------------------------------------------------------------


def mig() -> ScriptedNvml:
    name = "NVIDIA A100-SXM4-80GB MIG 3g.40gb"
    slices: list[ScriptedSlice | None] = [
        ScriptedSlice(uuid="MIG-a", name=name, total=40 * GIB, used=5 * GIB, compute={1: 5 * GIB}),
        None,
        ScriptedSlice(uuid="MIG-b", name=name, total=40 * GIB),
    ]
    return ScriptedNvml([card(mig=True, slices=slices, used=5 * GIB), card(uuid="GPU-1")])


def test_slices_are_devices_and_their_card_is_not() -> None:
    devices = opened(mig()).devices()
    assert [(d.uuid, d.kind, d.index) for d in devices] == [
        ("MIG-a", DeviceKind.MIG, 0),
        ("MIG-b", DeviceKind.MIG, 0),
        ("GPU-1", DeviceKind.NVIDIA, 1),
    ]
    assert [d.capacity_bytes for d in devices] == [40 * GIB, 40 * GIB, 80 * GIB]
    # Three sevenths of an A100's 312 TFLOP/s.
    assert devices[0].spec.peak_flops["float16"] == pytest.approx(312e12 * 3 / 7)


def test_a_slice_s_utilization_is_unknown_and_its_memory_and_processes_are_known() -> None:
    script = mig()
    script.cards[0].utilization = 70
    a, b, _ = opened(script).read(1.0, NOBODY)
    assert a.utilization is None
    assert "MIG" in a.unknown["utilization"]
    assert a.memory_used_bytes == 5 * GIB
    assert [one.pid for one in a.processes] == [1]
    assert b.memory_used_bytes == 0
    assert a.health is b.health is Health.OK


def test_a_layout_that_changes_is_listed_anew_and_a_vanished_slice_is_lost_until_then() -> None:
    script = mig()
    probe = opened(script)
    probe.devices()
    script.cards[0].slices = [
        ScriptedSlice(uuid="MIG-c", name="NVIDIA A100-SXM4-80GB MIG 7g.80gb", total=80 * GIB)
    ]
    by_uuid = {reading.uuid: reading for reading in probe.read(1.0, NOBODY)}
    assert by_uuid["MIG-a"].health is Health.LOST
    assert by_uuid["GPU-1"].health is Health.OK
    assert [device.uuid for device in probe.devices()] == ["MIG-c", "GPU-1"]
    assert [reading.uuid for reading in probe.read(2.0, NOBODY)] == ["MIG-c", "GPU-1"]


def test_a_card_that_leaves_mig_mode_is_a_device_again() -> None:
    script = mig()
    probe = opened(script)
    probe.devices()
    script.cards[0].mig = False
    assert [device.uuid for device in probe.devices()] == ["GPU-0", "GPU-1"]


def test_a_card_in_mig_mode_without_slices_is_no_device() -> None:
    script = ScriptedNvml([card(mig=True)])
    assert opened(script).devices() == ()


# --- compute mode -------------------------------------------------------------------------------


def test_an_exclusive_gpu_takes_one_job() -> None:
    probe = opened(ScriptedNvml([card(compute_mode=3), card(uuid="GPU-1")]))
    assert [device.max_residents for device in probe.devices()] == [1, 8]


def test_an_exclusive_gpu_that_somebody_has_is_closed_to_others_and_open_to_its_own_job() -> None:
    probe = opened(ScriptedNvml([card(compute_mode=3, used=GIB, compute={7: GIB})]))
    (reading,) = probe.read(1.0, NOBODY)
    assert reading.health is Health.DEGRADED
    assert "EXCLUSIVE_PROCESS" in next(iter(reading.unknown.values()))
    assert reading.memory_used_bytes == GIB
    (reading,) = probe.read(2.0, {"job": frozenset({7})})
    assert reading.health is Health.OK


def test_a_prohibited_gpu_is_closed_and_says_why() -> None:
    reading = look(ScriptedNvml([card(compute_mode=2)]))
    assert reading.health is Health.DEGRADED
    assert "PROHIBITED" in next(iter(reading.unknown.values()))


# --- unified memory -----------------------------------------------------------------------------


def unified() -> ScriptedNvml:
    one = card(name="NVIDIA GB10", utilization=10, compute={1: GIB})
    one.errors["nvmlDeviceGetMemoryInfo"] = ScriptedNvml.NVML_ERROR_NOT_SUPPORTED
    return ScriptedNvml([one])


def test_a_unified_memory_device_has_the_system_s_memory_and_is_not_lost() -> None:
    script = unified()
    (device,) = opened(script).devices()
    assert device.capacity_bytes == psutil.virtual_memory().total
    assert device.margin_bytes == host_margin(device.capacity_bytes)
    assert "shared with the system" in device.name
    reading = look(script)
    assert reading.health is Health.OK
    assert reading.memory_used_bytes is not None
    assert 0 < reading.memory_used_bytes < device.capacity_bytes
    assert reading.processes[0].memory_bytes == GIB


def test_a_lost_gpu_is_not_taken_for_one_with_unified_memory() -> None:
    script = ScriptedNvml([card()])
    probe = opened(script)
    (before,) = probe.devices()
    script.cards[0].errors["nvmlDeviceGetMemoryInfo"] = ScriptedNvml.NVML_ERROR_UNKNOWN
    (reading,) = probe.read(1.0, NOBODY)
    assert reading.health is Health.LOST
    assert reading.memory_used_bytes is None
    assert probe.devices() == (before,)


@pytest.mark.parametrize(("total", "used"), [(0, 0), (GIB, 2 * GIB)])
def test_memory_figures_that_cannot_be_are_unknown(total: int, used: int) -> None:
    reading = look(ScriptedNvml([card(total=total, used=used)]))
    assert reading.memory_used_bytes is None
    assert reading.unknown["memory_used_bytes"]


# --- lost devices and stopped drivers -----------------------------------------------------------


@pytest.mark.parametrize(
    "code",
    [
        ScriptedNvml.NVML_ERROR_GPU_IS_LOST,
        ScriptedNvml.NVML_ERROR_RESET_REQUIRED,
        ScriptedNvml.NVML_ERROR_UNKNOWN,
        ScriptedNvml.NVML_ERROR_GPU_NOT_FOUND,
    ],
)
def test_one_lost_gpu_leaves_the_others_and_comes_back_when_it_answers(code: int) -> None:
    script = ScriptedNvml.with_cards(3)
    probe = opened(script)
    listed = probe.devices()
    script.cards[1].gone = code
    assert probe.devices() == listed
    first, lost, third = probe.read(1.0, NOBODY)
    assert (first.health, lost.health, third.health) == (Health.OK, Health.LOST, Health.OK)
    assert lost.memory_used_bytes is None
    assert lost.utilization is None
    assert all("does not answer" in why for why in lost.unknown.values())
    script.cards[1].gone = None
    assert probe.devices() == listed
    assert probe.read(2.0, NOBODY)[1].health is Health.OK


def test_a_gpu_that_was_lost_from_the_start_is_left_out_until_it_answers() -> None:
    script = ScriptedNvml.with_cards(2)
    script.cards[0].gone = ScriptedNvml.NVML_ERROR_GPU_IS_LOST
    probe = opened(script)
    assert [device.uuid for device in probe.devices()] == ["GPU-1"]
    script.cards[0].gone = None
    assert [device.uuid for device in probe.devices()] == ["GPU-0", "GPU-1"]


def test_a_gpu_that_the_driver_does_not_count_any_more_is_not_listed() -> None:
    script = ScriptedNvml.with_cards(2)
    probe = opened(script)
    probe.devices()
    del script.cards[0]
    assert [device.uuid for device in probe.devices()] == ["GPU-1"]
    assert [reading.uuid for reading in probe.read(1.0, NOBODY)] == ["GPU-1"]


def test_a_container_that_lost_its_gpus_is_told_what_to_do() -> None:
    script = ScriptedNvml.with_cards(2)
    probe = opened(script)
    probe.devices()
    for one in script.cards:
        one.gone = ScriptedNvml.NVML_ERROR_UNKNOWN
    for reading in probe.read(1.0, NOBODY):
        assert reading.health is Health.LOST
        assert "re-create the container" in reading.unknown["utilization"]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (ScriptedNvml.NVML_ERROR_DRIVER_NOT_LOADED, "Driver Not Loaded"),
        (ScriptedNvml.NVML_ERROR_LIBRARY_NOT_FOUND, "Library Not Found"),
        (ScriptedNvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "upgraded under its library"),
    ],
)
def test_without_a_usable_driver_the_probe_says_why_it_cannot_be_opened(
    code: int, words: str
) -> None:
    script = ScriptedNvml.with_cards(1)
    script.init_error = code
    with pytest.raises(DeviceUnavailable, match=words):
        NvmlProbe(library=script).open()


def test_an_upgrade_under_way_makes_devices_unreadable_until_the_driver_works_again() -> None:
    clock = ManualClock()
    script = ScriptedNvml.with_cards(1)
    probe = NvmlProbe(library=script, monotonic=clock.monotonic)
    probe.open()
    listed = probe.devices()
    script.driver_error = ScriptedNvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH
    for _ in range(5):
        with pytest.raises(DeviceUnavailable, match="upgraded under its library"):
            probe.read(1.0, NOBODY)
    # The driver is not started again at every look: that costs seconds of CPU time.
    assert script.calls["nvmlInit"] == 1
    script.driver_error = None
    clock.advance(31.0)
    # Handles of the time before are worth nothing now; the devices are found anew.
    assert probe.read(2.0, NOBODY)[0].health is Health.OK
    assert probe.devices() == listed
    assert script.calls["nvmlInit"] == 2


def test_devices_that_cannot_be_counted_are_not_taken_for_none() -> None:
    script = ScriptedNvml.with_cards(2)
    probe = opened(script)
    probe.devices()
    script.driver_error = ScriptedNvml.NVML_ERROR_UNKNOWN
    with pytest.raises(DeviceUnavailable, match="cannot count"):
        probe.devices()
    assert [reading.uuid for reading in probe.read(1.0, NOBODY)] == ["GPU-0", "GPU-1"]


def test_nvml_is_initialised_once_and_shut_down_once() -> None:
    script = ScriptedNvml.with_cards(2)
    probe = opened(script)
    probe.open()
    for turn in range(10):
        probe.read(float(turn), NOBODY)
    assert script.calls["nvmlInit"] == 1
    # Handles are looked up when devices are listed, not at every look.
    assert script.calls["nvmlDeviceGetHandleByIndex"] == 2
    probe.close()
    probe.close()
    assert script.initialized == 0


@pytest.mark.parametrize(
    "function",
    [
        "nvmlDeviceGetMigMode",
        "nvmlDeviceGetComputeMode",
        "nvmlDeviceGetUtilizationRates",
        "nvmlDeviceGetName",
        "nvmlDeviceGetProcessUtilization",
        "nvmlDeviceGetComputeRunningProcesses",
        "nvmlDeviceGetGraphicsRunningProcesses",
        "nvmlDeviceGetMPSComputeRunningProcesses",
    ],
)
@pytest.mark.parametrize("code", [3, 4, 6, 10, 13, 999, 12345])
def test_no_single_query_that_fails_costs_more_than_its_own_value(function: str, code: int) -> None:
    one = card(used=GIB, utilization=50, compute={1: GIB}, loads={1: 50})
    one.errors[function] = code
    reading = look(ScriptedNvml([one]))
    assert reading.health is Health.OK
    assert reading.memory_used_bytes == GIB


def test_a_module_without_a_newer_function_is_asked_for_the_older_one() -> None:
    script = ScriptedNvml([card(used=GIB, compute={1: GIB})])
    script.lacking = {
        "nvmlMemory_v2",
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGetMPSComputeRunningProcesses_v3",
        "nvmlDeviceGetMPSComputeRunningProcesses_v2",
        "nvmlDeviceGetProcessUtilization",
    }
    reading = look(script)
    assert reading.memory_used_bytes == GIB
    assert [one.pid for one in reading.processes] == [1]


# --- attribution of what is read ----------------------------------------------------------------


def test_a_terminal_s_program_is_unmanaged_and_shown_with_its_user() -> None:
    me = os.getpid()
    script = ScriptedNvml([card(used=6 * GIB, compute={me: 2 * GIB, 1: 4 * GIB})])
    (use,) = attribute(opened(script).read(1.0, NOBODY), {"job": frozenset({1})})
    assert use.by_job == {"job": 4 * GIB}
    assert use.unmanaged_bytes == 2 * GIB
    users = {one.pid: one.user for one in use.reading.processes}
    assert users[me] == psutil.Process(me).username()
