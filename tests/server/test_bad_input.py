"""What is wrong in a request is told to its sender, and changes nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.server.conftest import API, Server
from tests.server.contract import check

pytestmark = pytest.mark.server

PROCESS = {"boot_id": "b", "pid_namespace": 1, "pid": 1, "start_ticks": 1}
REQUEST: dict[str, Any] = {
    "request_id": "r-1",
    "name": "training",
    "process": PROCESS,
    "declared": {"memory_bytes": 2**30},
}


def text(**changes: str) -> str:
    """The request as JSON text with some members replaced by the given raw text."""
    members = {name: json.dumps(value) for name, value in REQUEST.items()} | changes
    return "{" + ",".join(f'"{name}":{value}' for name, value in members.items()) + "}"


@pytest.mark.parametrize(
    "body",
    [
        "",
        "null",
        "[]",
        '"a string"',
        "{",
        "{}",
        '{"request_id": "r"} trailing',
        text(steps="NaN"),
        text(declared='{"memory_bytes": 1, "utilization": NaN}'),
        text(declared='{"memory_bytes": 1, "utilization": Infinity}'),
        text(declared='{"memory_bytes": 1, "utilization": 1e999}'),
        text(declared='{"memory_bytes": 1, "utilization": 1.5}'),
        text(declared='{"memory_bytes": 0}'),
        text(declared='{"memory_bytes": -1}'),
        text(declared='{"memory_bytes": 1.5}'),
        text(declared='{"memory_bytes": 99999999999999999999999}'),
        text(declared='{"memory_bytes": "2GiB"}'),
        text(devices="0"),
        text(devices="65"),
        text(devices="true"),
        text(name='""'),
        text(name='"' + "x" * 201 + '"'),
        text(request_id='"has a space"'),
        text(request_id='"../../etc"'),
        text(process="null"),
        text(constraints='{"max_slowdown": 0.5}'),
        text(constraints='{"priority": 11}'),
        text(constraints='{"exclusiv": true}'),
        text(owner='"somebody else"'),
        text(surprise="1"),
        text(features="[" * 20_000 + "]" * 20_000),
        text(name='"\\ud800"'),
    ],
)
def test_a_bad_submission_is_refused_with_a_reason(server: Server, body: str) -> None:
    before = server.http.get(API + "jobs").json()
    answer = server.http.post(API + "jobs", content=body)
    assert answer.status_code == 400, answer.text
    reply = check(answer, "POST", "jobs")
    assert reply["code"] == "invalid_request"
    assert reply["hint"]
    assert "Traceback" not in answer.text
    assert server.http.get(API + "jobs").json() == before


def test_bytes_that_are_no_utf8_are_refused(server: Server) -> None:
    answer = server.http.post(API + "jobs", content=b'{"name": "\xff\xfe"}')
    assert answer.status_code == 400
    check(answer, "POST", "jobs")


def test_the_field_that_is_wrong_is_named(server: Server) -> None:
    answer = server.http.post(API + "jobs", content=text(constraints='{"priority": 11}'))
    assert "$.constraints.priority" in answer.json()["message"]


@pytest.mark.parametrize("path", ["jobs", "predict", "jobs/job-1/heartbeat"])
def test_a_body_past_a_mebibyte_is_413(server: Server, path: str) -> None:
    answer = server.http.post(API + path, content=b" " * (2**20 + 1))
    assert answer.status_code == 413
    assert check(answer, "POST", path)["code"] == "too_large"


def test_a_huge_body_without_a_length_is_413_too(server: Server) -> None:
    chunks = (b" " * 2**16 for _ in range(64))  # sent chunked: no Content-Length to look at
    answer = server.http.post(API + "predict", content=chunks)
    assert answer.status_code == 413
    check(answer, "POST", "predict")


@pytest.mark.parametrize(
    ("path", "parameters"),
    [
        ("jobs/job-1", {"wait_seconds": "NaN"}),
        ("jobs/job-1", {"wait_seconds": "inf"}),
        ("jobs/job-1", {"wait_seconds": "1e999"}),
        ("jobs/job-1", {"wait_seconds": "-1"}),
        ("jobs/job-1", {"wait_seconds": "31"}),
        ("jobs/job-1", {"wait_seconds": "soon"}),
        ("jobs/job-1", {"wait_seconds": ""}),
        ("jobs/job-1", {"after_revision": "-1"}),
        ("jobs/job-1", {"after_revision": "1.5"}),
        ("jobs/job-1", {"after_revision": "٣"}),
        ("jobs/job-1", {"after_revision": "9" * 400}),
        ("jobs", {"limit": "1001"}),
        ("jobs", {"limit": "-1"}),
        ("jobs", {"limit": "all"}),
        ("jobs", {"state": "runing"}),
        ("jobs", {"state": ""}),
        ("history", {"limit": "0x10"}),
    ],
)
def test_a_bad_query_is_refused_with_what_was_expected(
    server: Server, path: str, parameters: dict[str, str]
) -> None:
    answer = server.http.get(API + path, params=parameters)
    assert answer.status_code == 400, answer.text
    assert "expected" in check(answer, "GET", path)["message"]


@pytest.mark.parametrize(
    "job_id", ["no-such-job", "..%2F..%2Fetc", "a%20b", "%00", "x" * 101, "<script>", "a;b", "é"]
)
def test_an_id_that_no_job_has_is_404_and_is_not_said_back(server: Server, job_id: str) -> None:
    for method, tail in (("GET", ""), ("GET", "/story"), ("DELETE", "")):
        answer = server.http.request(method, f"{API}jobs/{job_id}{tail}")
        assert answer.status_code == 404, answer.text
        assert check(answer, method, f"jobs/id{tail}")["code"] == "unknown_job"
        assert "<script>" not in answer.text
    for action in ("confirm", "heartbeat", "release"):
        body = {"fence": 1, "sequence": 1} if action == "heartbeat" else {"fence": 1}
        answer = server.http.post(f"{API}jobs/{job_id}/{action}", json=body)
        assert answer.status_code == 404, answer.text


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    body=st.recursive(
        st.none()
        | st.booleans()
        | st.floats(allow_nan=True)
        | st.integers()
        | st.text(st.characters(codec="utf-8"), max_size=20),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from([*REQUEST, "features", "constraints", "memory_bytes", "x"]), inner
            )
        ),
        max_leaves=12,
    ),
    path=st.sampled_from(["jobs", "predict", "jobs/a/heartbeat", "jobs/a/release"]),
)
def test_no_json_whatever_makes_the_server_fail(server: Server, body: Any, path: str) -> None:
    answer = server.http.post(API + path, content=json.dumps(body))
    assert answer.status_code < 500, answer.text
    check(answer, "POST", path)
