"""What a restart of the server does to those who wait, train and read."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable

import pytest

from horus_lab.client import HeldLease, acquire, this_process
from horus_lab.records import Constraints, DeclaredNeeds, JobRequest, JobState
from tests.server.conftest import API, Server

pytestmark = pytest.mark.server


def exclusive(name: str) -> JobRequest:
    return JobRequest(
        request_id=uuid.uuid4().hex,
        name=name,
        process=this_process(),
        declared=DeclaredNeeds(memory_bytes=2**30, utilization=0.2),
        constraints=Constraints(exclusive=True),
    )


def test_a_training_and_a_wait_outlive_the_server(start_server: Callable[..., Server]) -> None:
    """The clients live in this process: unlike a kernel, it does not end with the server."""
    server = start_server(devices="sim:1xA100-80GB")
    client = server.client(patience_seconds=0.2)
    training = acquire(client, exclusive("training"), heartbeat_seconds=0.2)
    leases: list[HeldLease] = []
    notices: list[str] = []
    request = exclusive("waiting")

    def wait() -> None:
        leases.append(acquire(client, request, on_notice=notices.append))

    waiter = threading.Thread(target=wait, daemon=True)
    waiter.start()

    def queued() -> bool:
        jobs = server.http.get(API + "jobs?state=queued").json()
        return [job["request"]["name"] for job in jobs] == ["waiting"]

    while not queued():
        waiter.join(0.1)
    server.stop()
    waiter.join(1.0)
    server.start()
    for _ in range(300):
        if client.job(training.job_id).state is JobState.RUNNING and queued():
            break
        waiter.join(0.1)
    assert client.job(training.job_id).state is JobState.RUNNING
    assert not leases
    done = training.release()
    assert done is not None
    assert done.state is JobState.DONE
    waiter.join(60)
    assert [lease.job.request.request_id for lease in leases] == [request.request_id]
    assert leases[0].lease.fence > training.lease.fence
    assert any("cannot be reached" in text for text in notices)
    leases[0].release()
