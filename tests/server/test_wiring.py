from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from horus_lab.errors import BrokerUnavailable
from jupyter_ext.access import Access
from jupyter_ext.backend import Backend
from jupyter_ext.wiring import Wiring

BACKEND = cast(Backend, object())


def wiring(**options: Any) -> Wiring:
    return Wiring(Access("ada"), **options)


async def test_a_request_waits_for_a_broker_that_is_starting() -> None:
    wired = wiring()
    asking = asyncio.ensure_future(wired.backend())
    await asyncio.sleep(0)
    assert not asking.done()
    wired.ready(BACKEND)
    assert await asking is BACKEND


async def test_it_does_not_wait_for_ever() -> None:
    with pytest.raises(BrokerUnavailable, match="still starting"):
        await wiring(start_seconds=0.01).backend()


async def test_a_failure_is_told_to_whoever_waits_and_to_all_after() -> None:
    wired = wiring()
    asking = asyncio.ensure_future(wired.backend())
    await asyncio.sleep(0)
    wired.failed("No driver.", hint="Load it.")
    for _ in range(2):
        with pytest.raises(BrokerUnavailable) as caught:
            await (asking if not asking.done() else wired.backend())
        assert (caught.value.message, caught.value.hint) == ("No driver.", "Load it.")


async def test_after_the_stop_there_is_no_broker() -> None:
    wired = wiring()
    wired.ready(BACKEND)
    wired.failed("It has stopped.")
    with pytest.raises(BrokerUnavailable, match="stopped"):
        await wired.backend()


def test_capabilities_are_long_and_never_the_same() -> None:
    minted = {Access("ada").capability for _ in range(100)}
    assert len(minted) == 100
    assert min(map(len, minted)) >= 43  # 256 bits in base64
