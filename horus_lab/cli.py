"""`horus`: the broker's answers in a terminal, and the demonstration."""

from __future__ import annotations

import sys
import time
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console

from horus_lab import __version__
from horus_lab.client import HorusClient
from horus_lab.errors import HorusError
from horus_lab.notebook import tables

app = typer.Typer(
    help="Shared GPUs for notebooks: see the devices, the queue and your jobs.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
)

AsJson = Annotated[bool, typer.Option("--json", help="Print the records as JSON.")]

_console = Console(soft_wrap=True, markup=False, highlight=False)


def _show(table: tables.Table, records: Any, as_json: bool) -> None:
    if as_json:
        _console.print(msgspec.json.encode(records).decode())
    else:
        _console.print(table.text())


@app.command()
def status(
    as_json: AsJson = False,
    watch: Annotated[bool, typer.Option("--watch", help="Look again every two seconds.")] = False,
) -> None:
    """What the devices do, and the jobs that wait or run."""
    client = HorusClient.discover()
    while True:
        states = client.devices()
        jobs = [job for job in client.jobs() if not job.state.ended]
        if as_json:
            _console.print(msgspec.json.encode({"devices": states, "jobs": jobs}).decode())
        else:
            if watch:
                _console.clear()
            names = tables.device_names(states)
            _console.print(tables.devices_table(states).text())
            _console.print(tables.jobs_table(jobs, names, title="Now").text())
        if not watch:
            return
        time.sleep(2)


@app.command()
def devices(as_json: AsJson = False) -> None:
    """Each device, its load and who is on it."""
    states = HorusClient.discover().devices()
    _show(tables.devices_table(states), states, as_json)


@app.command()
def jobs(
    as_json: AsJson = False,
    everything: Annotated[bool, typer.Option("--all", help="Ended jobs too.")] = False,
) -> None:
    """Jobs that wait or run, the queue in its order."""
    client = HorusClient.discover()
    found = [job for job in client.jobs() if everything or not job.state.ended]
    _show(tables.jobs_table(found, tables.device_names(client.devices())), found, as_json)


@app.command()
def why(job: str, as_json: AsJson = False) -> None:
    """What happened to a job, and why it waits."""
    client = HorusClient.discover()
    found = client.job(job)
    story = client.story(job)
    _show(tables.story_table(found, story), story, as_json)


@app.command()
def cancel(job: str, as_json: AsJson = False) -> None:
    """Stop waiting, or ask a running job to stop."""
    client = HorusClient.discover()
    found = client.cancel(job)
    table = tables.jobs_table([found], tables.device_names(client.devices()), title="Cancelled")
    _show(table, found, as_json)


@app.command()
def history(as_json: AsJson = False) -> None:
    """Ended jobs, and how good the predictions were."""
    client = HorusClient.discover()
    found = client.history()
    _show(tables.history_table(found, tables.device_names(client.devices())), found, as_json)


@app.command()
def demo(
    devices: Annotated[
        str, typer.Option(help="auto, cpu, or simulated ones like sim:2xA100-80GB.")
    ] = "auto",
    examples: Annotated[str, typer.Option(help="The folder with the notebooks.")] = "examples",
    reference: Annotated[
        bool, typer.Option(help="Afterwards run each alone, to measure its slowdown.")
    ] = True,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Passes over the data, for a short demonstration.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Four notebooks train at once through one broker; prints what came out."""
    from horus_lab.demo import run_demo

    sys.exit(
        run_demo(
            devices=devices,
            examples=examples,
            reference=reference,
            as_json=as_json,
            epochs=epochs,
        )
    )


@app.command()
def version() -> None:
    """The version of Horus Lab."""
    _console.print(__version__)


def main() -> None:
    """Run the command line; a Horus error is one line on standard error and exit code 1."""
    try:
        app()
    except HorusError as error:
        Console(stderr=True, markup=False, highlight=False, soft_wrap=True).print(f"horus: {error}")
        sys.exit(1)


if __name__ == "__main__":
    main()
