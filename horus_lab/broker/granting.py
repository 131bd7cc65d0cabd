"""From a policy's plan to grants and reasons. Every placement is held against the rules first."""

from __future__ import annotations

from msgspec.structs import replace

from horus_lab.broker import views
from horus_lab.broker.draft import Draft
from horus_lab.broker.invariants import InvariantBroken
from horus_lab.policy.cluster import DeviceView, Placement
from horus_lab.records import Interval, Job, JobState, Lease, Slot, WaitReason

_ROUNDING = 1e-9
_WORTH_TELLING = 0.25


def decide(draft: Draft) -> None:
    """Ask the policy, grant what it places, and keep everyone else's reason up to date."""
    if not draft.state.queue():
        return
    view = views.cluster_view(draft.state, draft.rules.settings, draft.now)
    plan = draft.rules.policy.plan(view, draft.now)
    refused: dict[str, str] = {}
    for placement in plan.placements:
        objection = _objection(draft, placement)
        if not objection:
            _grant(draft, placement)
        elif draft.rules.strict:
            raise InvariantBroken(
                f"{draft.rules.policy.name} places {placement.job_id}: {objection}"
            )
        else:
            refused[placement.job_id] = objection
    waiting = dict(plan.waiting)
    for job_id, objection in refused.items():
        sentence = f"Its placement was refused by the broker's own check: {objection}."
        waiting[job_id] = WaitReason(position=1, sentence=sentence)
    for job_id, reason in waiting.items():
        _explain(draft, job_id, reason)


def _objection(draft: Draft, placement: Placement) -> str:
    """What is wrong with a placement; empty where nothing is."""
    job = draft.state.jobs.get(placement.job_id)
    if job is None or job.state is not JobState.QUEUED:
        return "it does not wait"
    if views.is_absent(draft.state, draft.rules.settings, job, draft.now):
        return "its client is absent"
    uuids = [slot.device_uuid for slot in placement.slots]
    if len(set(uuids)) != len(uuids) or len(uuids) != job.request.devices:
        return f"it asks for {job.request.devices} devices and would get {', '.join(uuids)}"
    for slot in placement.slots:
        objection = _objection_to_slot(draft, job, slot)
        if objection:
            return f"{slot.device_uuid}: {objection}"
    return ""


def _objection_to_slot(draft: Draft, job: Job, slot: Slot) -> str:
    device = draft.state.devices.get(slot.device_uuid)
    if device is None:
        return "there is no such device"
    allowed = job.request.constraints.device_uuids
    if allowed and device.uuid not in allowed:
        return "its owner did not allow it"
    view = views.device_view(draft.state, draft.rules.settings, device, draft.now)
    if not view.healthy:
        return view.why_unhealthy
    if view.unmanaged_bytes is None:
        return "nobody knows what is in use there"
    held = views.queued_view(draft.state, draft.rules.settings, job, draft.now).held_bytes
    # What the newcomer holds already is part of the unmanaged use and of its reservation.
    added = max(0, slot.reserved_bytes - held.get(device.uuid, 0))
    charged = sum(resident.charged_bytes for resident in view.residents)
    total = charged + view.lingering_bytes + view.unmanaged_bytes + added
    room = device.capacity_bytes - device.margin_bytes
    if total > room:
        return f"{total} bytes would be promised of {room}"
    return _objection_of_neighbours(draft, job, view)


def _objection_of_neighbours(draft: Draft, job: Job, view: DeviceView) -> str:
    if not view.residents:
        return ""
    if len(view.residents) >= view.device.max_residents:
        return f"{len(view.residents)} jobs are there already"
    if job.request.constraints.exclusive:
        return "it would have neighbours, and is exclusive"
    for resident in view.residents:
        if resident.exclusive:
            return f"{resident.name} is exclusive"
    if draft.rules.interference is None:
        return ""
    predictions = [resident.prediction for resident in view.residents]
    predictions.append(views.prediction_on(job, view.device))
    bounds = [resident.max_slowdown for resident in view.residents]
    bounds.append(job.request.constraints.max_slowdown)
    slowdowns = draft.rules.interference.slowdowns(predictions, view.device.spec)
    for slowdown, bound in zip(slowdowns, bounds, strict=True):
        if slowdown is None:
            return "nobody can say how the neighbours would slow each other down"
        if slowdown.p50 > bound + _ROUNDING:
            return f"a slowdown of {slowdown.p50:.2f} would break a bound of {bound:.2f}"
    return ""


def _grant(draft: Draft, placement: Placement) -> None:
    job = draft.state.jobs[placement.job_id]
    neighbours = {
        resident.id: None
        for slot in placement.slots
        for resident in draft.state.residents(slot.device_uuid)
    }
    lease = Lease(
        fence=draft.state.next_fence,
        slots=placement.slots,
        granted_at=draft.now,
        neighbours=tuple(neighbours),
    )
    draft.state.next_fence += 1
    job = draft.move(job, JobState.GRANTED, "Grant", placement.why)
    draft.state.change(job.id, held_since=draft.now)
    draft.revise(replace(job, lease=lease, granted_at=draft.now, reason=None))


def withdraw(draft: Draft, job: Job) -> None:
    """Take back a grant that was not confirmed; the job keeps its place, its fence is void."""
    seconds = draft.rules.settings.confirm_seconds
    why = f"not taken within {seconds:.0f} s; it keeps its place"
    job = draft.move(job, JobState.QUEUED, "Withdraw", why)
    # Its client is passed over until it asks again; else the grant would go round in circles.
    draft.state.change(job.id, held_since=None, contact_at=None)
    draft.revise(replace(job, lease=None, granted_at=None))
    draft.decide = True


def _explain(draft: Draft, job_id: str, reason: WaitReason) -> None:
    """Tell a new reason at once, and changing numbers in the same one only now and then."""
    job = draft.state.jobs.get(job_id)
    if job is None or job.state is not JobState.QUEUED or job.reason == reason:
        return
    if job.reason is not None and _shape(job.reason) == _shape(reason):
        recent = draft.now - draft.state.live[job_id].told_at < draft.rules.settings.reason_seconds
        if recent or not _differs(job.reason, reason):
            return
    draft.state.change(job_id, told_at=draft.now)
    draft.revise(replace(job, reason=reason))


def _shape(reason: WaitReason) -> tuple[object, ...]:
    """What of a reason makes it another reason."""
    return (
        reason.position,
        reason.absent,
        reason.expected_seconds is None,
        "" if reason.obstacles else reason.sentence,
        tuple((one.device_uuid, one.kind, one.job_id) for one in reason.obstacles),
    )


def _differs(old: WaitReason, new: WaitReason) -> bool:
    """Whether the numbers of a reason moved by a quarter, in either way."""
    pairs: list[tuple[float | None, float | None]] = [
        (_middle(old.expected_seconds), _middle(new.expected_seconds))
    ]
    for before, after in zip(old.obstacles, new.obstacles, strict=True):
        pairs += [
            (before.lacking_bytes, after.lacking_bytes),
            (before.slowdown, after.slowdown),
            (before.bound, after.bound),
        ]
    return any(_moved(before, after) for before, after in pairs)


def _middle(interval: Interval | None) -> float | None:
    return None if interval is None else interval.p50


def _moved(before: float | None, after: float | None) -> bool:
    if before is None or after is None:
        return before is not after
    return abs(after - before) > _WORTH_TELLING * max(abs(before), abs(after))
