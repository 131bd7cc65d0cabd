"""Numbers and records as the words that people read. Plain text only."""

from __future__ import annotations

import re

from horus_lab.errors import InvalidRequest
from horus_lab.records import Basis, Interval, Job, JobState, Prediction

UNKNOWN = "unknown"

_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}


def bytes_text(count: float | None) -> str:
    """Bytes in binary units, as `nvidia-smi` counts: `2.4 GiB`."""
    if count is None:
        return UNKNOWN
    for unit, size in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            value = count / size
            return f"{value:.0f} {unit}" if value >= 100 else f"{value:.1f} {unit}"
    return f"{count:.0f} B"


def bytes_range(interval: Interval | None) -> str:
    """`1.2–1.6 GiB`."""
    if interval is None:
        return UNKNOWN
    low, high = bytes_text(interval.p10), bytes_text(interval.p90)
    if low == high:
        return high
    if low.split()[1] == high.split()[1]:
        return f"{low.split()[0]}–{high}"
    return f"{low}–{high}"


def percent_text(fraction: float | None) -> str:
    """`62 %`."""
    return UNKNOWN if fraction is None else f"{100 * fraction:.0f} %"


def percent_range(interval: Interval | None) -> str:
    """`50–71 %`."""
    if interval is None:
        return UNKNOWN
    low, high = f"{100 * interval.p10:.0f}", f"{100 * interval.p90:.0f}"
    return f"{high} %" if low == high else f"{low}–{high} %"


def duration_text(seconds: float | None) -> str:
    """`12 ms`, `4 s`, `3 min`, `2.5 h`, `3 d`."""
    if seconds is None:
        return UNKNOWN
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms" if seconds >= 0.001 or seconds == 0 else "under 1 ms"
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    if seconds < 36 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.0f} d"


def duration_range(interval: Interval | None) -> str:
    """`12 s–4 min`."""
    if interval is None:
        return UNKNOWN
    low, high = duration_text(interval.p10), duration_text(interval.p90)
    if low == high:
        return high
    if low.split()[-1] == high.split()[-1]:
        return f"{low.split()[0]}–{high}"
    return f"{low}–{high}"


def slowdown_text(slowdown: float | None) -> str:
    """`1.08×`."""
    return UNKNOWN if slowdown is None else f"{slowdown:.2f}×"


def slowdown_range(interval: Interval | None) -> str:
    """`1.00–1.12×`."""
    if interval is None:
        return UNKNOWN
    return f"{interval.p10:.2f}–{interval.p90:.2f}×"


def basis_text(prediction: Prediction) -> str:
    """What a prediction rests on."""
    return {
        Basis.MODEL: "predicted from the graph",
        Basis.HISTORY: "from earlier runs of this graph",
        Basis.DECLARED: "as declared",
        Basis.UNKNOWN: UNKNOWN,
    }[prediction.basis]


def state_text(job: Job) -> str:
    """A job's state as a word or two."""
    if job.cancel_requested and not job.state.ended:
        return f"{job.state.value}, stopping"
    if job.state is JobState.QUEUED and job.reason is not None:
        return f"waits, place {job.reason.position}"
    return job.state.value


def waiting_text(job: Job, waited_seconds: float) -> str:
    """One line for a job that waits: its place, the reason, how long it will take."""
    if job.reason is None:
        return f"Horus: {job.request.name} is queued (waited {duration_text(waited_seconds)})"
    parts = [f"Horus: {job.request.name} waits, place {job.reason.position}"]
    if job.reason.sentence:
        parts.append(job.reason.sentence.removeprefix("waits: "))
    expected = job.reason.expected_seconds
    if expected is not None and "expected" not in job.reason.sentence:
        parts.append(f"expected in {duration_range(expected)}")
    parts.append(f"waited {duration_text(waited_seconds)}")
    return "; ".join(parts)


def rows_of(text: str, width: int = 96) -> list[str]:
    """A long line broken at its semicolons, for places that do not break lines themselves."""
    rows: list[str] = []
    for part in text.split("; "):
        if rows and len(rows[-1]) + 2 + len(part) <= width:
            rows[-1] = f"{rows[-1]}; {part}"
        else:
            rows.append(part)
    return rows


def parse_bytes(text: str) -> int:
    """`4GiB`, `500 MB` or `4e9` as bytes.

    Raises:
        InvalidRequest: not a positive finite number with a known unit.
    """
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?(?:[eE][0-9]+)?)\s*([A-Za-z]*)\s*", text)
    unit = match.group(2).lower() if match else ""
    if match is None or unit not in _UNITS:
        raise InvalidRequest(
            f"{text!r} is not an amount of memory.", hint="Write it like 4GiB, 500MB or 4e9."
        )
    count = float(match.group(1)) * _UNITS[unit]
    if not 1 <= count <= 2**53:
        raise InvalidRequest(f"{text!r} is out of bounds.", hint="Between 1 byte and 8 PiB.")
    return int(count)


def summary_text(job: Job, device_names: dict[str, str]) -> str:
    """After a run: what was predicted beside what was measured, in one line."""
    uuid = job.lease.slots[0].device_uuid if job.lease else next(iter(job.predictions), "")
    prediction = job.predictions.get(uuid)
    measured = job.measured
    where = device_names.get(uuid, "")
    parts = [f"Horus: {job.request.name} {job.state.value}" + (f" on {where}" if where else "")]
    if job.granted_at is not None:
        parts.append(f"waited {duration_text(job.granted_at - job.submitted_at)}")
    if prediction is not None:
        parts.append(
            f"memory {bytes_range(prediction.memory_bytes)} predicted, "
            f"{bytes_text(measured.memory_peak_bytes)} measured"
        )
        parts.append(
            f"utilization {percent_range(prediction.utilization)} predicted, "
            f"{percent_text(measured.utilization)} measured"
        )
    if measured.slowdown is not None:
        parts.append(f"slowdown {slowdown_text(measured.slowdown)}")
    return "; ".join(parts)
