"""Who this process is: its identity for the broker, its kernel, its notebook."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from horus_lab.errors import ConfigurationError
from horus_lab.records import ProcessIdentity

_KERNEL_FILE = re.compile(r"^kernel-(?:v\d+-)?(.+)\.json$")
_START_TICKS = 19  # field 22 of /proc/<pid>/stat, counted from the state after the name


def this_process(proc: str = "/proc") -> ProcessIdentity:
    """This process as (boot id, pid namespace, pid, start time in clock ticks since boot).

    Raises:
        ConfigurationError: there is no readable `/proc` (not Linux, or hidden).
    """
    try:
        boot_id = Path(proc, "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        status = Path(proc, "self/stat").read_text(encoding="utf-8", errors="replace")
        namespace = os.stat(Path(proc, "self/ns/pid")).st_ino
        # The name stands in brackets and may hold spaces and brackets itself.
        start_ticks = int(status.rpartition(")")[2].split()[_START_TICKS])
    except (OSError, ValueError, IndexError) as error:
        raise ConfigurationError(
            f"This process cannot be identified through {proc}: {error}.",
            hint="Horus Lab coordinates processes on Linux, with /proc readable.",
        ) from error
    return ProcessIdentity(
        boot_id=boot_id, pid_namespace=namespace, pid=os.getpid(), start_ticks=start_ticks
    )


def kernel_id() -> str:
    """The Jupyter kernel's id, from its connection file; empty outside a kernel."""
    connection_file = _ipython_connection_file()
    if connection_file is None:
        return ""
    name = Path(connection_file).name
    match = _KERNEL_FILE.match(name)
    return match.group(1) if match else name.removesuffix(".json")


def notebook_name(environ: Mapping[str, str] | None = None) -> str:
    """The notebook's path, or the script's name; empty where neither is known.

    At most 200 characters; of a longer path the end is kept.
    """
    environ = os.environ if environ is None else environ
    name = environ.get("JPY_SESSION_NAME", "") or _vscode_notebook()
    if not name and _ipython_connection_file() is None:
        program = sys.argv[0] if sys.argv else ""
        name = "" if program in ("", "-c", "-m") else Path(program).name
    return name if len(name) <= 200 else "…" + name[-199:]


def _ipython_connection_file() -> str | None:
    """The connection file of the ipykernel that runs here, without importing ipykernel."""
    kernelapp = sys.modules.get("ipykernel.kernelapp")
    if kernelapp is None or not kernelapp.IPKernelApp.initialized():
        return None
    path: str = kernelapp.IPKernelApp.instance().connection_file
    return path or None


def _vscode_notebook() -> str:
    """VS Code leaves the notebook's path in the user's namespace."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    found = shell.user_ns.get("__vsc_ipynb_file__", "") if shell is not None else ""
    return found if isinstance(found, str) else ""
