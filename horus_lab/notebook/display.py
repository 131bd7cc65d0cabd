"""What a notebook shows: tables, and a line that updates in place while a job waits.

There are three places to show things: a front end with widgets, a kernel without one that knows
`display` (nbconvert, papermill), and plain standard output (a script, a terminal). Widgets only
display: comm messages queue behind a busy cell, so the way to stop waiting is the interrupt
button or the sidebar, and the line says so. Text is always set as text, never as HTML.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from horus_lab.notebook import wording
from horus_lab.notebook.tables import Table
from horus_lab.records import Job, JobState

_TEXT = "text/plain"
_WIDGET = "application/vnd.jupyter.widget-view+json"


class Shown:
    """A table (or several) with its records: rich in a notebook, text elsewhere.

    `records` are what the broker answered, so `jobs = %horus jobs` can be worked with.
    """

    def __init__(self, tables: Sequence[Table], records: Any) -> None:
        self.tables = tuple(tables)
        self.records = records

    def __repr__(self) -> str:
        return "\n\n".join(table.text() for table in self.tables)

    def _repr_mimebundle_(
        self,
        include: Any = None,  # noqa: ARG002 - IPython's protocol
        exclude: Any = None,  # noqa: ARG002
    ) -> dict[str, Any]:
        bundle = {_TEXT: repr(self)}
        if in_kernel():
            bundle |= _widget_bundle([_table_widget(table) for table in self.tables])
        return bundle


def in_kernel() -> bool:
    """Whether this process is a Jupyter kernel (not a script, not a terminal IPython)."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and getattr(shell, "kernel", None) is not None


def _widget_bundle(children: Sequence[Any]) -> dict[str, Any]:
    import ipywidgets

    view = children[0] if len(children) == 1 else ipywidgets.VBox(children)
    return {_WIDGET: {"version_major": 2, "version_minor": 0, "model_id": view.model_id}}


def _table_widget(table: Table) -> Any:
    import ipywidgets

    def cell(text: str, *, strong: bool = False) -> Any:
        style = {"font_weight": "bold"} if strong else {}
        return ipywidgets.Label(
            text, style=style, layout=ipywidgets.Layout(margin="0 12px 0 0", height="24px")
        )

    title = ipywidgets.Label(table.title, style={"font_weight": "bold", "font_size": "14px"})
    parts = [title]
    if table.rows:
        cells = [cell(text, strong=True) for text in table.columns]
        cells += [cell(text) for row in table.rows for text in row]
        parts.append(
            ipywidgets.GridBox(
                cells,
                layout=ipywidgets.Layout(
                    grid_template_columns=f"repeat({len(table.columns)}, max-content)",
                    overflow="auto",
                ),
            )
        )
    elif table.empty:
        parts.append(ipywidgets.Label(table.empty))
    if table.note:
        parts += [
            ipywidgets.Label(row, layout=ipywidgets.Layout(height="22px"))
            for row in table.note_lines()
        ]
    return ipywidgets.VBox(parts)


class Line(Protocol):
    """One line of text that can be replaced."""

    def show(self, text: str) -> None:
        """Replace the line."""
        ...

    def close(self, text: str) -> None:
        """Replace the line for the last time."""
        ...


class NotebookLine:
    """A line in a cell's output: a widget that updates, with the same as plain text."""

    def __init__(self) -> None:
        import IPython.display
        import ipywidgets

        show: Any = IPython.display.display
        self._make: Any = ipywidgets
        self._box: Any = ipywidgets.VBox([])
        # A kernel sends display data whole; an id lets the text form follow the widget.
        self._handle: Any = show(_line_bundle(self._box, ""), raw=True, display_id=True)

    def show(self, text: str) -> None:
        rows = wording.rows_of(text)
        labels = list(self._box.children)
        for label, row in zip(labels, rows, strict=False):
            label.value = row
        if len(rows) != len(labels):
            # A label shows one line and cuts the rest, so a long text has several.
            added = [self._label(row) for row in rows[len(labels) :]]
            self._box.children = (*labels[: len(rows)], *added)

    def close(self, text: str) -> None:
        self.show(text)
        self._handle.update(_line_bundle(self._box, text), raw=True)

    def _label(self, text: str) -> Any:
        layout = self._make.Layout(width="100%", height="22px", margin="0")
        return self._make.Label(text, layout=layout)


