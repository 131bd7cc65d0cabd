"""One checked function through which every NVML query goes.

"Not available" is a value with a reason, never a crash and never a zero. Only a device that is
gone, or a driver that stopped, is an error.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from importlib import metadata
from typing import Any, Generic, TypeVar

from horus_lab.errors import DeviceUnavailable

T = TypeVar("T")

_UNREADABLE_MEMORY = 2**64 - 1


class Unknown(Generic[T]):
    """A value that NVML did not give, and why."""

    def __init__(self, why: str) -> None:
        self.why = why

    def __repr__(self) -> str:
        return f"n/a ({self.why})"


class DeviceLost(Exception):
    """The device does not answer any more."""


class Nvml:
    """The NVML library, loaded when it is opened.

    Args:
        library: a stand-in for the module `pynvml`; loaded from nvidia-ml-py where it is `None`.
    """

    def __init__(self, library: Any = None) -> None:
        self._library = library
        self._open = False

    @property
    def library(self) -> Any:
        """The module itself, for its constants."""
        return self._library

    def open(self) -> None:
        """Load the module and start NVML.

        Raises:
            DeviceUnavailable: no driver, a driver that does not match its library, or a stale
                module, with the reason.
        """
        if self._open:
            return
        if self._library is None:
            self._library = _load()
        try:
            self._library.nvmlInit()
        except self._library.NVMLError as error:
            raise DeviceUnavailable(_driver_reason(error)) from error
        self._open = True

    def close(self) -> None:
        """Stop NVML. Safe to call twice."""
        if not self._open:
            return
        self._open = False
        try:
            self._library.nvmlShutdown()
        except self._library.NVMLError:
            # A driver that is gone has nothing left to shut down.
            return

    def ask(self, function: str, *arguments: Any) -> Any:
        """Call `function`; the answer, or `Unknown` where this device or driver has none.

        Raises:
            DeviceLost: the device fell off the bus or answers with an unknown error.
            DeviceUnavailable: NVML itself stopped working.
        """
        library = self._library
        call: Callable[..., Any] | None = getattr(library, function, None)
        if call is None:
            return Unknown(f"this nvidia-ml-py has no {function}")
        try:
            answer = call(*arguments)
        except library.NVMLError as error:
            return self._failed(function, error)
        except (TypeError, ValueError, UnicodeDecodeError) as error:
            return Unknown(f"{function} gave nonsense: {error}")
        if isinstance(answer, bytes):
            return answer.decode(errors="replace")
        return answer

    def _failed(self, function: str, error: Any) -> Unknown[Any]:
        library = self._library
        value = getattr(error, "value", None)
        if value in (library.NVML_ERROR_GPU_IS_LOST, library.NVML_ERROR_UNKNOWN):
            raise DeviceLost(str(error)) from error
        if value in (
            library.NVML_ERROR_UNINITIALIZED,
            library.NVML_ERROR_DRIVER_NOT_LOADED,
            library.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
        ):
            raise DeviceUnavailable(_driver_reason(error)) from error
        if value == library.NVML_ERROR_NOT_SUPPORTED:
            return Unknown("not supported by this device")
        if value == library.NVML_ERROR_NO_PERMISSION:
            return Unknown("the driver does not permit it")
        return Unknown(f"{function}: {error}")


def known(answer: Any) -> Any:
    """The answer, or `None` where it is `Unknown`."""
    return None if isinstance(answer, Unknown) else answer


def readable_bytes(count: Any) -> int | None:
    """A process's bytes; `None` for the driver's "not available" in each of its disguises."""
    if not isinstance(count, int) or count < 0 or count >= _UNREADABLE_MEMORY:
        return None
    return count


def _load() -> Any:
    try:
        library = importlib.import_module("pynvml")
    except ImportError as error:
        raise DeviceUnavailable(
            "nvidia-ml-py is not installed.", hint='pip install "horus-lab[server]"'
        ) from error
    owners = metadata.packages_distributions().get("pynvml", [])
    if "nvidia-ml-py" not in owners or not hasattr(library, "nvmlDeviceGetMemoryInfo"):
        raise DeviceUnavailable(
            f"The module pynvml at {getattr(library, '__file__', '?')} is not nvidia-ml-py's.",
            hint="pip uninstall pynvml; pip install --force-reinstall nvidia-ml-py",
        )
    return library


def _driver_reason(error: Any) -> str:
    text = str(error).strip() or type(error).__name__
    if "mismatch" in text.lower():
        return (
            f"NVML: {text}. The driver was upgraded under its library; "
            "running jobs go on, and a reboot mends it."
        )
    return f"NVML: {text}."
