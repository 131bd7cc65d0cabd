"""A service built from settings, with the shipped parts, over devices that are simulated."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from horus_lab.devices.processes import PsutilProcessTable
from horus_lab.errors import ConfigurationError, StoreUnavailable
from horus_lab.records import Confirm, JobState, PredictRequest, Release
from horus_lab.service import BrokerService, ServiceSettings, build_service
from tests.service.world import eventually, request


@pytest.fixture
def settings(tmp_path: Path) -> ServiceSettings:
    return ServiceSettings(
        store_url=f"sqlite:///{tmp_path}/horus/horus.sqlite3", devices="sim:2xA100-80GB"
    )


@pytest.fixture
def service(settings: ServiceSettings) -> Iterator[BrokerService]:
    built = build_service(settings)
    built.start()
    yield built
    built.stop()


def test_the_shipped_parts_take_a_job_from_request_to_end(service: BrokerService) -> None:
    job, _ = service.submit("ann", request("r1", gib=10)).result(20)
    assert job.state is JobState.GRANTED
    assert job.lease is not None
    fence = job.lease.fence
    service.confirm(job.id, Confirm(fence=fence), "ann").result(10)
    # The simulated device plays the prediction back: 10 GiB, with its wobble.
    eventually(lambda: service.job(job.id).result(10).measured.memory_peak_bytes)
    job = service.release(job.id, Release(fence=fence, steps=3), "ann").result(10)
    assert job.state is JobState.DONE
    history = service.history(10).result(10)
    assert [one.id for one in history.jobs] == [job.id]
    assert history.track_record.runs == 0  # simulated devices prove nothing


def test_simulated_devices_say_that_they_are(service: BrokerService) -> None:
    report = service.health().result(10)
    assert (report.probe, report.devices) == ("sim", 2)
    assert any("simulated" in notice for notice in report.notices)
    assert all(state.device.simulated for state in service.devices().result(10))


def test_a_question_gets_an_answer_for_every_device(service: BrokerService) -> None:
    process = PsutilProcessTable().identify(os.getpid())
    declared = request(gib=200).declared
    asked = PredictRequest(declared=declared, process=process)
    reply = service.predict("ann", asked).result(20)
    assert [(fit.fits_now, fit.fits_ever) for fit in reply.fits] == [(False, False)] * 2
    assert reply.expected_wait_seconds is None


def test_nothing_is_left_running_after_a_stop(settings: ServiceSettings) -> None:
    before = set(threading.enumerate())
    service = build_service(settings)
    service.start()
    service.subscribe(lambda _event: None).result(10)
    assert set(threading.enumerate()) - before
    service.stop()
    eventually(lambda: set(threading.enumerate()) <= before)
    again = build_service(settings)  # and the store is free
    again.start()
    again.stop()


def test_a_wrong_setting_leaves_no_store_behind(settings: ServiceSettings, tmp_path: Path) -> None:
    wrong = [
        ServiceSettings(store_url=settings.store_url, devices="abacus"),
        ServiceSettings(store_url=settings.store_url, devices="sim:1xNoSuchGPU"),
        ServiceSettings(store_url=settings.store_url, devices="cpu", policy="no such policy"),
    ]
    for each in wrong:
        with pytest.raises(ConfigurationError):
            build_service(each)
    assert not (tmp_path / "horus").exists()


def test_a_second_service_on_one_store_is_told_who_has_it(
    service: BrokerService, settings: ServiceSettings
) -> None:
    with pytest.raises(StoreUnavailable, match=f"process {os.getpid()}"):
        build_service(settings)
