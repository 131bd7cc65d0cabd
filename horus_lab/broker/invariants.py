"""What must always hold, checked by the broker itself before a grant counts."""

from __future__ import annotations

from collections.abc import Iterable

from horus_lab.broker import views
from horus_lab.broker.state import State
from horus_lab.policy.cluster import Placement


class InvariantBroken(AssertionError):
    """A defect of Horus Lab: refusing to go on is better than promising bytes twice."""


def check_grants(state: State, placements: Iterable[Placement]) -> None:
    """Memory on every device that the placements touch, all of them together.

    Sum over residents of max(reserved, measured) + unmanaged use less what the newcomers hold
    already + lingering + the new reservations <= capacity - margin; unknown use grants nothing.
    """
    added: dict[str, int] = {}
    held: dict[str, int] = {}
    placed: set[str] = set()
    for placement in placements:
        if placement.job_id in placed:
            raise InvariantBroken(f"job {placement.job_id} is placed twice in one plan")
        placed.add(placement.job_id)
        job = state.jobs.get(placement.job_id)
        if job is None or job.state.value != "queued":
            raise InvariantBroken(f"job {placement.job_id} is placed, and does not wait")
        if len(placement.slots) != job.request.devices:
            raise InvariantBroken(
                f"job {job.id} asks for {job.request.devices} devices "
                f"and is placed on {len(placement.slots)}"
            )
        if len({slot.device_uuid for slot in placement.slots}) != len(placement.slots):
            raise InvariantBroken(f"job {job.id} is placed twice on one device")
        for slot in placement.slots:
            uuid = slot.device_uuid
            added[uuid] = added.get(uuid, 0) + slot.reserved_bytes
            use = state.uses.get(uuid)
            held[uuid] = held.get(uuid, 0) + (use.by_job.get(job.id, 0) if use else 0)
    for uuid, new in added.items():
        if uuid not in state.devices:
            raise InvariantBroken(f"a job is placed on {uuid}, which is not here")
        view = views.device_view(state, state.devices[uuid])
        if not view.healthy or view.unmanaged_bytes is None:
            raise InvariantBroken(f"a job is placed on {uuid}, whose use is unknown")
        charged = sum(resident.charged_bytes for resident in view.residents)
        unmanaged = max(0, view.unmanaged_bytes - held[uuid])
        total = charged + unmanaged + view.lingering_bytes + new
        limit = view.device.capacity_bytes - view.device.margin_bytes
        if total > limit:
            raise InvariantBroken(f"{total} bytes would be promised on {uuid}, of {limit}")


def check_state(state: State) -> None:
    """Fences are unique and below the next one; holders have leases, waiters have none."""
    fences: dict[int, str] = {}
    for job in state.jobs.values():
        if job.state.holds and job.lease is None:
            raise InvariantBroken(f"job {job.id} is {job.state.value} without a lease")
        if job.state.value == "queued" and job.lease is not None:
            raise InvariantBroken(f"job {job.id} waits and has a lease")
        if job.lease is None:
            continue
        fence = job.lease.fence
        if fence >= state.next_fence:
            raise InvariantBroken(f"fence {fence} of {job.id} was never given out")
        if fence in fences:
            raise InvariantBroken(f"fence {fence} is {job.id}'s and {fences[fence]}'s")
        fences[fence] = job.id
    for key in state.paces:
        if key not in state.jobs or not state.jobs[key].state.holds:
            raise InvariantBroken(f"{key} has a pace and holds nothing")
