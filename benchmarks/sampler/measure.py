"""What looking at the devices once a second costs, as a share of one core.

    python -m benchmarks.sampler.measure --seconds 60 --write benchmarks/sampler/results.json

One look is what the sampler does: the live pids of every job's process tree, one reading of each
device, and their attribution. The jobs are real processes that sleep, half of them with two forked
workers. The GPUs are scripted at the boundary of the module `pynvml` and answer at once, so what
the driver itself takes for its answers is not in these figures; the CPU device is real.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from horus_lab.devices.attribution import attribute
from horus_lab.devices.cpu import CpuProbe
from horus_lab.devices.nvml import NvmlProbe
from horus_lab.devices.probe import Probe
from horus_lab.devices.processes import PsutilProcessTable
from horus_lab.records import ProcessIdentity
from horus_lab.testing import ScriptedCard, ScriptedNvml

GIB = 2**30
GPUS = 8
JOBS = 16

_JOB = """
import os, sys, time
held = bytearray(100 * 2**20)
for _ in range(int(sys.argv[1])):
    if os.fork() == 0:
        break
else:
    print(flush=True)
time.sleep(3600)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=int, default=60, help="how long each is looked at")
    parser.add_argument("--write", type=Path, help="where to write the figures as JSON")
    arguments = parser.parse_args()
    jobs = [_start(workers=2 * (number % 2)) for number in range(JOBS)]
    try:
        table = PsutilProcessTable()
        processes = {f"job-{job.pid}": _identity(table, job.pid) for job in jobs}
        figures = {
            "measured_at": datetime.now(UTC).strftime("%Y-%m-%d"),
            "machine": _machine(),
            "python": platform.python_version(),
            "processes_on_the_machine": sum(name.isdigit() for name in os.listdir("/proc")),
            "jobs": JOBS,
            "seconds": arguments.seconds,
            "gpus_scripted": {
                "devices": GPUS,
                **_cost(_gpus([job.pid for job in jobs]), table, processes, arguments.seconds),
            },
            "cpu": {"devices": 1, **_cost(CpuProbe(), table, processes, arguments.seconds)},
        }
    finally:
        for job in jobs:
            os.killpg(job.pid, 9)
            job.wait()
    text = json.dumps(figures, indent=2) + "\n"
    print(text, end="")
    if arguments.write is not None:
        arguments.write.write_text(text)


def _cost(
    probe: Probe,
    table: PsutilProcessTable,
    processes: dict[str, ProcessIdentity],
    seconds: int,
) -> dict[str, float]:
    """CPU time of one look a second, over all of this process's threads."""
    probe.open()
    probe.devices()
    longest = 0.0
    spent_before, started = time.process_time(), time.monotonic()
    for turn in range(seconds):
        before = time.process_time()
        trees = {job: table.tree(process) for job, process in processes.items()}
        uses = attribute(probe.read(time.time(), trees), trees)
        if turn % 10 == 9:
            probe.devices()
        longest = max(longest, time.process_time() - before)
        assert uses
        time.sleep(max(0.0, started + turn + 1 - time.monotonic()))
    spent = time.process_time() - spent_before
    passed = time.monotonic() - started
    probe.close()
    return {
        "share_of_a_core": round(spent / passed, 5),
        "milliseconds_a_look": round(1000 * spent / seconds, 2),
        "longest_look_milliseconds": round(1000 * longest, 2),
    }


def _gpus(pids: list[int]) -> Probe:
    """Eight busy cards with two jobs each, and one process that is nobody's job."""
    script = ScriptedNvml(
        [
            ScriptedCard(
                uuid=f"GPU-{number}",
                name="NVIDIA A100-SXM4-80GB",
                used=13 * GIB,
                reserved=GIB // 2,
                utilization=80,
                memory_utilization=30,
                compute={**dict.fromkeys(pids[number::GPUS], 6 * GIB), os.getpid(): GIB},
                loads=dict.fromkeys(pids[number::GPUS], 40),
            )
            for number in range(GPUS)
        ]
    )
    return NvmlProbe(library=script)


def _start(workers: int) -> subprocess.Popen[str]:
    job = subprocess.Popen(
        [sys.executable, "-c", _JOB, str(workers)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert job.stdout is not None
    job.stdout.readline()
    return job


def _identity(table: PsutilProcessTable, pid: int) -> ProcessIdentity:
    process = table.identify(pid)
    assert process is not None
    return process


def _machine() -> str:
    model = "unknown processor"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return f"{model}, {os.cpu_count()} cores, Linux {platform.release()}"


if __name__ == "__main__":
    main()