class PrintedLine:
    """The line on a stream that only grows: printed when it changes in more than its clock."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._last = ""

    def show(self, text: str) -> None:
        steady = text.split("; waited ")[0]
        if steady != self._last:
            self._last = steady
            self._write(text)

    def close(self, text: str) -> None:
        self._last = text
        self._write(text)


def _line_bundle(box: Any, text: str) -> dict[str, Any]:
    return {_TEXT: text, **_widget_bundle([box])}


def open_line() -> Line:
    """The line that suits where this process shows things."""
    if in_kernel():
        return NotebookLine()

    def write(text: str) -> None:
        # Standard output belongs to the user's program.
        print(text, file=sys.stderr, flush=True)  # noqa: T201

    return PrintedLine(write)


class WaitingDisplay:
    """Shows a job from its submission to its grant; `update` fits `acquire(on_update=…)`.

    The broker tells of changes; between them a thread lets the clock in the line go on. Use it as
    a context manager around the wait, so that the clock stops however the wait ends.
    """

    def __init__(
        self,
        *,
        line: Line | None = None,
        wall: Callable[[], float] = time.time,
        quiet: bool = False,
        tick_seconds: float = 1.0,
    ) -> None:
        self._quiet = quiet
        self._line = line
        self._wall = wall
        self._tick_seconds = tick_seconds
        self._lock = threading.Lock()
        self._waiting: Job | None = None
        self._over = threading.Event()
        self._clock: threading.Thread | None = None

    def __enter__(self) -> WaitingDisplay:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_clock()

    def update(self, job: Job) -> None:
        """Show the job as it is now."""
        if self._quiet:
            return
        with self._lock:
            self._waiting = job if job.state is JobState.QUEUED else None
        if job.state is JobState.QUEUED:
            self._show_waiting()
            if self._clock is None and not self._over.is_set():
                self._clock = threading.Thread(
                    target=self._run_clock, name="horus-waiting-clock", daemon=True
                )
                self._clock.start()

    def _show_waiting(self) -> None:
        with self._lock:
            job = self._waiting
            if job is None:
                return
            text = wording.waiting_text(job, max(0.0, self._wall() - job.submitted_at))
            self._opened().show(f"{text} (interrupt the kernel to cancel)")

    def _run_clock(self) -> None:
        while not self._over.wait(self._tick_seconds):
            self._show_waiting()

    def _stop_clock(self) -> None:
        self._over.set()
        with self._lock:
            self._waiting = None

    def granted(self, job: Job, device_names: dict[str, str]) -> None:
        """Show where the job runs, next to how many, and after which wait."""
        if self._quiet or job.lease is None:
            return
        self._stop_clock()
        slot = job.lease.slots[0]
        where = ", ".join(device_names.get(s.device_uuid, s.device_uuid) for s in job.lease.slots)
        waited = (job.granted_at or job.submitted_at) - job.submitted_at
        parts = [
            f"Horus: {job.request.name} runs on {where}",
            f"{wording.bytes_text(slot.reserved_bytes)} reserved",
        ]
        count = len(job.lease.neighbours)
        if count:
            beside = f"beside {count} other{'s' if count > 1 else ''}"
            slowdown = slot.slowdown.p50 if slot.slowdown else None
            parts.append(f"{beside}, slowdown {wording.slowdown_text(slowdown)} expected")
        else:
            parts.append("alone for now")
        parts.append(f"waited {wording.duration_text(waited)}")
        self._opened().close("; ".join(parts))

    def say(self, text: str) -> None:
        """Close the line with a sentence."""
        if not self._quiet:
            self._stop_clock()
            self._opened().close(text)

    def _opened(self) -> Line:
        if self._line is None:
            self._line = open_line()
        return self._line
