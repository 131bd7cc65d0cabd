"""Records as tables: rows of text, drawn by `display` as widgets or as plain text."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from msgspec import Struct

from horus_lab.notebook import wording
from horus_lab.records import DeviceState, History, Job, JobState, PredictReply, StoryEntry

_NOTE_WIDTH = 110


class Table(Struct, frozen=True, kw_only=True):
    """A titled table of text. `note` stands below it; `empty` stands for it without rows."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    empty: str = ""

    def note_lines(self) -> list[str]:
        """The note in lines that a notebook's output shows whole."""
        return [
            line
            for paragraph in self.note.splitlines()
            for line in textwrap.wrap(paragraph, _NOTE_WIDTH)
        ]

    def text(self) -> str:
        """The table in plain text, columns aligned."""
        lines = [self.title]
        if not self.rows:
            lines.append(f"  {self.empty}")
        else:
            widths = [
                max(len(row[index]) for row in (self.columns, *self.rows))
                for index in range(len(self.columns))
            ]
            for row in (self.columns, *self.rows):
                cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
                lines.append(("  " + "  ".join(cells)).rstrip())
        lines += [f"  {line}" for line in self.note_lines()]
        return "\n".join(lines)


def device_name(state: DeviceState) -> str:
    """A device's name, marked where it is simulated."""
    return f"{state.device.name} (SIM)" if state.device.simulated else state.device.name


def device_names(states: Sequence[DeviceState]) -> dict[str, str]:
    """Names by UUID."""
    return {state.device.uuid: device_name(state) for state in states}


def devices_table(states: Sequence[DeviceState]) -> Table:
    """Each device: load, memory in use, reserved and free, and who is there."""
    rows = []
    for state in states:
        reading = state.reading
        rows.append(
            (
                device_name(state),
                wording.percent_text(reading.utilization if reading else None),
                wording.bytes_text(reading.memory_used_bytes if reading else None),
                wording.bytes_text(state.reserved_bytes),
                wording.bytes_text(state.unmanaged_bytes),
                wording.bytes_text(state.device.capacity_bytes),
                ", ".join(f"{r.name} ({r.owner})" for r in state.residents) or "nobody",
            )
        )
    reasons = sorted(
        {
            f"{key}: {why}"
            for state in states
            if state.reading
            for key, why in state.reading.unknown.items()
        }
    )
    return Table(
        title="Devices",
        columns=("device", "busy", "used", "reserved", "unmanaged", "capacity", "who"),
        rows=tuple(rows),
        note="; ".join(reasons),
        empty="The broker has no device.",
    )


def jobs_table(jobs: Sequence[Job], names: dict[str, str], *, title: str = "Jobs") -> Table:
    """Each job: state, where it runs, and what is predicted and measured."""
    rows = []
    reasons = []
    for job in jobs:
        uuids = [slot.device_uuid for slot in job.lease.slots] if job.lease else []
        prediction = job.predictions.get(uuids[0] if uuids else next(iter(job.predictions), ""))
        rows.append(
            (
                job.id,
                job.request.name,
                job.owner,
                wording.state_text(job),
                ", ".join(names.get(uuid, uuid) for uuid in uuids) or "—",
                wording.bytes_range(prediction.memory_bytes if prediction else None),
                wording.bytes_text(job.measured.memory_peak_bytes),
                wording.percent_range(prediction.utilization if prediction else None),
                wording.percent_text(job.measured.utilization),
            )
        )
        if job.state is JobState.QUEUED and job.reason is not None and job.reason.sentence:
            reasons.append(f"{job.id} {job.reason.sentence}")
    return Table(
        title=title,
        columns=(
            "job",
            "name",
            "owner",
            "state",
            "on",
            "memory predicted",
            "measured",
            "busy predicted",
            "measured",
        ),
        rows=tuple(rows),
        note="; ".join(reasons),
        empty="No jobs. Train with HorusCallback, horus_lab.slot or %%horus run.",
    )


def predict_table(reply: PredictReply, names: dict[str, str]) -> Table:
    """Where a job would fit, how much it would use, next to whom, after which wait."""
    rows = []
    for fit in reply.fits:
        prediction = fit.prediction
        verdict = "fits now" if fit.fits_now else "waits" if fit.fits_ever else "never fits"
        rows.append(
            (
                names.get(fit.device_uuid, fit.device_uuid),
                verdict,
                wording.bytes_range(prediction.memory_bytes),
                wording.percent_range(prediction.utilization),
                wording.duration_range(prediction.step_seconds),
                wording.slowdown_range(fit.slowdown),
                str(len(fit.neighbours)),
                wording.basis_text(prediction),
            )
        )
    wait = reply.expected_wait_seconds
    if wait is not None and wait.p90 == 0:
        note = "It would be granted at once."
    elif wait is None:
        note = f"It would wait; nobody can say how long ({reply.queue_length} in the queue)."
    else:
        note = f"Expected wait {wording.duration_range(wait)}, {reply.queue_length} in the queue."
    sentences = [fit.sentence for fit in reply.fits if fit.sentence and not fit.fits_now]
    explanations = sorted({fit.prediction.explanation for fit in reply.fits} - {""})
    return Table(
        title="Prediction (nothing was queued)",
        columns=("device", "", "memory", "busy", "step", "slowdown", "neighbours", "basis"),
        rows=tuple(rows),
        note="\n".join([note, *sentences, *explanations]),
        empty="The broker has no device.",
    )


def story_table(job: Job, story: Sequence[StoryEntry]) -> Table:
    """What happened to a job, from the first event on."""
    rows = tuple(
        (
            f"+{wording.duration_text(max(0.0, entry.at - job.submitted_at))}",
            entry.event,
            entry.to_state.value,
            entry.why,
        )
        for entry in story
    )
    return Table(
        title=f"Story of {job.id} ({job.request.name})",
        columns=("when", "event", "state", "why"),
        rows=rows,
        note=job.reason.sentence if job.reason and not job.state.ended else "",
        empty="Nothing has happened yet.",
    )


def history_table(history: History, names: dict[str, str]) -> Table:
    """Ended jobs, newest first, with the track record of the predictions."""
    table = jobs_table(history.jobs, names, title="History")
    record = history.track_record
    note = f"{record.runs} runs measured"
    if record.memory_median_error is not None:
        note += f"; memory off by {wording.percent_text(record.memory_median_error)} at the median"
    if record.memory_coverage is not None:
        note += f", inside its interval in {wording.percent_text(record.memory_coverage)}"
    if record.utilization_median_error is not None:
        error = wording.percent_text(record.utilization_median_error)
        note += f"; utilization off by {error} at the median"
    return Table(title=table.title, columns=table.columns, rows=table.rows, note=note)
