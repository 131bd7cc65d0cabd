"""Whatever happens and whatever fails: memory and disk tell the same jobs, and no byte twice."""

from __future__ import annotations

import tempfile
from pathlib import Path

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from horus_lab.broker import events
from horus_lab.errors import HorusError, StoreUnavailable
from horus_lab.records import DeviceUse, Heartbeat, Job, JobState, Release
from horus_lab.service.driver import _mark
from horus_lab.service.engine import Engine
from horus_lab.service.parts import Parts
from horus_lab.service.settings import ServiceSettings
from horus_lab.store import SqlStore
from horus_lab.testing import ManualClock, ScriptedWatcher, a_reading
from tests.service.world import (
    DeclaredPredictor,
    FirstFit,
    PsutilProcessTable,
    ScriptedProbe,
    attribute,
    device,
    identity,
    request,
)

STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["submit", "confirm", "beat", "release", "cancel", "end", "look", "tick", "restart"]
        ),
        st.integers(0, 5),
        st.sampled_from(["", "", "before_commit", "after_commit"]),
    ),
    min_size=5,
    max_size=25,
)
PROCESS = identity()


class Rig:
    """An engine without threads, over a real file, with one place that fails when told to."""

    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite:///{folder}/horus.sqlite3"
        self.clock = ManualClock()
        self.failing = ""
        self.acknowledged: dict[str, str] = {}
        self.fences: dict[int, str] = {}
        self.count = 0
        self.store = SqlStore.open(self.url)
        self.engine = self.started()

    def started(self) -> Engine:
        parts = Parts(
            store=self.store,
            probe=ScriptedProbe(),
            table=PsutilProcessTable(),
            attribute=attribute,
            watcher=ScriptedWatcher(),
            predictor=DeclaredPredictor(),
            policy=FirstFit(),
            clock=self.clock,
            failpoint=self.failpoint,
        )
        epoch = self.store.claim("rig", self.clock.now())
        settings = ServiceSettings(store_url=self.url)
        engine = Engine(parts, settings, epoch, (device(),), lambda: None)
        engine.start()
        return engine

    def failpoint(self, name: str) -> None:
        if name == self.failing:
            self.failing = ""
            raise StoreUnavailable(f"{name} failed")

    def close(self) -> None:
        self.store.close()

    def step(self, what: str, which: int) -> None:
        self.clock.advance(4.0)  # news that waits after a failure is due again
        if what == "restart":
            self.failing = ""
            self.store.close()
            self.store = SqlStore.open(self.url)
            self.engine = self.started()
            return
        if what == "look":
            reading = a_reading(read_at=self.clock.now())
            self.engine.sampled((DeviceUse(reading=reading, unmanaged_bytes=0),))
            return
        if what == "tick":
            self.engine.pass_time()
            return
        if what == "submit":
            self.count += 1
            asked = request(f"r{self.count}", gib=1 + which, process=PROCESS)
            job, new = self.engine.submit("ann", asked)
            assert new
            self.acknowledged[job.id] = job.request.request_id
            return
        jobs = self.engine.open_jobs
        if jobs:
            self.change(what, jobs[which % len(jobs)])

    def change(self, what: str, job: Job) -> None:
        fence = job.lease.fence if job.lease else 0
        made: dict[str, events.Event] = {
            "confirm": events.Confirmed(event_id="e", job_id=job.id, fence=fence),
            "beat": events.Beat(
                event_id="e", job_id=job.id, heartbeat=Heartbeat(fence=fence, sequence=self.count)
            ),
            "release": events.Released(event_id="e", job_id=job.id, release=Release(fence=fence)),
            "cancel": events.Cancelled(event_id="e", job_id=job.id, by="ann"),
        }
        if what == "end":
            self.engine.process_ended(job.id, ())
        else:
            self.engine.poll(job.id)
            self.engine.change(job.id, lambda _name: made[what], "ann", False)

    def check(self) -> None:
        self.failing = ""
        self.clock.advance(4.0)
        self.engine.pass_time()  # settles what the last failure left in doubt
        engine = {job.id: job for job in self.engine.broker.jobs.values()}
        with self.store._engine.connect() as connection:
            rows = connection.exec_driver_sql("SELECT body FROM jobs").fetchall()
            (next_fence,) = connection.exec_driver_sql("SELECT next_fence FROM broker").one()
        disk = {job.id: job for (body,) in rows for job in [msgspec.json.decode(body, type=Job)]}
        assert set(disk) == set(engine)
        assert {key: _mark(job) for key, job in disk.items()} == {
            key: _mark(job) for key, job in engine.items()
        }
        assert set(self.acknowledged) <= set(disk)
        assert next_fence == self.engine.broker.next_fence
        leases = [(job, job.lease) for job in disk.values() if job.lease is not None]
        for job, lease in leases:
            assert lease.fence < next_fence
            assert self.fences.setdefault(lease.fence, job.id) == job.id
        promised = [slot for job, lease in leases if job.state.holds for slot in lease.slots]
        assert sum(slot.reserved_bytes for slot in promised) <= device().capacity_bytes
        self.engine.broker.check_invariants()


@settings(max_examples=60, deadline=None)
@given(steps=STEPS)
def test_memory_and_disk_agree_after_any_events_and_any_failed_commits(
    steps: list[tuple[str, int, str]],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        rig = Rig(Path(folder))
        try:
            for what, which, failing in steps:
                rig.failing = failing
                before = set(rig.engine.broker.jobs)
                try:
                    rig.step(what, which)
                except HorusError as error:
                    if isinstance(error, StoreUnavailable) and failing == "before_commit":
                        assert set(rig.engine.broker.jobs) == before
                rig.check()
        finally:
            rig.close()


def test_the_rig_itself_grants_and_ends_jobs(tmp_path: Path) -> None:
    """Or else the property above would hold of nothing."""
    rig = Rig(tmp_path)
    for what in ("look", "submit", "confirm", "beat", "release", "look", "submit", "end"):
        rig.step(what, 0)
        rig.check()
    states = sorted(job.state for job in rig.engine.broker.jobs.values())
    assert states == [JobState.DONE, JobState.LOST]
    rig.close()
