"""What a waiting job shows, as a widget and as printed text."""

from __future__ import annotations

import threading
import time
from typing import Any

import msgspec
import pytest

from horus_lab.notebook import display
from horus_lab.notebook.display import PrintedLine, Shown, WaitingDisplay
from horus_lab.notebook.tables import Table
from horus_lab.records import Interval, Job, JobState, Lease, Slot, WaitReason
from horus_lab.testing import a_request

GIB = 2**30


class Kept:
    """A line that keeps what it was shown."""

    def __init__(self) -> None:
        self.shown: list[str] = []
        self.closed: list[str] = []

    def show(self, text: str) -> None:
        self.shown.append(text)

    def close(self, text: str) -> None:
        self.closed.append(text)


def waiting(sentence: str = "waits: CPU is full; expected in 12–25 s") -> Job:
    return Job(
        id="j-1",
        owner="ana",
        request=msgspec.structs.replace(a_request(), name="net"),
        state=JobState.QUEUED,
        revision=1,
        submitted_at=100.0,
        reason=WaitReason(position=2, sentence=sentence, expected_seconds=Interval(12, 20, 25)),
    )


def test_a_waiting_job_tells_place_reason_time_and_how_to_stop() -> None:
    line = Kept()
    with WaitingDisplay(line=line, wall=lambda: 107.0) as shown:
        shown.update(waiting())
    assert line.shown == [
        "Horus: net waits, place 2; CPU is full; expected in 12–25 s; waited 7 s "
        "(interrupt the kernel to cancel)"
    ]


def test_a_granted_job_tells_where_beside_how_many_and_after_which_wait() -> None:
    line = Kept()
    slot = Slot(device_uuid="A", reserved_bytes=2 * GIB, slowdown=Interval(1.0, 1.06, 1.2))
    job = msgspec.structs.replace(
        waiting(),
        state=JobState.RUNNING,
        reason=None,
        granted_at=114.0,
        lease=Lease(fence=1, slots=(slot,), granted_at=114.0, neighbours=("j-0",)),
    )
    WaitingDisplay(line=line).granted(job, {"A": "GPU 0"})
    assert line.closed == [
        "Horus: net runs on GPU 0; 2.0 GiB reserved; beside 1 other, slowdown 1.06× expected; "
        "waited 14 s"
    ]


def test_between_the_brokers_news_the_clock_in_the_line_goes_on_and_stops_with_the_wait() -> None:
    line = Kept()
    clock = iter(range(107, 10**6))
    with WaitingDisplay(line=line, wall=lambda: next(clock), tick_seconds=0.01) as shown:
        shown.update(waiting())
        deadline = time.monotonic() + 10
        while len(line.shown) < 3:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert "waited 7 s" in line.shown[0]
    assert "waited 9 s" in line.shown[2]
    for thread in threading.enumerate():
        if thread.name == "horus-waiting-clock":
            thread.join(5)
            assert not thread.is_alive()


def test_quiet_shows_nothing() -> None:
    line = Kept()
    shown = WaitingDisplay(line=line, quiet=True)
    shown.update(waiting())
    shown.say("done")
    assert (line.shown, line.closed) == ([], [])


def test_printed_text_is_not_repeated_while_only_its_clock_moves() -> None:
    written: list[str] = []
    line = PrintedLine(written.append)
    for seconds in (1, 2, 3):
        line.show(f"waits, place 2; waited {seconds} s")
    line.show("waits, place 1; waited 4 s")
    line.close("runs")
    assert written == ["waits, place 2; waited 1 s", "waits, place 1; waited 4 s", "runs"]


def test_outside_a_kernel_answers_are_plain_text() -> None:
    table = Table(title="Devices", columns=("a", "b"), rows=(("1", "22"), ("333", "4")))
    bundle = Shown([table], None)._repr_mimebundle_()
    assert bundle == {"text/plain": "Devices\n  a    b\n  1    22\n  333  4"}


@pytest.fixture
def in_kernel(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """As if in a kernel; what is displayed is kept."""
    import IPython.display

    kept: list[dict[str, Any]] = []

    class Handle:
        def update(self, bundle: dict[str, Any], raw: bool) -> None:
            kept.append(bundle)

    def show(bundle: dict[str, Any], raw: bool, display_id: bool) -> Handle:
        kept.append(bundle)
        return Handle()

    monkeypatch.setattr(display, "in_kernel", lambda: True)
    monkeypatch.setattr(IPython.display, "display", show)
    return kept


def test_in_a_notebook_a_long_line_is_several_labels_and_its_text_form_follows(
    in_kernel: list[dict[str, Any]],
) -> None:
    line: Any = display.open_line()
    line.show("one; " + "x" * 95 + "; three")
    assert [label.value for label in line._box.children] == ["one", "x" * 95, "three"]
    line.show("short")
    assert [label.value for label in line._box.children] == ["short"]
    line.close("<b>the end</b>")
    # Text is set as text: a label shows it as it is.
    assert [label.value for label in line._box.children] == ["<b>the end</b>"]
    assert in_kernel[-1]["text/plain"] == "<b>the end</b>"
    assert "application/vnd.jupyter.widget-view+json" in in_kernel[-1]


def test_in_a_notebook_a_table_is_a_widget_beside_its_text(
    in_kernel: list[dict[str, Any]],
) -> None:
    table = Table(title="Jobs", columns=("a",), rows=(("1",),), note="one; two")
    bundle = Shown([table], None)._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "application/vnd.jupyter.widget-view+json"}


def test_a_tables_note_is_wrapped_and_its_paragraphs_stay_apart() -> None:
    table = Table(title="T", columns=(), rows=(), note="one\n" + "word " * 30, empty="nothing")
    lines = table.note_lines()
    assert lines[0] == "one"
    assert all(len(line) <= 110 for line in lines)
    assert " ".join(lines[1:]) == ("word " * 30).strip()
    assert table.text().splitlines()[:3] == ["T", "  nothing", "  one"]
