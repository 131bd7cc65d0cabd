"""A broker in a process of its own, for tests that kill it: `run_service.py STORE COUNT LOG`.

Submits COUNT jobs, confirms those that are granted, writes each acknowledged one to LOG (a line
`id state fence`, synced) and then waits to be killed.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from horus_lab.devices.processes import PidfdWatcher, PsutilProcessTable
from horus_lab.records import Confirm, JobState, ProcessIdentity
from horus_lab.service import SystemClock
from tests.service.world import World, request


def main(store: Path, count: int, log: Path, pid: int) -> None:
    table = PsutilProcessTable()
    world = World(store.parent)
    world.clock = SystemClock()
    service = world.start(table=table, watcher=PidfdWatcher(table, poll_seconds=0.05))
    process = table.identify(pid)
    assert isinstance(process, ProcessIdentity)
    with log.open("a") as acknowledged:
        for number in range(count):
            asked = request(f"r{number}", gib=4, process=process)
            job, _ = service.submit("ann", asked).result(30)
            if job.state is JobState.GRANTED and job.lease is not None:
                job = service.confirm(job.id, Confirm(fence=job.lease.fence)).result(30)
            fence = job.lease.fence if job.lease else 0
            acknowledged.write(f"{job.id} {job.state.value} {fence}\n")
            acknowledged.flush()
            os.fsync(acknowledged.fileno())
        acknowledged.write("all\n")
        acknowledged.flush()
        time.sleep(600)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
