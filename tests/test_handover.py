"""From a granted device to torch's device, by what the process can see."""

from __future__ import annotations

import pytest

from horus_lab.errors import DeviceNotVisible
from horus_lab.handover import Visibility, allowed_uuids, plan_handover
from horus_lab.records import Device, DeviceKind, DeviceSpec

GIB = 2**30


def device(uuid: str = "GPU-aaaa-1111", kind: DeviceKind = DeviceKind.NVIDIA) -> Device:
    spec = DeviceSpec(
        model="A100-80GB",
        kind=DeviceKind.NVIDIA,
        memory_bytes=80 * GIB,
        peak_flops={"float32": 19.5e12},
        memory_bandwidth=2.0e12,
        multiprocessors=108,
        launch_seconds=5e-6,
        context_bytes=GIB,
    )
    return Device(
        uuid=uuid,
        name="GPU 3",
        index=3,
        kind=kind,
        capacity_bytes=80 * GIB,
        margin_bytes=GIB,
        spec=spec,
        simulated=kind is DeviceKind.SIMULATED,
    )


def test_a_cpu_or_a_simulated_device_trains_on_the_cpu_whatever_cuda_says() -> None:
    sees = Visibility(cuda_initialized=True, cuda_available=True, uuids=("GPU-other",))
    for kind in (DeviceKind.CPU, DeviceKind.SIMULATED):
        assert plan_handover(device(kind=kind), sees).device == "cpu"


def test_before_cuda_starts_the_mask_is_narrowed_to_the_granted_uuid() -> None:
    handover = plan_handover(device(), Visibility(cuda_available=True))
    assert (handover.action, handover.mask, handover.device) == ("mask", "GPU-aaaa-1111", "cuda:0")


def test_after_cuda_started_the_granted_device_is_used_by_its_index_there() -> None:
    sees = Visibility(
        cuda_initialized=True, cuda_available=True, uuids=("GPU-bbbb-2222", "GPU-AAAA-1111")
    )
    assert plan_handover(device(), sees).device == "cuda:1"


def test_a_device_that_started_cuda_does_not_show_is_refused_with_the_cure() -> None:
    sees = Visibility(cuda_initialized=True, cuda_available=True, uuids=("GPU-bbbb-2222",))
    with pytest.raises(DeviceNotVisible, match="Restart the kernel"):
        plan_handover(device(), sees)


@pytest.mark.parametrize("mask", ["", "-1", "GPU-bbbb", "NoDevFiles", "-1,GPU-aaaa", "2", "0,1"])
def test_an_inherited_mask_is_never_widened(mask: str) -> None:
    with pytest.raises(DeviceNotVisible, match="CUDA_VISIBLE_DEVICES"):
        plan_handover(device(), Visibility(cuda_available=True, mask=mask))


@pytest.mark.parametrize("mask", ["GPU-aaaa-1111", "GPU-aaaa", "GPU-bbbb,GPU-aaaa", " GPU-aaaa "])
def test_a_mask_that_names_the_device_allows_it(mask: str) -> None:
    handover = plan_handover(device(), Visibility(cuda_available=True, mask=mask))
    assert handover.mask == "GPU-aaaa-1111"


def test_a_torch_without_cuda_is_told_apart_from_a_hidden_device() -> None:
    with pytest.raises(DeviceNotVisible, match="CUDA build"):
        plan_handover(device(), Visibility())


def test_only_what_the_process_can_reach_is_asked_for() -> None:
    assert allowed_uuids(Visibility()) == ()
    assert allowed_uuids(Visibility(mask="GPU-a,GPU-b")) == ("GPU-a", "GPU-b")
    started = Visibility(cuda_initialized=True, cuda_available=True, uuids=("GPU-c",), mask="0")
    assert allowed_uuids(started) == ("GPU-c",)
