"""Every used byte goes to a job or is unmanaged; what cannot be told goes to nobody."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from horus_lab.devices.attribution import attribute
from horus_lab.records import DeviceReading, DeviceUse, ProcessReading
from horus_lab.testing import a_reading

GIB = 2**30


def use(
    used_gib: float | None,
    processes: dict[int, tuple[float | None, float | None]],
    trees: dict[str, set[int]],
) -> DeviceUse:
    """`processes`: pid -> (GiB, utilization)."""
    reading = a_reading(
        used_gib=used_gib,
        processes=tuple(
            ProcessReading(
                pid=pid,
                memory_bytes=None if gib is None else int(gib * GIB),
                utilization=load,
            )
            for pid, (gib, load) in processes.items()
        ),
    )
    (found,) = attribute((reading,), {job: frozenset(pids) for job, pids in trees.items()})
    return found


def test_a_job_has_the_bytes_and_the_load_of_its_whole_tree() -> None:
    found = use(7, {1: (2, 0.1), 2: (1, 0.2), 9: (4, 0.5)}, {"a": {1, 2, 3}})
    assert found.by_job == {"a": 3 * GIB}
    assert abs(found.utilization_by_job["a"] - 0.3) < 1e-12
    assert found.unmanaged_bytes == 4 * GIB


def test_used_bytes_that_no_process_shows_are_unmanaged() -> None:
    assert use(5, {1: (2, None)}, {"a": {1}}).unmanaged_bytes == 3 * GIB


def test_unmanaged_use_is_never_less_than_nothing() -> None:
    # Processes' own counts may add up to more than the device's.
    assert use(1, {1: (2, None)}, {"a": {1}}).unmanaged_bytes == 0


def test_where_the_used_bytes_are_unknown_so_is_unmanaged_use() -> None:
    found = use(None, {1: (2, None)}, {"a": {1}})
    assert found.unmanaged_bytes is None
    assert found.by_job == {"a": 2 * GIB}


def test_a_process_of_two_jobs_of_one_kernel_counts_once_for_the_first() -> None:
    found = use(2, {1: (2, 0.4)}, {"holds": {1}, "waits": {1}})
    assert found.by_job == {"holds": 2 * GIB}
    assert found.utilization_by_job == {"holds": 0.4}
    assert found.unmanaged_bytes == 0


def test_a_job_with_a_process_whose_bytes_are_not_told_has_unknown_bytes() -> None:
    found = use(6, {1: (2, 0.5), 2: (None, 0.25), 3: (1, None)}, {"a": {1, 2}, "b": {3}})
    assert found.by_job == {"b": GIB}
    assert found.utilization_by_job == {"a": 0.75}
    # All that is not known to be a job's: 6 - 1.
    assert found.unmanaged_bytes == 5 * GIB


def test_a_process_outside_this_container_is_nobody_s() -> None:
    found = use(3, {0: (3, 0.5)}, {"a": {0, 1}})
    assert found.by_job == {}
    assert found.utilization_by_job == {}
    assert found.unmanaged_bytes == 3 * GIB


def test_a_job_without_processes_on_the_device_is_absent() -> None:
    assert use(0, {}, {"a": {1}}).by_job == {}


def test_a_job_s_load_is_at_most_the_whole_device() -> None:
    assert use(0, {1: (0, 0.8), 2: (0, 0.8)}, {"a": {1, 2}}).utilization_by_job == {"a": 1.0}


def test_each_reading_is_attributed_by_itself() -> None:
    readings = (
        a_reading("GPU-a", used_gib=1, processes=(ProcessReading(pid=1, memory_bytes=GIB),)),
        a_reading("GPU-b", used_gib=2),
    )
    first, second = attribute(readings, {"a": frozenset({1})})
    assert (first.reading, second.reading) == readings
    assert first.by_job == {"a": GIB}
    assert (second.by_job, second.unmanaged_bytes) == ({}, 2 * GIB)


processes = st.lists(
    st.builds(
        ProcessReading,
        pid=st.integers(0, 12),
        memory_bytes=st.none() | st.integers(0, 100),
        utilization=st.none() | st.floats(0.0, 1.0),
    ),
    max_size=12,
    unique_by=lambda one: one.pid,
)
trees = st.dictionaries(
    st.sampled_from(["a", "b", "c"]), st.frozensets(st.integers(1, 12), max_size=6)
)


@given(st.none() | st.integers(0, 500), processes, trees)
def test_nothing_is_lost_and_nothing_is_counted_twice(
    used: int | None, found: list[ProcessReading], jobs: dict[str, frozenset[int]]
) -> None:
    reading = DeviceReading(
        uuid="GPU-a", read_at=0.0, memory_used_bytes=used, processes=tuple(found)
    )
    (result,) = attribute((reading,), jobs)
    assert set(result.by_job) <= set(jobs)
    owned = {pid for pids in jobs.values() for pid in pids}
    told = sum(one.memory_bytes or 0 for one in found if one.pid in owned)
    assert sum(result.by_job.values()) <= told
    assert all(0.0 <= load <= 1.0 for load in result.utilization_by_job.values())
    if used is None:
        assert result.unmanaged_bytes is None
    else:
        assert result.unmanaged_bytes is not None
        assert result.unmanaged_bytes >= used - told
        assert result.unmanaged_bytes + sum(result.by_job.values()) >= used
