"""What waits for the broker's thread."""

from __future__ import annotations

import pytest

from horus_lab.errors import BrokerUnavailable, ConfigurationError
from horus_lab.service import Pace, ServiceSettings
from horus_lab.service.mailbox import Mailbox


def work(mailbox: Mailbox) -> None:
    while (taken := mailbox.take(0.0)) is not None:
        taken()


def test_calls_are_done_in_their_order_and_news_first() -> None:
    mailbox, done = Mailbox(10), []
    first = mailbox.call(lambda: done.append("call 1"))
    mailbox.call(lambda: done.append("call 2"))
    mailbox.tell("sample", lambda: done.append("news"))
    work(mailbox)
    assert done == ["news", "call 1", "call 2"]
    assert first.done()


def test_newer_news_of_a_kind_replaces_older() -> None:
    mailbox, done = Mailbox(10), []
    for number in range(1000):
        mailbox.tell("sample", lambda number=number: done.append(number))
    work(mailbox)
    assert done == [999]


def test_more_calls_than_the_bound_are_refused_at_once() -> None:
    mailbox = Mailbox(2)
    calls = [mailbox.call(lambda: 1) for _ in range(3)]
    with pytest.raises(BrokerUnavailable, match="busy"):
        calls[2].result(0)
    work(mailbox)
    assert [call.result(0) for call in calls[:2]] == [1, 1]


def test_a_call_whose_caller_gave_up_is_not_done() -> None:
    mailbox, done = Mailbox(2), []
    call = mailbox.call(lambda: done.append(1))
    assert call.cancel()
    work(mailbox)
    assert done == []


def test_what_waits_when_the_mailbox_closes_is_refused() -> None:
    mailbox = Mailbox(2)
    call = mailbox.call(lambda: 1)
    mailbox.close(BrokerUnavailable("stopped"))
    for waiting in (call, mailbox.call(lambda: 1)):
        with pytest.raises(BrokerUnavailable, match="stopped"):
            waiting.result(0)


@pytest.mark.parametrize("seconds", [0.1, 0.0, -1.0, 1e9, float("nan")])
def test_a_pace_that_is_not_possible_is_a_configuration_error(seconds: float) -> None:
    settings = ServiceSettings(store_url="sqlite:////tmp/x", pace=Pace(sample=seconds))
    with pytest.raises(ConfigurationError) as caught:
        settings.checked()
    assert caught.value.hint


def test_a_limit_below_one_is_named() -> None:
    settings = ServiceSettings(store_url="sqlite:////tmp/x", pace=Pace(tick=0.0))
    with pytest.raises(ConfigurationError, match=r"pace\.tick"):
        settings.checked()
