"""The service's time."""

from __future__ import annotations

import time

import pytest

from horus_lab.service import SystemClock


def test_a_step_of_the_wall_clock_moves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SystemClock()
    before = clock.now()
    year = 365 * 86400.0
    for step in (year, -year):
        monkeypatch.setattr(time, "time", lambda step=step: before + step)
        assert 0.0 <= clock.now() - before < 60.0


def test_both_senses_of_time_go_on_together() -> None:
    clock = SystemClock()
    assert abs(clock.now() - time.time()) < 5.0
    now, monotonic = clock.now(), clock.monotonic()
    time.sleep(0.05)
    passed = clock.monotonic() - monotonic
    assert passed >= 0.05
    assert clock.now() - now == pytest.approx(passed, abs=0.05)
