"""The table of a job's states: which event leads from where to where, and why.

The broker makes no step that is not in this table. `docs/states.md` shows it;
`python -m horus_lab.broker.transitions` prints it.
"""

from __future__ import annotations

import sys

from msgspec import Struct

from horus_lab.records import JobState

Q, G, R = JobState.QUEUED, JobState.GRANTED, JobState.RUNNING
S, F = JobState.SUSPECT, JobState.FENCED


class Transition(Struct, frozen=True):
    """One allowed step. `source` is `None` for a job that begins.

    `event` names the broker's event; `Grant` and `Withdraw` are the broker's own decisions, made
    within whatever event gave it the occasion.
    """

    source: JobState | None
    event: str
    target: JobState
    rule: str


TABLE: tuple[Transition, ...] = (
    Transition(None, "Submitted", Q, "some device could hold it"),
    Transition(None, "Submitted", JobState.REJECTED, "no device could ever hold it"),
    Transition(Q, "Grant", G, "every check passes on a device"),
    Transition(Q, "Predicted", JobState.REJECTED, "a better prediction shows it never fits"),
    Transition(Q, "Cancelled", JobState.CANCELLED, "its owner gave up"),
    Transition(Q, "ProcessEnded", JobState.LOST, "its process is gone"),
    Transition(G, "Confirmed", R, "its client took the grant"),
    Transition(G, "Beat", R, "it trains under this fence: a beat overtook the confirmation"),
    Transition(G, "Withdraw", Q, "its client did not take the grant in time"),
    Transition(G, "Cancelled", JobState.CANCELLED, "its owner gave up before it started"),
    Transition(G, "Released", JobState.CANCELLED, "its client gave the grant back unused"),
    Transition(G, "ProcessEnded", JobState.LOST, "its whole process tree is gone"),
    Transition(G, "ProcessEnded", F, "its process is gone, and processes it started live on"),
    Transition(R, "Released", JobState.DONE, "training ended"),
    Transition(R, "Released", JobState.FAILED, "training raised"),
    Transition(R, "Released", JobState.CANCELLED, "training was interrupted"),
    Transition(R, "Tick", S, "no heartbeat for a while; nothing is freed"),
    Transition(R, "ProcessEnded", JobState.LOST, "its whole process tree is gone"),
    Transition(R, "ProcessEnded", F, "its process is gone, and processes it started live on"),
    Transition(S, "Beat", R, "contact is back; the reservation was untouched"),
    Transition(S, "Confirmed", R, "contact is back: a repeated confirmation"),
    Transition(S, "Released", JobState.DONE, "training ended"),
    Transition(S, "Released", JobState.FAILED, "training raised"),
    Transition(S, "Released", JobState.CANCELLED, "training was interrupted"),
    Transition(S, "ProcessEnded", JobState.LOST, "its whole process tree is gone"),
    Transition(S, "ProcessEnded", F, "its process is gone, and processes it started live on"),
    Transition(F, "ProcessEnded", JobState.LOST, "the last survivor is gone"),
)

ALLOWED = frozenset((step.source, step.event, step.target) for step in TABLE)


def diagram() -> str:
    """The table as a Mermaid state diagram, one arrow from a state to the next."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for step in TABLE:
        source = step.source.value if step.source else "[*]"
        events = arrows.setdefault((source, step.target.value), [])
        if step.event not in events:
            events.append(step.event)
    lines = ["stateDiagram-v2"]
    lines += [
        f"    {source} --> {target}: {', '.join(events)}"
        for (source, target), events in arrows.items()
    ]
    ended = sorted({step.target.value for step in TABLE if step.target.ended})
    lines += [f"    {state} --> [*]" for state in ended]
    return "\n".join(lines)


def table() -> str:
    """The table in Markdown."""
    lines = ["| from | event | to | when |", "| --- | --- | --- | --- |"]
    for step in TABLE:
        source = step.source.value if step.source else "(new)"
        lines.append(f"| {source} | `{step.event}` | {step.target.value} | {step.rule} |")
    return "\n".join(lines)


def markdown() -> str:
    """Diagram and table as they stand in `docs/states.md`."""
    return f"```mermaid\n{diagram()}\n```\n\n{table()}\n"


if __name__ == "__main__":
    sys.stdout.write(markdown())
