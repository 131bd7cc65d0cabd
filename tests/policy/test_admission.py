"""Every check of one job on one device, with values worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from horus_lab.policy.admission import Admitted, admit, cautious
from horus_lab.policy.cluster import DeviceView, QueuedView
from horus_lab.policy.cost import horus_cost
from horus_lab.policy.memory import reservation_bytes
from horus_lab.records import DeviceKind, Interval, Obstacle, ObstacleKind, Prediction
from tests.policy.cluster import GIB, Sharing, gpu, job, prediction, resident


def obstacle(asked: QueuedView, device: DeviceView) -> Obstacle:
    answer = admit(asked, device, Sharing())
    assert isinstance(answer, Obstacle), answer
    return answer


def admitted(asked: QueuedView, device: DeviceView) -> Admitted:
    answer = admit(asked, device, Sharing())
    assert isinstance(answer, Admitted), answer
    return answer


def test_the_reservation_is_the_90th_percentile_of_the_larger_peak() -> None:
    memory = Prediction(
        device_model="A",
        basis=prediction().basis,
        memory_bytes=Interval(1.0, 2.0, 3.5),
        memory_startup_bytes=Interval(1.0, 2.0, 5.2),
    )
    assert reservation_bytes(memory) == 6
    assert reservation_bytes(prediction(memory=None)) is None


def test_memory_is_counted_to_the_byte() -> None:
    # 24 GiB less 1 margin, 2 unmanaged, 3 lingering, a resident of 10: 8 GiB are left.
    device = gpu(
        margin=GIB,
        unmanaged_bytes=2 * GIB,
        lingering_bytes=3 * GIB,
        residents=(resident(memory=10, load=0.1),),
    )
    assert admitted(job(memory=8, load=0.1), device).slot.reserved_bytes == 8 * GIB
    more = obstacle(job(memory=8 + 2**-30, load=0.1), device)
    assert (more.kind, more.lacking_bytes) == (ObstacleKind.MEMORY, 1)


def test_a_resident_that_outgrew_its_reservation_is_charged_what_it_uses() -> None:
    grown = resident(memory=4, load=0.1, measured_bytes=20 * GIB)
    assert obstacle(job(memory=5, load=0.1), gpu(residents=(grown,))).lacking_bytes == GIB
    shrunk = resident(memory=20, load=0.1, measured_bytes=4 * GIB)
    assert obstacle(job(memory=5, load=0.1), gpu(residents=(shrunk,))).lacking_bytes == GIB


def test_what_the_jobs_own_kernel_holds_already_counts_once() -> None:
    device = gpu(unmanaged_bytes=10 * GIB)
    assert obstacle(job(memory=16), device).lacking_bytes == 2 * GIB
    admitted(job(memory=16, held={"GPU-0": 2 * GIB}), device)
    # More held than is unmanaged (two readings apart) frees nothing.
    assert obstacle(job(memory=25, held={"GPU-0": 99 * GIB}), device).lacking_bytes == GIB


def test_unknown_use_of_a_device_never_grants() -> None:
    assert obstacle(job(), gpu(unmanaged_bytes=None)).kind is ObstacleKind.UNKNOWN_MEMORY


def test_unknown_memory_of_a_job_never_grants() -> None:
    assert obstacle(job(memory=None), gpu()).kind is ObstacleKind.UNKNOWN_PREDICTION
    assert obstacle(job(on=0), gpu()).kind is ObstacleKind.UNKNOWN_PREDICTION


def test_a_job_of_unknown_load_gets_a_device_of_its_own_and_nobody_joins_it() -> None:
    admitted(job(load=None), gpu())
    shared = obstacle(job(load=None), gpu(residents=(resident(load=0.0),)))
    assert shared.kind is ObstacleKind.UNKNOWN_PREDICTION
    joining = obstacle(job(load=0.0), gpu(residents=(resident("x", load=None),)))
    assert (joining.kind, joining.job_id) == (ObstacleKind.UNKNOWN_PREDICTION, "x")


def test_each_bound_holds_for_its_own_job() -> None:
    # Loads of 0.6 and 0.6 slow both by 20 %.
    other = resident("x", load=0.6, max_slowdown=1.1)
    hurt = obstacle(job(load=0.6, max_slowdown=2.0), gpu(residents=(other,)))
    assert (hurt.kind, hurt.job_id, hurt.bound) == (ObstacleKind.SLOWDOWN_RESIDENT, "x", 1.1)
    assert hurt.slowdown == pytest.approx(1.2)
    patient = resident("x", load=0.6, max_slowdown=2.0)
    own = obstacle(job(load=0.6, max_slowdown=1.1), gpu(residents=(patient,)))
    assert own.kind is ObstacleKind.SLOWDOWN_SELF
    answer = admitted(job(load=0.6, max_slowdown=2.0), gpu(residents=(patient,)))
    assert answer.slot.slowdown == Interval(1.2, 1.2, 1.2)


def test_packing_that_loses_is_never_chosen() -> None:
    class Thrashing(Sharing):
        def slowdowns(self, residents, spec):  # type: ignore[no-untyped-def]
            return (Interval(3.0, 3.0, 3.0),) * len(residents)

    # Each at a third of its speed: together two thirds, less than one after the other.
    answer = admit(
        job(max_slowdown=100.0),
        gpu(residents=(resident(max_slowdown=100.0),)),
        Thrashing(),
    )
    assert isinstance(answer, Obstacle)


def test_the_loss_names_who_loses_most() -> None:
    class Uneven(Sharing):
        def slowdowns(self, residents, spec):  # type: ignore[no-untyped-def]
            # Rates of 1/4 and 2/3: less than the 1 of taking turns; the resident loses.
            return (Interval(4.0, 4.0, 4.0), Interval(1.5, 1.5, 1.5))

    answer = admit(
        job(max_slowdown=9.0), gpu(residents=(resident("x", max_slowdown=9.0),)), Uneven()
    )
    assert isinstance(answer, Obstacle)
    assert (answer.kind, answer.job_id) == (ObstacleKind.SLOWDOWN_RESIDENT, "x")
    assert (answer.slowdown, answer.bound) == (4.0, 2.0)


@pytest.mark.parametrize(
    ("kind", "held"), [(DeviceKind.NVIDIA, 1.1 + 1.5 * 0.2), (DeviceKind.CPU, 1.3)]
)
def test_what_is_held_against_a_bound_lies_beyond_the_middle(kind: DeviceKind, held: float) -> None:
    spec = replace(gpu().device.spec, kind=kind)
    assert cautious(Interval(1.0, 1.1, 1.3), spec) == pytest.approx(held)
    assert cautious(None, spec) is None


def test_exclusive_means_no_neighbours_on_either_side() -> None:
    assert admitted(job(exclusive=True), gpu())
    busy = gpu(residents=(resident("x", load=0.0, exclusive=True),))
    assert obstacle(job(load=0.0), busy).kind is ObstacleKind.EXCLUSIVE_RESIDENT
    quiet = gpu(residents=(resident("x", load=0.0),))
    assert obstacle(job(load=0.0, exclusive=True), quiet).kind is ObstacleKind.EXCLUSIVE_SELF


def test_a_gpu_in_exclusive_compute_mode_takes_one_process() -> None:
    device = gpu(max_residents=1, residents=(resident(load=0.0),))
    assert obstacle(job(load=0.0), device).kind is ObstacleKind.RESIDENTS_FULL


def test_an_unhealthy_or_forbidden_device_is_out() -> None:
    assert obstacle(job(), gpu(healthy=False)).kind is ObstacleKind.UNHEALTHY
    assert obstacle(job(device_uuids=("GPU-1",)), gpu()).kind is ObstacleKind.NOT_ALLOWED


def test_the_papers_cost_by_hand() -> None:
    # M = 8, m = 4 of 24 GiB: 1.3 x 0.5; U = 50 %, u = 70 %: over by 0.2, 1.6 x 0.2; one resident.
    device = gpu(residents=(resident(memory=8, load=0.5),))
    cost = horus_cost(device, prediction(4, 0.7), 4 * GIB)
    assert cost == pytest.approx(0.65 + 0.32 + 1)
    # Below the knee free time costs: 1.3 x 4/24 + (1 - 0.3).
    assert horus_cost(gpu(), prediction(4, 0.3), 4 * GIB) == pytest.approx(1.3 / 6 + 0.7)


@given(
    memories=st.lists(st.integers(0, 30), max_size=5),
    measured=st.lists(st.one_of(st.none(), st.integers(0, 40)), min_size=5, max_size=5),
    unmanaged=st.integers(0, 30),
    lingering=st.integers(0, 10),
    asked=st.integers(1, 30),
    held=st.integers(0, 30),
)
def test_no_admission_ever_promises_more_than_there_is(
    memories: list[int],
    measured: list[int | None],
    unmanaged: int,
    lingering: int,
    asked: int,
    held: int,
) -> None:
    residents = tuple(
        resident(
            f"r{index}",
            memory=memory,
            load=0.0,
            measured_bytes=None if measured[index] is None else measured[index] * GIB,
        )
        for index, memory in enumerate(memories)
    )
    device = gpu(
        margin=GIB,
        residents=residents,
        unmanaged_bytes=unmanaged * GIB,
        lingering_bytes=lingering * GIB,
    )
    answer = admit(job(memory=asked, load=0.0, held={"GPU-0": held * GIB}), device, Sharing())
    charged = sum(max(m, measured[i] or 0) for i, m in enumerate(memories))
    fits = charged + max(0, unmanaged - held) + lingering + asked <= 23
    assert isinstance(answer, Admitted) == fits
