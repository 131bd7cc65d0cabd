"""The table, the page that shows it, and the rule that a refused event changes nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from horus_lab.broker import transitions
from horus_lab.broker.draft import STORY_HEAD, STORY_LIMIT
from horus_lab.errors import HorusError
from horus_lab.records import JobState
from tests.broker.scripted import Desk, use

PAGE = Path(__file__).parents[2] / "docs" / "states.md"


def test_the_page_shows_the_machines_own_table():
    assert transitions.markdown() in PAGE.read_text(encoding="utf-8")


def test_the_command_prints_what_the_page_shows():
    printed = subprocess.run(
        [sys.executable, "-m", "horus_lab.broker.transitions"],
        capture_output=True,
        text=True,
        check=True,
        cwd=PAGE.parents[1],
    )
    assert printed.stdout == transitions.markdown()


def test_the_page_tells_every_state():
    page = PAGE.read_text(encoding="utf-8")
    assert [state for state in JobState if f"**{state.value}**" not in page] == []


def test_nothing_leads_out_of_an_ended_state():
    assert [step for step in transitions.TABLE if step.source and step.source.ended] == []


def test_time_alone_leads_only_to_suspicion_or_back_into_the_queue():
    timed = {
        (step.source, step.target)
        for step in transitions.TABLE
        if step.event in ("Tick", "Withdraw")
    }
    assert timed == {
        (JobState.RUNNING, JobState.SUSPECT),
        (JobState.GRANTED, JobState.QUEUED),
    }


def test_a_long_story_keeps_its_beginning_and_its_end():
    desk = Desk()
    desk.train("a")
    for _ in range(STORY_LIMIT):
        desk.later(31.0).tick()
        desk.beat("a")
    story = desk.job().story
    assert len(story) == STORY_LIMIT
    assert [entry.event for entry in story[:3]] == ["Submitted", "Grant", "Confirmed"]
    assert story[STORY_HEAD].at > story[STORY_HEAD - 1].at + 60.0
    assert story[-1].at == desk.now


def in_state(state: JobState) -> Desk:
    """A desk whose job `a` is in the state, reached by events alone."""
    desk = Desk()
    if state is JobState.QUEUED:
        desk.look(use(desk.now, unmanaged=2**40))
    desk.submit("a", 40 if state is JobState.REJECTED else 4)
    if state in (JobState.QUEUED, JobState.GRANTED, JobState.REJECTED):
        return desk
    desk.confirm("a")
    match state:
        case JobState.SUSPECT:
            desk.later(31.0).tick()
        case JobState.FENCED:
            desk.end_process("a", 7)
        case JobState.DONE | JobState.FAILED | JobState.CANCELLED:
            desk.release("a", state.value)
        case JobState.LOST:
            desk.end_process("a")
    return desk


# What each event does to a job in each state: the state it leads to, or the error's code.
# `fence` is the lease's own one, where the job has a lease.
STALE, WRONG = "stale_fence", "invalid_transition"
ANSWERS = {
    "confirm": {
        "queued": STALE,
        "granted": "running",
        "running": "running",
        "suspect": "running",
        "fenced": STALE,
        "done": WRONG,
        "failed": WRONG,
        "cancelled": WRONG,
        "rejected": STALE,
        "lost": WRONG,
    },
    "beat": {
        "queued": STALE,
        "granted": "running",
        "running": "running",
        "suspect": "running",
        "fenced": STALE,
        "done": WRONG,
        "failed": WRONG,
        "cancelled": WRONG,
        "rejected": STALE,
        "lost": WRONG,
    },
    "release": {
        "queued": STALE,
        "granted": "cancelled",
        "running": "done",
        "suspect": "done",
        "fenced": STALE,
        "done": "done",
        "failed": "failed",
        "cancelled": "cancelled",
        "rejected": STALE,
        "lost": "lost",
    },
    "cancel": {
        "queued": "cancelled",
        "granted": "cancelled",
        "running": "running",
        "suspect": "suspect",
        "fenced": WRONG,
        "done": WRONG,
        "failed": WRONG,
        "cancelled": "cancelled",
        "rejected": WRONG,
        "lost": WRONG,
    },
    "end_process": {
        "queued": "lost",
        "granted": "lost",
        "running": "lost",
        "suspect": "lost",
        "fenced": "lost",
        "done": "done",
        "failed": "failed",
        "cancelled": "cancelled",
        "rejected": "rejected",
        "lost": "lost",
    },
    "poll": {state.value: state.value for state in JobState},
    "tick": {state.value: state.value for state in JobState},
}


@pytest.mark.parametrize("state", list(JobState), ids=lambda state: state.value)
@pytest.mark.parametrize("word", ANSWERS)
def test_every_event_in_every_state_has_one_answer(word, state):
    desk = in_state(state)
    assert desk.job().state is state
    before = desk.broker.checkpoint()
    say = getattr(desk, word)
    expected = ANSWERS[word][state.value]
    if expected in {one.value for one in JobState}:
        say() if word == "tick" else say("a")
        assert desk.state() == expected
    else:
        with pytest.raises(HorusError) as caught:
            say("a")
        assert caught.value.code == expected
        assert desk.broker.checkpoint() == before
