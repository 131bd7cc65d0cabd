"""What a plan costs: `python -m benchmarks.policy.measure [--out FILE]`.

Made-up clusters by a fixed seed. `slowdowns_asked` counts the questions to the interference model,
which compares between machines. Times are the best of some repeats, in milliseconds, here.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec.structs import replace

from horus_lab.interference import FittedInterference
from horus_lab.policy import policy_named
from horus_lab.policy.cluster import ClusterView, DeviceView, QueuedView, ResidentView
from horus_lab.policy.ordering import fair_order
from horus_lab.policy.placing import Floor
from horus_lab.records import (
    Basis,
    Constraints,
    Device,
    DeviceKind,
    DeviceSpec,
    Interval,
    Prediction,
)

GIB = 2**30
NOW = 100_000.0
MODELS = (("RTX 3090", 24), ("A100-80GB", 80), ("V100-32GB", 32))


class Counting:
    """The shipped interference model, counting the questions."""

    def __init__(self) -> None:
        self._model = FittedInterference.load()
        self.asked = 0

    def slowdowns(
        self, residents: Sequence[Prediction], spec: DeviceSpec
    ) -> tuple[Interval | None, ...]:
        """The shipped model's answer."""
        self.asked += 1
        return self._model.slowdowns(residents, spec)


def prediction(draw: random.Random, model: str) -> Prediction:
    """A job of 2-20 GiB and 5-100 % with usual intervals."""
    load, memory = draw.uniform(0.05, 1.0), draw.uniform(2, 20) * GIB
    bandwidth, step = load * draw.uniform(0.2, 0.9), draw.uniform(0.01, 0.5)
    return Prediction(
        device_model=model,
        basis=Basis.MODEL,
        utilization=Interval(0.8 * load, load, min(1.0, 1.2 * load)),
        memory_utilization=Interval(0.8 * bandwidth, bandwidth, min(1.0, 1.2 * bandwidth)),
        memory_bytes=Interval(0.9 * memory, memory, 1.1 * memory),
        step_seconds=Interval(0.9 * step, step, 1.1 * step),
    )


def cluster(devices: int, queued: int, *, seed: int = 1) -> ClusterView:
    """Devices with one or two residents each, a queue of distinct jobs, a tenth of them due."""
    draw = random.Random(seed)
    views = []
    for index in range(devices):
        model, capacity = MODELS[index % len(MODELS)]
        spec = DeviceSpec(
            model=model,
            kind=DeviceKind.NVIDIA,
            memory_bytes=capacity * GIB,
            peak_flops={"float32": 3e13},
            memory_bandwidth=9e11,
            multiprocessors=80,
            launch_seconds=5e-6,
            context_bytes=GIB // 2,
        )
        device = Device(
            uuid=f"GPU-{index}",
            name=f"GPU {index}",
            index=index,
            kind=DeviceKind.NVIDIA,
            capacity_bytes=capacity * GIB,
            margin_bytes=GIB,
            spec=spec,
        )
        residents = tuple(resident(draw, index, number, model) for number in range(1 + index % 2))
        views.append(DeviceView(device=device, residents=residents))
    # Beyond a thousand jobs their predictions repeat, or they would fill the memory.
    queue = tuple(job(draw, number, views) for number in range(min(queued, 1000)))
    while len(queue) < queued:
        again = queue[len(queue) % 1000]
        name = f"j{len(queue)}"
        at = again.submitted_at + draw.uniform(0, 30)
        queue = (*queue, replace(again, job_id=name, submitted_at=min(at, NOW)))
    usage = {f"owner{number}": draw.uniform(0, 1e5) for number in range(40)}
    return ClusterView(devices=tuple(views), queue=queue, usage=usage)


def resident(draw: random.Random, index: int, number: int, model: str) -> ResidentView:
    """A job that has some time to go."""
    left = draw.uniform(10, 5000)
    predicted = prediction(draw, model)
    assert predicted.memory_bytes is not None
    return ResidentView(
        job_id=f"r{index}-{number}",
        owner=f"owner{draw.randrange(40)}",
        name="resident",
        reserved_bytes=int(predicted.memory_bytes.p90),
        prediction=predicted,
        remaining_seconds=Interval(0.8 * left, left, 1.3 * left),
    )


def job(draw: random.Random, number: int, devices: Sequence[DeviceView]) -> QueuedView:
    """One waiting job, predicted for every device model."""
    by_model = {model: prediction(draw, model) for model, _ in MODELS}
    return QueuedView(
        job_id=f"j{number}",
        owner=f"owner{draw.randrange(40)}",
        name=f"net{number}",
        submitted_at=NOW - (draw.uniform(600, 900) if number % 10 == 0 else draw.uniform(0, 600)),
        predictions={d.device.uuid: by_model[d.device.spec.model] for d in devices},
        constraints=Constraints(),
        steps=draw.randrange(100, 10_000),
    )


def best_of(repeats: int, work: Callable[[], object]) -> float:
    """Milliseconds of the quickest repeat."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return 1000 * min(times)


def plan_figures(devices: int, queued: int, repeats: int) -> dict[str, float]:
    """A whole plan: order, placements, reasons and expected waits of everybody."""
    view = cluster(devices, queued)
    interference = Counting()
    policy = policy_named("horus-lab", interference)
    milliseconds = best_of(repeats, lambda: policy.plan(view, NOW))
    interference.asked = 0
    plan = policy.plan(view, NOW)
    return {
        "devices": devices,
        "queued": queued,
        "placed": len(plan.placements),
        "slowdowns_asked": interference.asked,
        "milliseconds": round(milliseconds, 3),
    }


def one_figures(devices: int, queued: int, repeats: int) -> dict[str, float]:
    """One job on a floor that stands: a light one that fits, and one that nobody takes.

    And the order of the whole queue, which every plan makes anew.
    """
    view = cluster(devices, queued)
    interference = Counting()
    floor = Floor(view.devices, interference)
    draw = random.Random(7)
    asked_for = job(draw, 0, view.devices)
    heavy = replace(asked_for, constraints=Constraints(max_slowdown=1.0))
    light = replace(
        asked_for,
        predictions={
            uuid: replace(
                one,
                utilization=Interval(0.02, 0.03, 0.04),
                memory_utilization=Interval(0.01, 0.01, 0.01),
                memory_bytes=Interval(GIB, GIB, GIB),
            )
            for uuid, one in asked_for.predictions.items()
        },
    )
    fits = best_of(repeats, lambda: floor.find(light))
    found = floor.find(light)
    assert isinstance(found, tuple)
    interference.asked = 0
    refused = floor.find(heavy)
    assert isinstance(refused, list)
    asked = interference.asked
    return {
        "devices": devices,
        "queued": queued,
        "fits_milliseconds": round(fits, 3),
        "refused_milliseconds": round(best_of(repeats, lambda: floor.find(heavy)), 3),
        "refused_slowdowns_asked": asked,
        "order_milliseconds": round(
            best_of(repeats, lambda: fair_order(view.queue, view.usage, NOW, 600.0)), 3
        ),
    }


def main() -> None:
    """Measure and print, or write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    found = {
        "plan": [plan_figures(8, 10, 5), plan_figures(8, 100, 5), plan_figures(64, 1000, 2)],
        "one_job": [one_figures(8, 100, 20), one_figures(1000, 10_000, 5)],
    }
    text = json.dumps(found, indent=1)
    if options.out is not None:
        options.out.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
