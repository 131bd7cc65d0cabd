"""One checked function through which every NVML query goes.

"Not available" is a value with a reason, never a crash and never a zero. Only a device that is
gone, or a driver that stopped, is an error. A driver that stopped is asked again after a while,
so that what mends itself is seen.
"""

from __future__ import annotations

import importlib
import logging
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from horus_lab.errors import DeviceUnavailable

_DISTRIBUTION = "nvidia-ml-py"
_RETRY_SECONDS = 30.0

_log = logging.getLogger(__name__)


class Unknown:
    """A value that NVML did not give.

    Attributes:
        why: a few words for people.
        code: NVML's error code; `None` where the call itself was impossible.
    """

    def __init__(self, why: str, code: int | None = None) -> None:
        self.why = why
        self.code = code

    def __repr__(self) -> str:
        return f"n/a ({self.why})"


class DeviceLost(Exception):
    """The device does not answer any more."""


class Nvml:
    """The NVML library, loaded when it is opened.

    Args:
        library: a stand-in for the module `pynvml`; loaded from nvidia-ml-py where it is `None`.
        monotonic: seconds from some fixed point.

    Attributes:
        generation: how often NVML was initialised: handles hold for one generation.
    """

    def __init__(
        self, library: Any = None, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._library = library
        self._monotonic = monotonic
        self._open = False
        self._failed: DeviceUnavailable | None = None
        self._retry_at = 0.0
        self.generation = 0

    @property
    def library(self) -> Any:
        """The module itself, for its constants; `None` before `open`."""
        return self._library

    def open(self) -> None:
        """Load the module and start NVML, unless that is done.

        After a failure the next attempt waits for half a minute; until then the same error tells.

        Raises:
            DeviceUnavailable: no driver, a driver that does not match its library, or a stale
                module, with the reason.
        """
        if self._open:
            return
        if self._failed is not None and self._monotonic() < self._retry_at:
            raise DeviceUnavailable(self._failed.message, hint=self._failed.hint)
        try:
            self._start()
        except DeviceUnavailable as error:
            self._failed = error
            self._retry_at = self._monotonic() + _RETRY_SECONDS
            raise
        self._failed = None
        self._open = True
        self.generation += 1

    def close(self) -> None:
        """Stop NVML. Safe to call twice."""
        self._failed = None
        if self._open:
            self._stop()

    def ask(self, function: str, *arguments: Any) -> Any:
        """Call `function`; the answer, or `Unknown` where this device or driver has none.

        Raises:
            DeviceLost: the device fell off the bus, or needs a reset.
            DeviceUnavailable: NVML itself stopped working.
        """
        library = self._library
        call: Callable[..., Any] | None = getattr(library, function, None)
        if call is None:
            return Unknown(
                f"this {_DISTRIBUTION} has no {function}", library.NVML_ERROR_FUNCTION_NOT_FOUND
            )
        try:
            answer = call(*arguments)
        except library.NVMLError as error:
            return self._without_answer(function, error)
        except (TypeError, ValueError, UnicodeDecodeError) as error:
            return Unknown(f"{function} gave nonsense: {error}")
        if isinstance(answer, bytes):
            return answer.decode(errors="replace")
        return answer

    def ask_newest(self, functions: tuple[str, ...], *arguments: Any) -> Any:
        """`ask` the first of these functions that the driver has."""
        answer: Any = Unknown("nothing was asked")
        for function in functions:
            answer = self.ask(function, *arguments)
            missing = self._library.NVML_ERROR_FUNCTION_NOT_FOUND
            if not isinstance(answer, Unknown) or answer.code != missing:
                break
        return answer

    def _start(self) -> None:
        if self._library is None:
            self._library = load()
        try:
            self._library.nvmlInit()
        except self._library.NVMLError as error:
            raise DeviceUnavailable(_driver_reason(error), hint=_driver_hint(error)) from error

    def _stop(self) -> None:
        self._open = False
        try:
            self._library.nvmlShutdown()
        except self._library.NVMLError as error:
            _log.debug("NVML could not be shut down: %s", error)

    def _without_answer(self, function: str, error: Any) -> Unknown:
        library = self._library
        code = getattr(error, "value", None)
        if code in (library.NVML_ERROR_GPU_IS_LOST, library.NVML_ERROR_RESET_REQUIRED):
            raise DeviceLost(str(error)) from error
        if code in (
            library.NVML_ERROR_UNINITIALIZED,
            library.NVML_ERROR_DRIVER_NOT_LOADED,
            library.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
        ):
            stopped = DeviceUnavailable(_driver_reason(error), hint=_driver_hint(error))
            if self._open:
                self._stop()
            self._failed = stopped
            self._retry_at = self._monotonic() + _RETRY_SECONDS
            raise stopped from error
        if code == library.NVML_ERROR_NOT_SUPPORTED:
            return Unknown("not supported by this device", code)
        if code == library.NVML_ERROR_NO_PERMISSION:
            return Unknown("the driver does not permit it", code)
        if code == library.NVML_ERROR_UNKNOWN:
            return Unknown(
                "Unknown Error; a server in a container may have lost its GPUs: "
                "re-create the container",
                code,
            )
        return Unknown(f"{function}: {error}", code)


def known(answer: Any) -> Any:
    """The answer, or `None` where it is `Unknown`."""
    return None if isinstance(answer, Unknown) else answer


def readable_bytes(count: Any, most: int) -> int | None:
    """A process's bytes; `None` for the driver's "not available" in each of its disguises.

    It comes as `None`, as 2^64 - 1, or as garbage: more than the whole device has.
    """
    if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= most:
        return None
    return count


def percent(value: Any) -> float | None:
    """A percentage as a share; `None` for garbage."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= 100:
        return None
    return value / 100


def load() -> Any:
    """The module `pynvml`, if it is nvidia-ml-py's.

    Another distribution ships a module of the same name; mixed installations misbehave.

    Raises:
        DeviceUnavailable: it is missing or another one, with the command that mends it.
    """
    mend = f"pip uninstall --yes pynvml; pip install --force-reinstall {_DISTRIBUTION}"
    try:
        files = metadata.distribution(_DISTRIBUTION).files or []
        library = importlib.import_module("pynvml")
    except (metadata.PackageNotFoundError, ImportError) as error:
        raise DeviceUnavailable(
            f"{_DISTRIBUTION} is not installed.", hint='pip install "horus-lab[server]"'
        ) from error
    here = Path(getattr(library, "__file__", None) or "?")
    own = {Path(str(file.locate())).resolve() for file in files if file.suffix == ".py"}
    if here.resolve() not in own:
        raise DeviceUnavailable(f"The module pynvml at {here} is not {_DISTRIBUTION}'s.", hint=mend)
    _log.info("NVML through %s", here)
    return library


def _driver_reason(error: Any) -> str:
    text = str(error).strip().rstrip(".") or type(error).__name__
    if "mismatch" in text.lower():
        return (
            f"NVML: {text}. The driver was upgraded under its library; what runs on the GPUs "
            "goes on, and nothing new is placed there."
        )
    return f"NVML: {text}."


def _driver_hint(error: Any) -> str:
    if "mismatch" in str(error).lower():
        return "Reboot when what runs has ended."
    return ""
