"""The broker with the policy and the interference model that people run.

The desk is strict: a placement that the broker's own check refuses raises. So these tests also say
that policy and broker mean the same by memory, bounds, health and the unknown.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from horus_lab.interference import FittedInterference
from horus_lab.policy import policy_named
from horus_lab.records import Basis, Interval, ObstacleKind, Prediction
from tests.broker.scripted import CAPACITY, GIB, MARGIN, Desk, device, use

INTERFERENCE = FittedInterference.load()
UUIDS = ("GPU-0", "GPU-1")


def desk_of_the_real_ones(*uuids: str) -> Desk:
    return Desk(
        *(device(uuid) for uuid in uuids or UUIDS),
        policy=policy_named("", INTERFERENCE),
        interference=INTERFERENCE,
    )


def predicted(gib: float, load: float | None, step_seconds: float = 0.1) -> Prediction:
    def around(value: float) -> Interval:
        return Interval(0.9 * value, value, min(1.1 * value, max(value, 1.0)))

    memory = Interval(0.9 * gib * GIB, gib * GIB, 1.1 * gib * GIB)
    return Prediction(
        device_model="Toy",
        basis=Basis.MODEL,
        utilization=None if load is None else around(load),
        memory_utilization=None if load is None else around(load / 2),
        memory_bytes=memory,
        memory_startup_bytes=memory,
        step_seconds=around(step_seconds),
    )


def everywhere(prediction: Prediction) -> dict[str, Prediction]:
    return dict.fromkeys(UUIDS, prediction)


def test_light_jobs_share_a_device_and_a_heavy_one_waits_for_their_sake():
    desk = desk_of_the_real_ones("GPU-0")
    for name, load in (("light", 0.2), ("lighter", 0.15)):
        desk.train(name, 3, predictions=everywhere(predicted(3, load)), steps=1000)
    desk.submit("heavy", 3, predictions=everywhere(predicted(3, 0.95)))
    assert desk.job("lighter").lease.neighbours == ("light",)
    (obstacle,) = desk.job("heavy").reason.obstacles
    assert obstacle.kind in (ObstacleKind.SLOWDOWN_SELF, ObstacleKind.SLOWDOWN_RESIDENT)


def test_a_job_that_waits_says_why_and_is_granted_when_there_is_room():
    desk = desk_of_the_real_ones()
    for number in range(2):
        desk.train(f"big{number}", 12, predictions=everywhere(predicted(12, 0.9)), steps=1000)
    desk.submit("late", 8, predictions=everywhere(predicted(8, 0.3)))
    reason = desk.job("late").reason
    assert reason is not None
    assert {one.device_uuid for one in reason.obstacles} == set(UUIDS)
    assert reason.sentence
    desk.release("big0")
    desk.later(1.0).look(*(use(desk.now, uuid) for uuid in UUIDS))
    assert desk.state("late") == "granted"


JOB = st.tuples(
    st.sampled_from([1, 3, 6, 10, 14, 30]),
    st.sampled_from([None, 0.05, 0.3, 0.6, 0.95]),
    st.booleans(),
    st.sampled_from([1.05, 1.25, 2.0]),
    st.integers(1, 2),
)
STEP = st.one_of(
    st.tuples(st.just("submit"), JOB),
    st.tuples(
        st.sampled_from(["poll", "confirm", "beat", "release", "cancel", "end_process"]),
        st.integers(0, 10**6),
    ),
    st.tuples(st.just("wait"), st.sampled_from([1.0, 31.0, 700.0])),
    st.tuples(st.just("look"), st.sampled_from([0, 0, 2, None])),
)


@settings(max_examples=60, deadline=None)
@given(steps=st.lists(STEP, max_size=40))
def test_the_policy_never_proposes_what_the_broker_must_refuse(steps):
    desk = desk_of_the_real_ones()
    for word, said in steps:
        names = list(desk.broker.jobs)
        if word == "submit":
            gib, load, exclusive, bound, devices = said
            desk.submit(
                f"job{len(names)}",
                gib,
                predictions=everywhere(predicted(gib, load)),
                exclusive=exclusive,
                max_slowdown=bound,
                devices=devices,
            )
        elif word == "wait":
            desk.later(said).tick()
        elif word == "look":
            unmanaged = None if said is None else said * GIB
            desk.look(*(use(desk.now, uuid, unmanaged=unmanaged) for uuid in UUIDS))
        elif names:
            speak(desk, word, names[said % len(names)])
    for state in desk.broker.device_states(desk.now):
        held = sum(resident.reserved_bytes for resident in state.residents)
        assert held <= CAPACITY - MARGIN


def speak(desk: Desk, word: str, job_id: str) -> None:
    """Say it where the job's state allows it."""
    job = desk.job(job_id)
    allowed = {
        "poll": True,
        "end_process": True,
        "cancel": job.state.value in ("queued", "granted", "running", "suspect", "cancelled"),
    }.get(word, job.state.value in ("granted", "running", "suspect"))
    if allowed:
        getattr(desk, word)(job_id)
