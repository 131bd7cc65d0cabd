"""`%horus` and `%%horus`."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable
from typing import Any, NoReturn

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_cell_magic, magics_class, no_var_expand

from horus_lab.client import HorusClient
from horus_lab.errors import HorusError, InvalidRequest
from horus_lab.notebook import tables, wording
from horus_lab.notebook.display import Shown
from horus_lab.records import Constraints, DeclaredNeeds, PredictRequest

HELP = """\
Share this machine's devices with other notebooks.

  %horus                          what the devices do, and my place
  %horus predict MODEL BATCH      where it would fit, how much, how long the wait; queues nothing
  %horus predict --memory 4GiB    the same from declared needs
  %horus jobs [--all]             jobs that wait or run (--all: ended ones too)
  %horus devices                  each device, its load and who is on it
  %horus why JOB                  what happened to a job, and why
  %horus cancel JOB               stop waiting, or ask a running job to stop
  %horus history                  ended jobs and how good the predictions were
  %horus help                     this text

  %%horus run [MODEL BATCH] [--memory 4GiB] [--utilization 0.5] [--exclusive] [--name TEXT]
  ...                             waits for a slot, runs the cell with it, gives it back

MODEL, BATCH, --optimizer and --loss are Python expressions in your notebook. An answer can be
kept: jobs = %horus jobs; jobs.records
"""


class CellFailed(Exception):
    """The gated cell raised; its own traceback has been shown."""

    def _render_traceback_(self) -> list[str]:
        return []


class ShownError(Exception):
    """A Horus error as a notebook shows it: what is wrong and what to do, no traceback."""

    def _render_traceback_(self) -> list[str]:
        return [f"Horus: {self}"]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"%horus {self.prog}: {message}. See %horus help.")


def _needs_parser(command: str) -> _Parser:
    parser = _Parser(prog=command, add_help=False)
    parser.add_argument("model", nargs="?")
    parser.add_argument("batch", nargs="?")
    parser.add_argument("--optimizer")
    parser.add_argument("--loss")
    parser.add_argument("--memory")
    parser.add_argument("--utilization", type=float)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--exclusive", action="store_true")
    parser.add_argument("--max-slowdown", type=float, default=1.25)
    parser.add_argument("--priority", type=int, default=0)
    parser.add_argument("--name", default="")
    return parser


@magics_class
class HorusMagics(Magics):
    """The magics, with one client for each kernel."""

    def __init__(self, shell: Any, discover: Callable[[], HorusClient] | None = None) -> None:
        super().__init__(shell)
        self._interactive: Any = shell
        self._discover = discover or HorusClient.discover

    @no_var_expand
    @line_cell_magic
    def horus(self, line: str, cell: str | None = None) -> Any:
        # The docstring below is what `%horus?` shows.
        try:
            return self._dispatch(line, cell)
        except HorusError as error:
            raise ShownError(str(error)) from error

    horus.__doc__ = HELP

    def _dispatch(self, line: str, cell: str | None) -> Any:
        try:
            words = shlex.split(line)
        except ValueError as error:
            raise UsageError(f"%horus: {error} in {line!r}.") from error
        command, arguments = (words[0], words[1:]) if words else ("status", [])
        if cell is not None:
            if command != "run":
                raise UsageError("%%horus gates a cell: write %%horus run …. See %horus help.")
            return self._run(arguments, cell)
        commands: dict[str, Callable[[list[str]], Any]] = {
            "status": self._status,
            "predict": self._predict,
            "jobs": self._jobs,
            "devices": self._devices,
            "why": self._why,
            "cancel": self._cancel,
            "history": self._history,
            "help": self._help,
        }
        if command == "run":
            raise UsageError("%horus run gates a cell: write %%horus run … above its lines.")
        if command not in commands:
            raise UsageError(
                f"%horus has no command {command!r}. It has: {', '.join(sorted(commands))}."
            )
        return commands[command](arguments)

    # --- commands -------------------------------------------------------------------------------

    def _status(self, arguments: list[str]) -> Shown:
        self._none(arguments, "status")
        client = self._discover()
        states = client.devices()
        jobs = [job for job in client.jobs() if not job.state.ended]
        names = tables.device_names(states)
        shown = [tables.devices_table(states), tables.jobs_table(jobs, names, title="Now")]
        return Shown(shown, (states, tuple(jobs)))

    def _devices(self, arguments: list[str]) -> Shown:
        self._none(arguments, "devices")
        states = self._discover().devices()
        return Shown([tables.devices_table(states)], states)

    def _jobs(self, arguments: list[str]) -> Shown:
        parser = _Parser(prog="jobs", add_help=False)
        parser.add_argument("--all", action="store_true")
        options = parser.parse_args(arguments)
        client = self._discover()
        jobs = tuple(job for job in client.jobs() if options.all or not job.state.ended)
        return Shown([tables.jobs_table(jobs, tables.device_names(client.devices()))], jobs)

    def _predict(self, arguments: list[str]) -> Shown:
        options = _needs_parser("predict").parse_args(arguments)
        features = self._captured(options)
        declared = self._declared(options)
        if features is None and declared is None:
            raise InvalidRequest(
                "There is nothing to predict from.",
                hint="Write %horus predict MODEL BATCH, or %horus predict --memory 4GiB.",
            )
        from horus_lab.client import this_process

        client = self._discover()
        reply = client.predict(
            PredictRequest(
                features=features,
                declared=declared,
                constraints=self._constraints(options),
                devices=options.devices,
                process=this_process(),
            )
        )
        return Shown([tables.predict_table(reply, tables.device_names(client.devices()))], reply)

    def _why(self, arguments: list[str]) -> Shown:
        job_id = self._one(arguments, "why JOB")
        client = self._discover()
        job = client.job(job_id)
        return Shown([tables.story_table(job, client.story(job_id))], job)

    def _cancel(self, arguments: list[str]) -> Shown:
        client = self._discover()
        job = client.cancel(self._one(arguments, "cancel JOB"))
        names = tables.device_names(client.devices())
        return Shown([tables.jobs_table([job], names, title="Cancelled")], job)

    def _history(self, arguments: list[str]) -> Shown:
        self._none(arguments, "history")
        client = self._discover()
        history = client.history()
        names = tables.device_names(client.devices())
        return Shown([tables.history_table(history, names)], history)

    def _help(self, arguments: list[str]) -> None:
        self._none(arguments, "help")
        print(HELP)  # noqa: T201 - help is text in the cell's output

    def _run(self, arguments: list[str], cell: str) -> None:
        from horus_lab.slot import slot

        options = _needs_parser("run").parse_args(arguments)
        with slot(
            self._evaluated(options.model),
            self._evaluated(options.batch),
            optimizer=self._evaluated(options.optimizer),
            loss=self._evaluated(options.loss),
            memory=options.memory,
            utilization=options.utilization,
            name=options.name,
            exclusive=options.exclusive,
            max_slowdown=options.max_slowdown,
            priority=options.priority,
            devices=options.devices,
            client=self._discover(),
        ) as held:
            self._interactive.user_ns["horus_slot"] = held
            try:
                result = self._interactive.run_cell(cell)
            finally:
                self._interactive.user_ns.pop("horus_slot", None)
            if not result.success:
                error = result.error_in_exec or result.error_before_exec
                if isinstance(error, KeyboardInterrupt):
                    raise KeyboardInterrupt
                raise CellFailed(type(error).__name__)

    # --- arguments ------------------------------------------------------------------------------

    def _captured(self, options: argparse.Namespace) -> Any:
        if options.model is None:
            return None
        if options.batch is None:
            raise UsageError("%horus predict needs a batch beside the model. See %horus help.")
        from horus_lab.graph import capture

        return capture(
            self._evaluated(options.model),
            self._evaluated(options.batch),
            optimizer=self._evaluated(options.optimizer),
            loss=self._evaluated(options.loss),
        )

    def _declared(self, options: argparse.Namespace) -> DeclaredNeeds | None:
        if options.memory is None:
            return None
        return DeclaredNeeds(
            memory_bytes=wording.parse_bytes(options.memory), utilization=options.utilization
        )

    def _constraints(self, options: argparse.Namespace) -> Constraints:
        return Constraints(
            exclusive=options.exclusive,
            max_slowdown=options.max_slowdown,
            priority=options.priority,
        )

    def _evaluated(self, expression: str | None) -> Any:
        if expression is None:
            return None
        try:
            return self._interactive.ev(expression)
        except Exception as error:
            raise UsageError(
                f"%horus could not evaluate {expression!r}: {type(error).__name__}: {error}"
            ) from error

    @staticmethod
    def _none(arguments: list[str], command: str) -> None:
        if arguments:
            raise UsageError(f"%horus {command} takes no arguments, and got {arguments[0]!r}.")

    @staticmethod
    def _one(arguments: list[str], usage: str) -> str:
        if len(arguments) != 1:
            raise UsageError(f"Write %horus {usage}.")
        return arguments[0]


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext horus_lab` registers `%horus` and `%%horus`."""
    shell.register_magics(HorusMagics(shell))
