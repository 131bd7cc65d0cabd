"""Jobs and observations as a store gets them."""

from __future__ import annotations

from typing import Any

from horus_lab.records import (
    DeclaredNeeds,
    Job,
    JobRequest,
    JobState,
    Lease,
    Observation,
    ProcessIdentity,
    Slot,
    StoryEntry,
)


def job(name: str = "j1", state: JobState = JobState.QUEUED, **changes: Any) -> Job:
    request = JobRequest(
        request_id=changes.pop("request_id", f"r-{name}"),
        name=f"träining {name}",
        process=changes.pop("process", ProcessIdentity("boot", 1, 4242, 7)),
        declared=DeclaredNeeds(memory_bytes=2**30, step_seconds=0.1),
    )
    given: dict[str, Any] = {
        "id": name,
        "owner": "ann",
        "request": request,
        "state": state,
        "revision": 3,
        "submitted_at": 100.25,
        "story": (StoryEntry(at=100.25, event="Submitted", from_state=None, to_state=state),),
    }
    if state.holds:
        slot = Slot(device_uuid="GPU-a", reserved_bytes=2**30, utilization=0.25)
        given["lease"] = Lease(fence=1, slots=(slot,), granted_at=101.5)
    if state.ended:
        given["ended_at"] = 200.0
    return Job(**{**given, **changes})


def observation(at: float = 1.0) -> Observation:
    return Observation(
        graph_hash="0123456789abcdef", device_model="A100", observed_at=at, memory_bytes=5
    )
