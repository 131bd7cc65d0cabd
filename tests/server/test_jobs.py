"""A job's way through the API of a real server, and what the answers look like."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from horus_lab.client import this_process
from horus_lab.records import Constraints, DeclaredNeeds, JobRequest, encode
from tests.server.conftest import API, Server
from tests.server.contract import check

pytestmark = pytest.mark.server

GIB = 2**30


def request(name: str = "training", **changes: Any) -> JobRequest:
    plain = JobRequest(
        request_id=uuid.uuid4().hex,
        name=name,
        process=this_process(),
        declared=DeclaredNeeds(memory_bytes=2 * GIB, utilization=0.2),
    )
    return msgspec.structs.replace(plain, **changes)


@pytest.fixture
def call(server: Server) -> Iterator[Callable[..., Any]]:
    """Calls as a kernel, checks each answer against the file, and cleans up behind the test."""
    mine: list[str] = []

    with server.bare(headers=server.capability) as http:

        def call(method: str, path: str, record: Any = None, status: int = 200) -> Any:
            content = encode(record) if isinstance(record, msgspec.Struct) else record
            answer = http.request(method, API + path, content=content)
            assert answer.status_code == status, answer.text
            body = check(answer, method, path)
            if (method, path) == ("POST", "jobs") and status == 201:
                assert answer.headers["Location"].endswith(f"{API}jobs/{body['id']}")
                mine.append(body["id"])
            return body

        yield call
        for job_id in mine:
            job = http.get(f"{API}jobs/{job_id}").json()
            if job["state"] == "queued":
                http.delete(f"{API}jobs/{job_id}")
            elif job["lease"] and job["state"] in ("granted", "running", "suspect"):
                http.post(f"{API}jobs/{job_id}/confirm", json={"fence": job["lease"]["fence"]})
                http.post(f"{API}jobs/{job_id}/release", json={"fence": job["lease"]["fence"]})


def granted(call: Callable[..., Any], job: dict[str, Any]) -> dict[str, Any]:
    deadline = time.monotonic() + 30
    while job["state"] == "queued":
        assert time.monotonic() < deadline, job
        after = job["revision"]
        job = call("GET", f"jobs/{job['id']}?after_revision={after}&wait_seconds=5")
    assert job["state"] == "granted", job
    return job


def test_a_job_lives_from_submission_to_history(call: Callable[..., Any]) -> None:
    submitted = request(notebook="digits.ipynb")
    job = call("POST", "jobs", submitted, 201)
    job = granted(call, job)
    fence = {"fence": job["lease"]["fence"]}
    path = f"jobs/{job['id']}"
    assert call("POST", f"{path}/confirm", msgspec.json.encode(fence))["state"] == "running"
    beat = fence | {"sequence": 1, "steps": 40, "steps_per_second": 8.0}
    job = call("POST", f"{path}/heartbeat", msgspec.json.encode(beat))
    assert job["measured"]["steps"] == 40
    devices = call("GET", "devices")
    residents = [r["job_id"] for state in devices for r in state["residents"]]
    assert job["id"] in residents
    done = call("POST", f"{path}/release", msgspec.json.encode(fence | {"steps": 50}))
    assert done["state"] == "done"
    assert done["measured"]["steps"] == 50
    story = [entry["to_state"] for entry in call("GET", f"{path}/story")]
    assert [state for state in story if state in ("queued", "granted", "running", "done")] == [
        "queued",
        "granted",
        "running",
        "done",
    ]
    assert call("GET", "history?limit=1")["jobs"][0]["id"] == job["id"]
    assert call("DELETE", path, status=409)["code"] == "invalid_transition"


def test_the_same_submission_again_is_the_same_job(call: Callable[..., Any]) -> None:
    submitted = request()
    first = call("POST", "jobs", submitted, 201)
    again = call("POST", "jobs", submitted, 200)
    assert again["id"] == first["id"]


def test_the_same_id_with_another_body_is_a_conflict(call: Callable[..., Any]) -> None:
    submitted = request()
    call("POST", "jobs", submitted, 201)
    other = msgspec.structs.replace(submitted, name="another")
    assert call("POST", "jobs", other, 409)["code"] == "conflict"


def test_a_job_that_no_device_could_hold_is_refused_at_once(call: Callable[..., Any]) -> None:
    huge = request(declared=DeclaredNeeds(memory_bytes=900 * GIB, utilization=0.5))
    reply = call("POST", "jobs", huge, 422)
    assert reply["code"] == "never_fits"
    assert reply["hint"]


def test_a_waiting_job_tells_why_and_can_be_cancelled(call: Callable[..., Any]) -> None:
    alone = Constraints(exclusive=True)
    holders = [
        granted(call, call("POST", "jobs", request(f"holder {n}", constraints=alone), 201))
        for n in range(2)
    ]
    for holder in holders:
        fence = msgspec.json.encode({"fence": holder["lease"]["fence"]})
        call("POST", f"jobs/{holder['id']}/confirm", fence)
    waiting = call("POST", "jobs", request("waiter", constraints=alone), 201)
    deadline = time.monotonic() + 20
    while not (waiting["reason"] and waiting["reason"]["sentence"]):
        assert time.monotonic() < deadline, waiting
        time.sleep(0.1)
        waiting = call("GET", f"jobs/{waiting['id']}")
    assert waiting["state"] == "queued"
    assert waiting["reason"]["position"] >= 1
    queued = call("GET", "jobs?state=queued")
    assert waiting["id"] in [job["id"] for job in queued]
    assert {job["state"] for job in queued} == {"queued"}
    for _ in range(2):  # asked again, it is answered the same
        assert call("DELETE", f"jobs/{waiting['id']}")["state"] == "cancelled"


def test_a_running_job_that_is_cancelled_is_asked_to_stop(call: Callable[..., Any]) -> None:
    job = granted(call, call("POST", "jobs", request(), 201))
    fence = {"fence": job["lease"]["fence"]}
    call("POST", f"jobs/{job['id']}/confirm", msgspec.json.encode(fence))
    job = call("DELETE", f"jobs/{job['id']}")
    assert (job["state"], job["cancel_requested"]) == ("running", True)
    beat = msgspec.json.encode(fence | {"sequence": 1})
    assert call("POST", f"jobs/{job['id']}/heartbeat", beat)["cancel_requested"] is True


def test_a_wrong_fence_is_stale(call: Callable[..., Any]) -> None:
    job = granted(call, call("POST", "jobs", request(), 201))
    wrong = msgspec.json.encode({"fence": job["lease"]["fence"] + 1000, "sequence": 1})
    assert call("POST", f"jobs/{job['id']}/heartbeat", wrong, 409)["code"] == "stale_fence"


def test_a_prediction_queues_nothing(call: Callable[..., Any]) -> None:
    before = [job["id"] for job in call("GET", "jobs")]
    question = {"declared": {"memory_bytes": 4 * GIB, "utilization": 0.3}}
    reply = call("POST", "predict", msgspec.json.encode(question))
    assert len(reply["fits"]) == 2  # one for each simulated device
    assert all(fit["fits_ever"] for fit in reply["fits"])
    assert [job["id"] for job in call("GET", "jobs")] == before


def test_a_question_without_features_or_needs_is_refused_or_unknown(
    call: Callable[..., Any], server: Server
) -> None:
    answer = server.http.post(API + "predict", content=b"{}")
    assert answer.status_code in (200, 400)
    check(answer, "POST", "predict")


def test_health_says_what_answers(call: Callable[..., Any]) -> None:
    report = call("GET", "health")
    assert (report["probe"], report["devices"]) == ("sim", 2)


def test_a_held_answer_comes_at_the_change_and_not_before(
    call: Callable[..., Any], server: Server
) -> None:
    job = granted(call, call("POST", "jobs", request(), 201))
    fence = msgspec.json.encode({"fence": job["lease"]["fence"]})
    answers: list[Any] = []

    def wait() -> None:
        path = f"{API}jobs/{job['id']}?after_revision={job['revision']}&wait_seconds=25"
        answers.append(server.http.get(path).json())

    waiter = threading.Thread(target=wait)
    waiter.start()
    waiter.join(0.5)
    assert not answers
    call("POST", f"jobs/{job['id']}/confirm", fence)
    waiter.join(20)
    assert answers[0]["state"] == "running"
    assert answers[0]["revision"] > job["revision"]


def test_a_held_answer_ends_with_its_time_and_the_job_as_it_is(call: Callable[..., Any]) -> None:
    job = granted(call, call("POST", "jobs", request(), 201))
    fence = msgspec.json.encode({"fence": job["lease"]["fence"]})
    job = call("POST", f"jobs/{job['id']}/confirm", fence)
    again = call("GET", f"jobs/{job['id']}?after_revision=9999999&wait_seconds=0.2")
    assert again["id"] == job["id"]


def test_many_waiters_leave_the_server_answering(call: Callable[..., Any], server: Server) -> None:
    job = granted(call, call("POST", "jobs", request(), 201))
    path = f"{API}jobs/{job['id']}?after_revision=9999999&wait_seconds=3"
    waiters = [threading.Thread(target=lambda: server.http.get(path)) for _ in range(40)]
    for waiter in waiters:
        waiter.start()
    assert call("GET", "health")["probe"] == "sim"
    for waiter in waiters:
        waiter.join(60)
        assert not waiter.is_alive()


def test_polling_counts_as_nobodys_activity(call: Callable[..., Any], server: Server) -> None:
    """What a culler asks: `api/status` tells the server's last activity."""
    server.http.get("api/kernelspecs")  # a person's doing
    before = server.http.get("api/status").json()["last_activity"]
    time.sleep(0.05)
    call("GET", "devices")
    server.http.get(API + "jobs")
    call("POST", "predict", b'{"declared": {"memory_bytes": 1}}')
    assert server.http.get("api/status").json()["last_activity"] == before
