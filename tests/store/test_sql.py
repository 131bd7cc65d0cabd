"""What goes into a store comes out of it, from one writer at a time."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from horus_lab.errors import StoreUnavailable
from horus_lab.records import JobState
from horus_lab.store import SqlStore, StoreSettings
from tests.store.records import job, observation


def test_a_new_store_is_empty_and_its_first_fence_is_one(store: SqlStore) -> None:
    state = store.load()
    assert (state.jobs, state.next_fence, state.observations) == ((), 1, ())


def test_what_was_committed_is_there_after_reopening(store: SqlStore, url: str) -> None:
    epoch = store.claim("b1", 1.0)
    waiting = job("j1")
    running = job("j2", JobState.RUNNING)
    store.commit(epoch, jobs=[waiting, running], next_fence=2, observations=[observation()])
    store.close()
    again = SqlStore.open(url)
    try:
        state = again.load()
        assert state.jobs == (waiting, running)
        assert (state.next_fence, state.observations) == (2, (observation(),))
    finally:
        again.close()


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    owner=st.text(min_size=1, max_size=50).filter(lambda text: text.isprintable()),
    outcome=st.text(max_size=50),
    submitted_at=st.floats(0, 4e9),
    state=st.sampled_from(JobState),
)
def test_every_job_comes_back_as_it_went_in(
    store: SqlStore, owner: str, outcome: str, submitted_at: float, state: JobState
) -> None:
    epoch = store.claim("b", 0.0)
    kept = job("jx", state, owner=owner, outcome=outcome, submitted_at=submitted_at)
    store.commit(epoch, jobs=[kept])
    assert store.job("jx") == kept
    assert store.find_request(owner, kept.request.request_id) == kept


def test_a_job_committed_again_replaces_itself(store: SqlStore) -> None:
    epoch = store.claim("b1", 1.0)
    store.commit(epoch, jobs=[job("j1")])
    ended = job("j1", JobState.DONE)
    store.commit(epoch, jobs=[ended])
    assert store.load().jobs == (ended,)


def test_the_queried_columns_say_what_the_record_says(store: SqlStore, file: Path) -> None:
    epoch = store.claim("b1", 1.0)
    store.commit(epoch, jobs=[job("j1", JobState.RUNNING)], next_fence=2)
    with sqlite3.connect(file) as audit:  # another library, the same file
        row = audit.execute(
            "SELECT owner, request_id, state, ended, submitted_at, revision, fence FROM jobs"
        ).fetchone()
    assert row == ("ann", "r-j1", "running", 0, 100.25, 3, 1)


def test_one_owner_has_each_request_id_once(store: SqlStore) -> None:
    epoch = store.claim("b1", 1.0)
    store.commit(epoch, jobs=[job("j1", request_id="r")])
    with pytest.raises(StoreUnavailable):
        store.commit(epoch, jobs=[job("j0"), job("j2", request_id="r")])
    store.commit(epoch, jobs=[job("j3", request_id="r", owner="bob")])
    assert {kept.id for kept in store.load().jobs} == {"j1", "j3"}  # j0 went with its transaction


def test_a_broker_that_was_replaced_writes_nothing(store: SqlStore) -> None:
    old = store.claim("old", 1.0)
    new = store.claim("new", 2.0)
    assert new == old + 1
    with pytest.raises(StoreUnavailable, match=r"taken over"):
        store.commit(old, jobs=[job("j1")], next_fence=9, observations=[observation()])
    state = store.load()
    assert (state.jobs, state.next_fence, state.observations) == ((), 1, ())
    store.commit(new, jobs=[job("j1")])
    assert len(store.load().jobs) == 1


def test_epochs_grow_across_restarts(store: SqlStore, url: str) -> None:
    first = store.claim("b1", 1.0)
    store.close()
    again = SqlStore.open(url)
    try:
        assert again.claim("b2", 2.0) == first + 1
    finally:
        again.close()


def test_fences_never_go_back(store: SqlStore) -> None:
    epoch = store.claim("b1", 1.0)
    store.commit(epoch, next_fence=7)
    with pytest.raises(StoreUnavailable, match="fences"):
        store.commit(epoch, jobs=[job("j1")], next_fence=6)
    assert store.load().next_fence == 7
    assert store.load().jobs == ()


def test_a_broker_starts_with_all_open_jobs_and_the_latest_ended_ones(url: str) -> None:
    store = SqlStore.open(url, StoreSettings(recent_ended=2))
    try:
        epoch = store.claim("b1", 1.0)
        ended = [job(f"e{n}", JobState.DONE, ended_at=float(n)) for n in range(5)]
        queued = [job(f"q{n}", submitted_at=float(10 - n)) for n in range(5)]
        store.commit(epoch, jobs=[*ended, *queued])
        assert [kept.id for kept in store.load().jobs] == [
            *("q4", "q3", "q2", "q1", "q0"),  # oldest first
            *("e4", "e3"),  # the latest first
        ]
    finally:
        store.close()


def test_history_is_the_latest_ended_jobs(store: SqlStore) -> None:
    epoch = store.claim("b1", 1.0)
    ended = [job(f"e{n}", JobState.FAILED, ended_at=float(n)) for n in range(5)]
    store.commit(epoch, jobs=[*ended, job("open")])
    assert [kept.id for kept in store.history(3)] == ["e4", "e3", "e2"]


def test_only_so_many_ended_jobs_and_observations_are_kept_and_no_open_job_goes(url: str) -> None:
    store = SqlStore.open(url, StoreSettings(ended_jobs=20, observations=30))
    try:
        epoch = store.claim("b1", 1.0)
        store.commit(epoch, jobs=[job("open", submitted_at=0.0)])
        for n in range(100):  # pruning happens once every hundred ends
            ended = job(f"e{n:03}", JobState.DONE, ended_at=float(n))
            store.commit(epoch, jobs=[ended], observations=[observation(float(n))])
        assert [kept.id for kept in store.history(1000)] == [f"e{n:03}" for n in range(99, 79, -1)]
        assert store.job("open") is not None
        assert [seen.observed_at for seen in store.load().observations] == [
            float(n) for n in range(70, 100)
        ]
    finally:
        store.close()


def test_a_request_is_found_again_long_after_its_job_ended(store: SqlStore, url: str) -> None:
    epoch = store.claim("b1", 1.0)
    ended = job("e1", JobState.DONE)
    store.commit(epoch, jobs=[ended])
    store.close()
    again = SqlStore.open(url, StoreSettings(recent_ended=0))
    try:
        assert again.load().jobs == ()
        assert again.find_request("ann", "r-e1") == ended
        assert again.find_request("bob", "r-e1") is None
    finally:
        again.close()
