"""Which processes belong to one that was started, also after it is gone. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from horus_lab.devices.procfs import ProcessStat


def living_descendants(
    processes: Mapping[int, ProcessStat],
    pid: int,
    start_ticks: int,
    remembered: Mapping[int, int],
) -> dict[int, int]:
    """Live processes that the process (`pid`, `start_ticks`) started, directly or not.

    Three kinds of evidence, each of which outlives something: parenthood lasts as long as the
    parent; `remembered` (pid -> start time, from earlier looks) as long as the child; the session
    and the process group that the process led as long as one of their members, for until then the
    kernel gives its pid to nobody else. So a child of a child that ended between two looks is
    found, and a later process that got a used pid is not taken for a descendant.

    Returns:
        pid -> start time, without the process itself.
    """
    found = {
        child: started
        for child, started in remembered.items()
        if _same(processes.get(child), started)
    }
    leader = processes.get(pid)
    alive = leader is not None and leader.start_ticks == start_ticks
    if alive or leader is None:
        for one in processes.values():
            led = pid in (one.session, one.group)
            if led and one.pid != pid and one.start_ticks >= start_ticks and one.running:
                found.setdefault(one.pid, one.start_ticks)
    children: dict[int, list[ProcessStat]] = {}
    for one in processes.values():
        children.setdefault(one.parent, []).append(one)
    unseen = list(found.items())
    if alive:
        unseen.append((pid, start_ticks))
    while unseen:
        parent, parent_started = unseen.pop()
        for one in children.get(parent, ()):
            if one.pid in found or one.start_ticks < parent_started or one.pid == pid:
                continue
            # A zombie's own children were given to somebody else when it ended.
            if one.running:
                found[one.pid] = one.start_ticks
                unseen.append((one.pid, one.start_ticks))
    return found


def _same(one: ProcessStat | None, started: int) -> bool:
    return one is not None and one.start_ticks == started and one.running
