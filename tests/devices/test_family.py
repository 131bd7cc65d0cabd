"""Who descends from a process: by parenthood, by memory, by session and group; never by number."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from horus_lab.devices.family import living_descendants
from horus_lab.devices.procfs import ProcessStat


def one(
    pid: int,
    *,
    parent: int = 1,
    start: int = 100,
    session: int = 1,
    group: int = 1,
    running: bool = True,
) -> ProcessStat:
    return ProcessStat(
        pid=pid, running=running, parent=parent, group=group, session=session, start_ticks=start
    )


def descendants(
    *processes: ProcessStat, start: int = 50, remembered: dict[int, int] | None = None
) -> set[int]:
    """Of process 10, started at `start`."""
    by_pid = {each.pid: each for each in processes}
    return set(living_descendants(by_pid, 10, start, remembered or {}))


def test_children_and_their_children_descend() -> None:
    assert descendants(
        one(10, start=50), one(11, parent=10), one(12, parent=11), one(13, parent=1)
    ) == {11, 12}


def test_zombies_do_not_live() -> None:
    assert descendants(one(10, start=50), one(11, parent=10, running=False)) == set()


def test_remembered_ones_live_on_without_their_parent_and_with_their_children() -> None:
    assert descendants(
        one(11, parent=1, start=60), one(12, parent=11, start=70), remembered={11: 60, 15: 60}
    ) == {11, 12}


def test_a_remembered_pid_that_another_process_got_is_forgotten() -> None:
    assert descendants(one(11, parent=1, start=99), remembered={11: 60}) == set()


def test_members_of_the_session_or_group_that_it_led_descend_also_after_its_end() -> None:
    strays = (one(21, session=10), one(22, group=10), one(23, session=7, group=7))
    assert descendants(one(10, start=50), *strays) == {21, 22}
    assert descendants(*strays) == {21, 22}


def test_a_later_leader_with_the_same_pid_does_not_give_its_session_away() -> None:
    assert descendants(one(10, start=500), one(21, session=10, start=501)) == set()


def test_what_is_older_than_the_process_does_not_descend_from_it() -> None:
    """A pid that was used before: its old session's members are not the new process's."""
    assert descendants(one(21, session=10, start=40), start=50) == set()
    # Nor is a child older than the process that has its parent's number now.
    assert descendants(one(10, start=50), one(11, parent=10, start=40)) == set()


def test_children_of_a_later_process_with_the_same_pid_are_not_its_own() -> None:
    assert descendants(one(10, start=500), one(11, parent=10, start=501)) == set()


stats = st.builds(
    ProcessStat,
    pid=st.integers(2, 12),
    running=st.booleans(),
    parent=st.integers(1, 12),
    group=st.integers(1, 12),
    session=st.integers(1, 12),
    start_ticks=st.integers(0, 20),
)


@given(
    st.lists(stats, max_size=11, unique_by=lambda each: each.pid),
    st.integers(0, 20),
    st.dictionaries(st.integers(2, 12), st.integers(0, 20)),
)
def test_only_live_processes_descend_and_looking_again_finds_the_same(
    processes: list[ProcessStat], start: int, remembered: dict[int, int]
) -> None:
    by_pid = {each.pid: each for each in processes}
    found = living_descendants(by_pid, 10, start, remembered)
    assert all(by_pid[pid].running for pid in found)
    assert all(by_pid[pid].start_ticks == ticks for pid, ticks in found.items())
    assert living_descendants(by_pid, 10, start, found) == found
