"""The event stream of a real server."""

from __future__ import annotations

import asyncio
import json
import uuid
from typing import Any

import msgspec
import pytest
from tornado import httpclient, websocket

from horus_lab.client import this_process
from horus_lab.records import BrokerEvent, DeclaredNeeds, JobRequest
from tests.server.conftest import API, CAPABILITY, TOKEN, Server
from tests.server.contract import DOCUMENT

pytestmark = pytest.mark.server


async def connect(server: Server, query: str = "", **headers: str) -> Any:
    address = server.url.replace("http://", "ws://") + API + "events" + query
    headers.setdefault("Authorization", f"token {TOKEN}")
    return await websocket.websocket_connect(
        httpclient.HTTPRequest(address, headers=headers, connect_timeout=30)
    )


async def read(stream: Any) -> BrokerEvent:
    message = await asyncio.wait_for(stream.read_message(), 30)
    assert message is not None, f"closed: {stream.close_code} {stream.close_reason}"
    return msgspec.json.decode(message, type=BrokerEvent)


async def read_job(stream: Any, job_id: str, state: str) -> BrokerEvent:
    while True:
        event = await read(stream)
        if event.job is not None and event.job.id == job_id and event.job.state == state:
            return event


def submit(server: Server) -> Any:
    request = JobRequest(
        request_id=uuid.uuid4().hex,
        name="training",
        process=this_process(),
        declared=DeclaredNeeds(memory_bytes=2**30, utilization=0.1),
    )
    return server.client().submit(request)


async def test_it_begins_with_a_snapshot_of_everything(server: Server) -> None:
    job = await asyncio.to_thread(submit, server)
    stream = await connect(server)
    first = await read(stream)
    assert first.kind == "snapshot"
    assert job.id in [known.id for known in first.jobs]
    assert len(first.devices) == 2
    await asyncio.to_thread(server.client().cancel, job.id)
    stream.close()


async def test_each_change_of_a_job_arrives_with_a_growing_number(server: Server) -> None:
    stream = await connect(server)
    first = await read(stream)
    job = await asyncio.to_thread(submit, server)
    granted = await read_job(stream, job.id, "granted")
    assert granted.job is not None
    assert granted.job.lease is not None
    fence = granted.job.lease.fence
    client = server.client()
    await asyncio.to_thread(client.confirm, job.id, fence)
    running = await read_job(stream, job.id, "running")
    assert first.sequence < granted.sequence < running.sequence
    await asyncio.to_thread(server.http.post, f"{API}jobs/{job.id}/release", json={"fence": fence})
    await read_job(stream, job.id, "done")
    stream.close()


async def test_a_reader_that_comes_back_misses_nothing_and_reads_nothing_twice(
    server: Server,
) -> None:
    stream = await connect(server)
    seen = (await read(stream)).sequence
    stream.close()
    job = await asyncio.to_thread(submit, server)  # while nobody listens
    again = await connect(server, f"?after={seen}")
    event = await read(again)
    assert event.kind != "snapshot"
    assert event.sequence > seen
    numbers = [event.sequence]
    while not (event.job is not None and event.job.id == job.id):
        event = await read(again)
        numbers.append(event.sequence)
    assert numbers == sorted(set(numbers))
    await asyncio.to_thread(server.client().cancel, job.id)
    again.close()


async def test_a_number_that_is_too_old_or_of_another_server_gets_a_snapshot(
    server: Server,
) -> None:
    for number in (0, 9_000_000_000_000_000):
        stream = await connect(server, f"?after={number}")
        assert (await read(stream)).kind == "snapshot"
        stream.close()


async def test_devices_are_told_after_each_look(server: Server) -> None:
    stream = await connect(server)
    await read(stream)
    while (event := await read(stream)).kind != "devices":
        pass
    assert len(event.devices) == 2
    stream.close()


async def test_each_message_is_what_the_file_describes(server: Server) -> None:
    from jsonschema import Draft202012Validator

    schema = {
        "$ref": "#/components/schemas/BrokerEvent",
        "components": DOCUMENT["components"],
    }
    stream = await connect(server)
    for _ in range(3):
        message = await asyncio.wait_for(stream.read_message(), 30)
        Draft202012Validator(schema).validate(json.loads(message))
    stream.close()


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": ""},
        {"Authorization": "token wrong"},
        {"Authorization": f"Horus {CAPABILITY}"},
    ],
)
async def test_nobody_unknown_is_let_in(server: Server, headers: dict[str, str]) -> None:
    with pytest.raises(httpclient.HTTPClientError) as caught:
        await connect(server, **headers)
    assert caught.value.code == 401
    assert caught.value.response is not None
    assert json.loads(caught.value.response.body)["code"] == "not_authenticated"


async def test_a_page_of_another_site_is_not_let_in(server: Server) -> None:
    with server.bare() as browser:
        browser.get("tree", params={"token": TOKEN})
        browser.get("api/me")
        cookies = "; ".join(f"{name}={value}" for name, value in browser.cookies.items())
    with pytest.raises(httpclient.HTTPClientError) as caught:
        await connect(server, Authorization="", Cookie=cookies, Origin="https://elsewhere.example")
    assert caught.value.code == 403
    stream = await connect(server, Authorization="", Cookie=cookies)
    assert (await read(stream)).kind == "snapshot"
    stream.close()


@pytest.mark.parametrize("after", ["-1", "x", "1.5", "NaN", "9" * 30])
async def test_a_number_that_is_none_is_refused_before_the_upgrade(
    server: Server, after: str
) -> None:
    with pytest.raises(httpclient.HTTPClientError) as caught:
        await connect(server, f"?after={after}")
    assert caught.value.code == 400


async def test_what_a_reader_says_is_not_listened_to(server: Server) -> None:
    stream = await connect(server)
    await read(stream)
    await stream.write_message("x" * 1000)
    await stream.write_message(b"\x00\xff", binary=True)
    assert (await read(stream)).sequence
    stream.close()


async def test_an_open_stream_counts_as_nobodys_activity(server: Server) -> None:
    before = server.http.get("api/status").json()["last_activity"]
    stream = await connect(server)
    await read(stream)
    await read(stream)
    status = await asyncio.to_thread(server.http.get, "api/status")
    assert status.json()["last_activity"] == before
    stream.close()
