from __future__ import annotations

import json
import os
import socket
import threading
import time

import pytest

from horus_lab.client import HorusClient
from horus_lab.errors import (
    BrokerUnavailable,
    HorusError,
    InvalidRequest,
    NeverFits,
    StoreUnavailable,
    UnknownJob,
)
from horus_lab.records import JobRequest
from tests.client.conftest import ScriptedBroker


def test_a_call_shows_the_capability_and_nothing_else_of_the_callers(
    broker: ScriptedBroker, request_: JobRequest
) -> None:
    broker.client().submit(request_)
    assert broker.headers[-1]["Authorization"] == "Horus secret"
    assert "Cookie" not in broker.headers[-1]


def test_a_persons_program_shows_a_jupyter_token(
    broker: ScriptedBroker, request_: JobRequest
) -> None:
    HorusClient(broker.url, token="abc").submit(request_)
    assert broker.headers[-1]["Authorization"] == "token abc"


def test_an_error_comes_back_as_the_class_that_the_broker_raised(broker: ScriptedBroker) -> None:
    broker.before = lambda method, path: NeverFits("It needs 90 GiB.", hint="Use a smaller batch.")
    with pytest.raises(NeverFits) as caught:
        broker.client().devices()
    assert (caught.value.message, caught.value.hint) == ("It needs 90 GiB.", "Use a smaller batch.")


def test_a_code_of_a_newer_broker_is_still_its_message(broker: ScriptedBroker) -> None:
    class FromTheFuture(HorusError):
        code = "from_the_future"
        status = 418

    broker.before = lambda method, path: FromTheFuture("Not today.")
    with pytest.raises(HorusError, match="Not today"):
        broker.client().devices()


def test_an_answer_that_is_not_horus_names_the_address_and_the_extension(
    broker: ScriptedBroker,
) -> None:
    broker.before = lambda method, path: b"<html>Log in</html>"
    with pytest.raises(BrokerUnavailable, match=r"user/x/horus/api/v1/health"):
        broker.client(patience_seconds=0).health()


def test_nobody_listening_is_told_with_the_address_and_soon() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/"
        with pytest.raises(BrokerUnavailable) as caught:
            HorusClient(url, patience_seconds=0.3).devices()
    assert url in caught.value.message
    assert "did not answer" in caught.value.message


def test_a_broken_connection_is_tried_again_while_patience_lasts(
    broker: ScriptedBroker, request_: JobRequest
) -> None:
    client = broker.client(patience_seconds=10)
    client.submit(request_)
    broker.stop()
    threading.Timer(0.5, broker.start).start()
    assert client.job("job-1").id == "job-1"


def test_a_store_that_fails_once_costs_the_caller_nothing(
    broker: ScriptedBroker, request_: JobRequest
) -> None:
    failures = [StoreUnavailable("The disk is full.")]
    broker.before = lambda method, path: failures.pop() if failures else None
    assert broker.client().submit(request_).id == "job-1"
    assert broker.requests == ["POST jobs", "POST jobs"]


def test_an_error_of_the_callers_is_not_repeated(broker: ScriptedBroker) -> None:
    with pytest.raises(UnknownJob):
        broker.client().job("job-9")
    assert broker.requests == ["GET jobs/job-9"]


def test_a_job_id_cannot_reach_another_route(broker: ScriptedBroker) -> None:
    with pytest.raises(UnknownJob):
        broker.client().job("../health?x=1")
    assert broker.requests == ["GET jobs/..%2Fhealth%3Fx%3D1"]
    with pytest.raises(InvalidRequest):
        broker.client().job("..")


def test_a_proxy_of_the_environment_is_not_asked_for_this_machine(
    broker: ScriptedBroker, request_: JobRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    assert broker.client(patience_seconds=0).submit(request_).id == "job-1"


def test_a_long_poll_outlasts_the_usual_time_out_and_returns_at_the_change(
    broker: ScriptedBroker, request_: JobRequest
) -> None:
    client = broker.client()
    job = client.submit(request_)
    threading.Timer(0.3, broker.grant).start()
    begun = time.monotonic()
    assert client.job(job.id, after_revision=job.revision, wait_seconds=25).revision == 2
    assert time.monotonic() - begun < 20


def test_a_forked_child_opens_connections_of_its_own(
    broker: ScriptedBroker, request_: JobRequest
) -> None:
    client = broker.client()
    client.submit(request_)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, json.dumps(client.job("job-1").id).encode())
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading) as said:
        assert json.loads(said.read()) == "job-1"
    client.job("job-1")
    submitted, childs, parents = broker.ports
    assert childs != submitted
    assert parents == submitted
