"""All events in any order, against the invariants and a naive reference after each.

The reference keeps, beside the broker, a disk (what the commands saved) and a ledger of promised
bytes that follows the grants it saw and the few events that may give bytes back. It knows nothing
of how the broker counts.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from horus_lab.broker.commands import Announce, Command, SaveFence, SaveJob
from horus_lab.errors import HorusError
from horus_lab.records import DeviceUse, Health, Job, JobState
from tests.broker.scripted import CAPACITY, GIB, MARGIN, Desk, device, use

UUIDS = ("GPU-0", "GPU-1", "GPU-2")
OWNERS = ("ada", "bob")
ROOM = CAPACITY - MARGIN


class EveryEvent(RuleBasedStateMachine):
    """A desk, its disk, and the ledger."""

    @initialize()
    def open(self) -> None:
        self.desk = Desk(*(device(uuid) for uuid in UUIDS))
        self.disk: dict[str, Job] = {}
        self.next_fence = 1
        self.fences: dict[int, str] = {}
        self.ledger: dict[tuple[str, str], int] = {}
        self.freed_at: dict[str, float] = {}
        self.looks: dict[str, DeviceUse] = {uuid: use(self.desk.now, uuid) for uuid in UUIDS}
        self.accepted: list[str] = []
        self.revisions: dict[str, int] = {}
        self.listed = set(UUIDS)

    # --- what the world does --------------------------------------------------------------------

    @rule(
        gib=st.sampled_from([1, 4, 7, 15, 20]),
        owner=st.sampled_from(OWNERS),
        devices=st.integers(1, 3),
        exclusive=st.booleans(),
        allowed=st.sampled_from([(), UUIDS[:1], UUIDS[1:]]),
    )
    def submit(self, gib, owner, devices, exclusive, allowed) -> None:
        job_id = f"job{len(self.accepted)}"
        self.accepted.append(job_id)
        self.say(
            "submit",
            job_id,
            gib,
            owner=owner,
            devices=devices,
            exclusive=exclusive,
            device_uuids=allowed,
        )

    @precondition(lambda self: self.accepted)
    @rule(pick=st.integers(0, 10**6), word=st.sampled_from(["poll", "cancel", "beat", "confirm"]))
    def speak(self, pick, word) -> None:
        self.say(word, self.any_job(pick))

    @precondition(lambda self: self.accepted)
    @rule(
        pick=st.integers(0, 10**6),
        word=st.sampled_from(["beat", "confirm", "release"]),
        fence=st.integers(0, 12),
    )
    def speak_with_any_fence(self, pick, word, fence) -> None:
        job_id = self.any_job(pick)
        before = self.desk.job(job_id)
        self.say(word, job_id, fence=fence)
        if before.lease is None or before.lease.fence != fence:
            assert self.desk.job(job_id).state is before.state

    @precondition(lambda self: self.accepted)
    @rule(
        pick=st.integers(0, 10**6),
        outcome=st.sampled_from(["done", "failed", "cancelled"]),
    )
    def release(self, pick, outcome) -> None:
        job_id = self.any_job(pick)
        before = self.desk.job(job_id).state
        self.say("release", job_id, outcome)
        if before.holds and self.desk.job(job_id).state.ended:
            self.freed_at[job_id] = self.desk.now

    @precondition(lambda self: self.accepted)
    @rule(pick=st.integers(0, 10**6), survivors=st.sampled_from([(), (), (7,), (7, 8)]))
    def end_process(self, pick, survivors) -> None:
        job_id = self.any_job(pick)
        before = self.desk.job(job_id).state
        self.say("end_process", job_id, *survivors)
        if before.holds and not survivors:
            assert self.desk.job(job_id).state is JobState.LOST
            self.freed_at[job_id] = self.desk.now

    @rule(data=st.data())
    def look(self, data) -> None:
        uses = []
        for uuid in sorted(self.listed):
            holders = [job_id for job_id, at in self.ledger if at == uuid]
            one = use(
                self.desk.now,
                uuid,
                unmanaged=data.draw(st.sampled_from([0, 0, 0, 3 * GIB, None])),
                health=data.draw(st.sampled_from([Health.OK] * 6 + [Health.LOST])),
                **{
                    job_id: data.draw(st.sampled_from([0, 2, 5, 9])) * GIB
                    for job_id in holders
                    if job_id not in self.freed_at and data.draw(st.booleans())
                },
            )
            uses.append(one)
            self.looks[uuid] = one
        for job_id, at in list(self.ledger):
            freed_at = self.freed_at.get(job_id)
            known = at in self.listed and self.looks[at].unmanaged_bytes is not None
            gone = self.disk[job_id].state is JobState.LOST
            if freed_at is not None and self.desk.now > freed_at and (known or gone):
                self.ledger.pop((job_id, at), None)
        if uses:
            self.say("look", *uses)

    @rule(kept=st.sets(st.sampled_from(UUIDS)))
    def change_devices(self, kept) -> None:
        for uuid in (set(UUIDS) - self.listed) | (self.listed - kept):
            self.looks.pop(uuid, None)
        self.listed = set(kept)
        self.say("change_devices", *(device(uuid) for uuid in sorted(kept)))

    @rule(seconds=st.sampled_from([0.5, 5.0, 31.0, 61.0, 3600.0]))
    def wait(self, seconds) -> None:
        self.desk.later(seconds)
        self.say("tick")

    @rule()
    def restart_from_disk(self) -> None:
        """A new broker from exactly what was saved; what it does not know it must look at."""
        old = self.desk
        self.desk = Desk(
            *(device(uuid) for uuid in sorted(self.listed)),
            jobs=tuple(self.disk.values()),
            next_fence=self.next_fence,
            now=old.now,
            looked=False,
        )
        self.desk.number = old.number
        self.looks.clear()
        # A look after the restart is after every end, so no charge has to outlive it.
        for job_id in self.freed_at:
            self.strike(job_id)
        self.desk.broker.check_invariants()

    # --- the reference --------------------------------------------------------------------------

    def any_job(self, pick: int) -> str:
        return self.accepted[pick % len(self.accepted)]

    def say(self, word: str, *said: object, **named: object) -> None:
        before = self.desk.broker.checkpoint()
        try:
            commands = getattr(self.desk, word)(*said, **named)
        except HorusError:
            assert self.desk.broker.checkpoint() == before, "a refused event changed the broker"
            return
        self.carry_out(commands)

    def carry_out(self, commands: tuple[Command, ...]) -> None:
        told = False
        granted = []
        for command in commands:
            match command:
                case SaveFence(next_fence=fence):
                    assert fence > self.next_fence
                    self.next_fence = fence
                case SaveJob(job=job):
                    assert not told, "something was told before everything was saved"
                    last = self.disk.get(job.id)
                    self.disk[job.id] = job
                    if job.state is JobState.GRANTED and (last is None or last.lease != job.lease):
                        granted.append(job)
                    elif job.state is JobState.QUEUED or (
                        # A grant that was never confirmed was never used.
                        job.state.ended and job.started_at is None
                    ):
                        self.strike(job.id)
                case Announce(job=job):
                    told = True
                    assert job.revision >= self.revisions.get(job.id, 0)
                    self.revisions[job.id] = job.revision
        for job in granted:
            self.enter(job)
        for job in granted:
            self.audit(job)

    def enter(self, job: Job) -> None:
        assert job.lease is not None
        assert job.lease.fence not in self.fences, "a fence was given out twice"
        assert job.lease.fence < self.next_fence, "a fence is not on disk"
        self.fences[job.lease.fence] = job.id
        for slot in job.lease.slots:
            self.ledger[job.id, slot.device_uuid] = slot.reserved_bytes

    def audit(self, job: Job) -> None:
        """Rule 1 at this grant, by the ledger."""
        assert job.lease is not None
        for slot in job.lease.slots:
            uuid = slot.device_uuid
            assert uuid in self.listed
            seen = self.looks[uuid]
            assert seen.unmanaged_bytes is not None
            assert seen.reading.health is Health.OK
            charged = sum(
                max(reserved, seen.by_job.get(job_id, 0))
                for (job_id, at), reserved in self.ledger.items()
                if at == uuid
            )
            assert charged + seen.unmanaged_bytes <= ROOM

    def strike(self, job_id: str) -> None:
        for key in [key for key in self.ledger if key[0] == job_id]:
            del self.ledger[key]

    @invariant()
    def nothing_is_lost(self) -> None:
        if hasattr(self, "desk"):
            assert set(self.accepted) == set(self.desk.broker.jobs) == set(self.disk)

    @invariant()
    def the_disk_knows_what_matters(self) -> None:
        for job_id, job in getattr(self, "disk", {}).items():
            live = self.desk.job(job_id)
            for field in ("state", "lease", "cancel_requested", "outcome", "story", "started_at"):
                assert getattr(live, field) == getattr(job, field), field


TestEveryEvent = EveryEvent.TestCase
TestEveryEvent.settings = settings(
    max_examples=200,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
