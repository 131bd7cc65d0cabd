"""Whom a due job keeps a device from, and that no later job ever delays it."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from horus_lab.policy.cluster import DeviceView, Plan, QueuedView, ResidentView
from horus_lab.policy.horus_lab_policy import HorusLabPolicy
from horus_lab.records import Interval, ObstacleKind
from tests.policy.cluster import GIB, Sharing, cluster, gpu, job, resident

NOW = 1000.0
DUE = 600.0


def leaving(job_id: str, seconds: float, load: float = 0.2) -> ResidentView:
    return resident(
        job_id, load=load, memory=1, remaining_seconds=Interval(seconds, seconds, seconds)
    )


def plan(*devices: DeviceView, queue: Sequence[QueuedView], now: float = NOW) -> Plan:
    return HorusLabPolicy(Sharing(), due_seconds=DUE).plan(cluster(*devices, queue=queue), now)


def kept(found: Plan, waiting: str, for_job: str = "due") -> set[str]:
    """The devices that a waiting job may not have because they are kept."""
    return {
        obstacle.device_uuid
        for obstacle in found.waiting[waiting].obstacles
        if obstacle.kind is ObstacleKind.RESERVED_FOR_DUE and obstacle.job_id == for_job
    }


def placed(found: Plan) -> dict[str, tuple[str, ...]]:
    return {p.job_id: tuple(s.device_uuid for s in p.slots) for p in found.placements}


def test_a_device_that_is_not_well_is_not_kept_in_place_of_one_that_is() -> None:
    """Empty, it would seem to be free first; the due job would never start on it."""
    ill = gpu(0, healthy=False, why_unhealthy="is lost")
    busy = gpu(1, residents=(leaving("x", 50),))
    queue = [job("due", at=0.0, exclusive=True), job("young", at=NOW - 5, load=0.1)]
    found = plan(ill, busy, queue=queue)
    assert placed(found) == {}
    assert kept(found, "young") == {"GPU-1"}


def test_a_device_that_others_fill_is_not_kept() -> None:
    foreign = gpu(0, unmanaged_bytes=22 * GIB)
    busy = gpu(1, residents=(leaving("x", 50),))
    queue = [
        job("due", at=0.0, memory=4, exclusive=True),
        job("young", at=NOW - 5, memory=1, load=0.1),
    ]
    found = plan(foreign, busy, queue=queue)
    # The young one takes what is left beside the foreign use; the other device is kept.
    assert placed(found) == {"young": ("GPU-0",)}


def test_where_nothing_can_be_kept_others_go_on() -> None:
    """A due job that only foreign use keeps away holds up nobody else."""
    foreign = gpu(0, unmanaged_bytes=22 * GIB)
    queue = [job("due", at=0.0, memory=4), job("young", at=NOW - 5, memory=1)]
    assert placed(plan(foreign, queue=queue)) == {"young": ("GPU-0",)}


def test_the_kept_device_is_where_it_starts_first_not_what_is_empty_first() -> None:
    # On GPU 0 the due job (0.7) fits beside "long" (0.2) once "short" (0.3) leaves, in 5 s; GPU 1
    # is free in 10 s.
    early = gpu(0, residents=(leaving("short", 5, 0.3), leaving("long", 900, 0.2)))
    later = gpu(1, residents=(leaving("x", 10, 0.9),))
    queue = [job("due", at=0.0, memory=1, load=0.7, max_slowdown=1.0)]
    queue.append(job("young", at=NOW - 5, memory=1, load=0.0))
    found = plan(early, later, queue=queue)
    assert placed(found) == {"young": ("GPU-1",)}


def test_a_due_gang_keeps_devices_of_one_model() -> None:
    devices = [
        gpu(0, model="A", residents=(leaving("a", 100),)),
        gpu(1, model="B", residents=(leaving("b", 1),)),
        gpu(2, model="A", residents=(leaving("c", 200),)),
    ]
    queue = [job("due", at=0.0, devices=2, exclusive=True), job("young", at=NOW - 5, load=0.1)]
    assert placed(plan(*devices, queue=queue)) == {"young": ("GPU-1",)}


def test_a_due_gang_keeps_the_model_whose_last_device_is_free_first() -> None:
    ends = ((100, "A"), (200, "A"), (1, "B"), (900, "B"))
    devices = [
        gpu(index, model=model, residents=(leaving(f"r{index}", end),))
        for index, (end, model) in enumerate(ends)
    ]
    queue = [job("due", at=0.0, devices=2, exclusive=True), job("young", at=NOW - 5, load=0.1)]
    assert placed(plan(*devices, queue=queue)) in ({"young": ("GPU-2",)}, {"young": ("GPU-3",)})


def test_two_due_jobs_keep_two_devices() -> None:
    devices = [gpu(i, residents=(leaving(f"r{i}", 10 * (i + 1)),)) for i in range(3)]
    queue = [
        job("due", at=0.0, exclusive=True),
        job("next", at=1.0, exclusive=True),
        job("young", at=NOW - 5, load=0.1),
    ]
    assert placed(plan(*devices, queue=queue)) == {"young": ("GPU-2",)}


def test_one_device_more_is_kept_each_time_the_wait_doubles() -> None:
    devices = [gpu(i, residents=(leaving(f"r{i}", 10.0 * (i + 1)),)) for i in range(4)]
    queue = [job("due", at=0.0, exclusive=True)]
    went = []
    for now in (DUE, 2 * DUE - 1, 2 * DUE, 4 * DUE, 8 * DUE, 1000 * DUE):
        young = job("young", at=now - 5, load=0.1, memory=1)
        went.append(placed(plan(*devices, queue=[*queue, young], now=now)).get("young"))
    # The young one takes the first that is not kept; those that are free first are kept first.
    assert went == [("GPU-1",), ("GPU-1",), ("GPU-2",), ("GPU-3",), None, None]


def test_a_job_that_can_never_be_granted_keeps_nothing() -> None:
    queue = [job("due", at=0.0, memory=None), job("young", at=NOW - 5)]
    assert placed(plan(gpu(), queue=queue)) == {"young": ("GPU-0",)}


def test_an_absent_due_job_keeps_nothing_and_goes_first_when_it_is_back() -> None:
    queue = [job("due", at=0.0, load=1.0, absent=True), job("young", at=NOW - 5, load=1.0)]
    assert placed(plan(gpu(), queue=queue)) == {"young": ("GPU-0",)}
    queue = [job("due", at=0.0, load=1.0), job("young", at=NOW - 5, load=1.0)]
    assert placed(plan(gpu(), queue=queue)) == {"due": ("GPU-0",)}


class World:
    """Devices on which jobs run for exactly as long as is predicted. Time moves in steps."""

    def __init__(self, devices: Sequence[DeviceView], queue: Sequence[QueuedView]) -> None:
        self.devices = [d.device for d in devices]
        self.running: list[tuple[str, ResidentView, float]] = [
            (d.device.uuid, r, r.remaining_seconds.p50 if r.remaining_seconds else 0.0)
            for d in devices
            for r in d.residents
        ]
        self.queue = list(queue)
        self.started: dict[str, float] = {}

    def step(self, policy: HorusLabPolicy, now: float) -> None:
        self.running = [one for one in self.running if one[2] > now]
        views = [
            DeviceView(
                device=device,
                residents=tuple(
                    ResidentView(
                        job_id=r.job_id,
                        owner=r.owner,
                        name=r.name,
                        reserved_bytes=r.reserved_bytes,
                        prediction=r.prediction,
                        max_slowdown=r.max_slowdown,
                        exclusive=r.exclusive,
                        remaining_seconds=Interval(end - now, end - now, end - now),
                    )
                    for uuid, r, end in self.running
                    if uuid == device.uuid
                ),
            )
            for device in self.devices
        ]
        waiting = [one for one in self.queue if one.submitted_at <= now]
        for placement in policy.plan(cluster(*views, queue=waiting), now).placements:
            one = next(one for one in self.queue if one.job_id == placement.job_id)
            self.queue.remove(one)
            self.started[one.job_id] = now
            for slot in placement.slots:
                runs = ResidentView(
                    job_id=one.job_id,
                    owner=one.owner,
                    name=one.name,
                    reserved_bytes=slot.reserved_bytes,
                    prediction=one.predictions[slot.device_uuid],
                    max_slowdown=one.constraints.max_slowdown,
                    exclusive=one.constraints.exclusive,
                )
                self.running.append((slot.device_uuid, runs, now + 0.1 * (one.steps or 0)))


RESIDENTS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(1, 40), st.sampled_from([0.1, 0.3, 0.5, 0.9])),
    max_size=6,
)
LATER = st.lists(
    st.tuples(
        st.integers(0, 30),  # comes at
        st.integers(1, 40),  # runs for
        st.sampled_from([0.1, 0.3, 0.5, 1.0]),
        st.integers(1, 20),  # GiB
        st.integers(1, 2),
    ),
    max_size=8,
)


@settings(max_examples=150, deadline=None)
@given(
    residents=RESIDENTS,
    later=LATER,
    load=st.sampled_from([0.2, 0.6, 1.0]),
    memory=st.integers(1, 23),
    devices=st.integers(1, 2),
    exclusive=st.booleans(),
)
def test_no_later_job_ever_delays_a_due_one(
    residents: list[tuple[int, int, float]],
    later: list[tuple[int, int, float, int, int]],
    load: float,
    memory: int,
    devices: int,
    exclusive: bool,
) -> None:
    """The same world with and without later jobs: the due one starts no later with them."""
    policy = HorusLabPolicy(Sharing(), due_seconds=100.0)
    floor = [
        gpu(
            index,
            model="AAB"[index],
            residents=tuple(
                leaving(f"r{n}", seconds, size)
                for n, (on, seconds, size) in enumerate(residents)
                if on == index
            ),
        )
        for index in range(3)
    ]
    due = job(
        "due", at=-100.0, load=load, memory=memory, devices=devices, exclusive=exclusive, steps=100
    )
    others = [
        job(f"l{n}", at=float(at), load=u, memory=m, devices=d, steps=10 * runs, owner=f"o{n}")
        for n, (at, runs, u, m, d) in enumerate(later)
    ]
    starts = []
    for queue in ([due], [due, *others]):
        world = World(floor, queue)
        for now in range(60):
            world.step(policy, float(now))
            if "due" in world.started:
                break
        starts.append(world.started.get("due"))
    alone, among = starts
    assert alone is not None
    assert among is not None
    assert among <= alone
