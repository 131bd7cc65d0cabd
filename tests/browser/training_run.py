"""A process that asks for a slot, holds it and counts steps: a training without the arithmetic.

Everything that the broker sees of it is real: the process, the request, heartbeats, the release.
"""

from __future__ import annotations

import argparse
import time
import uuid
from pathlib import Path

from horus_lab.client import HorusClient, acquire, this_process
from horus_lab.records import Constraints, DeclaredNeeds, GraphFeatures, JobRequest, decode

GIB = 2**30


def main() -> None:
    """Wait for the slot, then train until the steps are done or somebody cancels."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", required=True)
    parser.add_argument("--gib", type=float)
    parser.add_argument("--features", type=Path)
    parser.add_argument("--utilization", type=float)
    parser.add_argument("--notebook", default="")
    parser.add_argument("--rate", type=float, default=20.0)
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--max-slowdown", type=float, default=1.25)
    parser.add_argument("--exclusive", action="store_true")
    parser.add_argument("--priority", type=int, default=0)
    options = parser.parse_args()

    client = HorusClient.discover()
    request = JobRequest(
        request_id=uuid.uuid4().hex,
        name=options.name,
        process=this_process(),
        features=decode(options.features.read_bytes(), GraphFeatures) if options.features else None,
        declared=DeclaredNeeds(memory_bytes=int(options.gib * GIB), utilization=options.utilization)
        if options.gib
        else None,
        devices=options.devices,
        constraints=Constraints(
            exclusive=options.exclusive,
            max_slowdown=options.max_slowdown,
            priority=options.priority,
        ),
        steps=options.steps or None,
        notebook=options.notebook,
    )
    with acquire(client, request) as lease:
        began = time.monotonic()
        steps = 0
        while not lease.cancelled.is_set() and not (options.steps and steps >= options.steps):
            time.sleep(0.1)
            steps = int((time.monotonic() - began) * options.rate)
            if options.steps:
                steps = min(steps, options.steps)
            lease.report_steps(steps)
        if lease.cancelled.is_set():
            lease.release("cancelled")


if __name__ == "__main__":
    main()
