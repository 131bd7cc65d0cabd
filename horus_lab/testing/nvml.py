"""A stand-in for the module `pynvml`, as far as Horus Lab asks it.

It keeps to what the real module does at its boundary: the same function names and arguments, the
same error codes (nvml.h), memory information in two versions, MIG slices behind their card, "not
available" as `None`. Attributes may be changed between two looks, so devices come, go, fail and
recover as the test says.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, ClassVar

GIB = 2**30

_MESSAGES = {
    1: "Uninitialized",
    2: "Invalid Argument",
    3: "Not Supported",
    4: "Insufficient Permissions",
    6: "Not Found",
    9: "Driver Not Loaded",
    10: "Timeout",
    12: "NVML Shared Library Not Found",
    13: "Function Not Found",
    15: "GPU is lost",
    16: "GPU requires restart",
    18: "RM has detected an NVML/RM version mismatch.",
    25: "Argument version mismatch",
    999: "Unknown Error",
}


class ScriptedNvmlError(Exception):
    """What the module's functions raise; `value` is the code of nvml.h."""

    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value

    def __str__(self) -> str:
        return _MESSAGES.get(self.value, f"NVML Error with code {self.value}")


@dataclass(eq=False)
class ScriptedSlice:
    """A MIG slice, or what a card has in common with one.

    Attributes:
        used: allocated bytes, without what the driver reserves.
        reserved: bytes that the driver keeps; version 1 of the memory information adds them to
            the used ones.
        compute, graphics, mps: pid -> bytes; `None`: not available.
        errors: function name -> the code with which it fails here.
    """

    uuid: str
    name: str
    total: int = 80 * GIB
    used: int = 0
    reserved: int = 0
    compute: dict[int, int | None] = field(default_factory=dict)
    graphics: dict[int, int | None] = field(default_factory=dict)
    mps: dict[int, int | None] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)


@dataclass(eq=False)
class ScriptedCard(ScriptedSlice):
    """A GPU.

    Attributes:
        utilization, memory_utilization: percent.
        loads: pid -> percent of the multiprocessors, as per-process samples.
        slices: the MIG slices by their place; `None` is an empty place.
        mig: whether MIG mode is on; `None`: the card has no MIG.
        compute_mode: 0 default, 2 prohibited, 3 exclusive process.
        gone: the code with which everything about this card fails; `None`: it is well.
    """

    utilization: int = 0
    memory_utilization: int = 0
    loads: dict[int, int] = field(default_factory=dict)
    slices: list[ScriptedSlice | None] = field(default_factory=list)
    mig: bool | None = None
    compute_mode: int = 0
    gone: int | None = None


class ScriptedNvml:
    """The module. Give it to `NvmlProbe(library=...)`.

    Args:
        cards: the GPUs in PCI order.

    Attributes:
        memory_version: 2, or 1 for a driver that has only the first.
        process_version: 3, or 2 for a driver whose process lists are older.
        init_error: the code with which `nvmlInit` fails; `None`: it does not.
        driver_error: the code with which everything fails, as after an upgrade under way.
        lacking: names of functions that this module does not have.
        hold: while this event is set, every query hangs.
        calls: how often each function was called.
        initialized: how often it is initialised now.
    """

    NVMLError: ClassVar[type[ScriptedNvmlError]] = ScriptedNvmlError
    NVML_ERROR_UNINITIALIZED = 1
    NVML_ERROR_INVALID_ARGUMENT = 2
    NVML_ERROR_NOT_SUPPORTED = 3
    NVML_ERROR_NO_PERMISSION = 4
    NVML_ERROR_NOT_FOUND = 6
    NVML_ERROR_DRIVER_NOT_LOADED = 9
    NVML_ERROR_TIMEOUT = 10
    NVML_ERROR_LIBRARY_NOT_FOUND = 12
    NVML_ERROR_FUNCTION_NOT_FOUND = 13
    NVML_ERROR_GPU_IS_LOST = 15
    NVML_ERROR_RESET_REQUIRED = 16
    NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25
    NVML_ERROR_GPU_NOT_FOUND = 28
    NVML_ERROR_UNKNOWN = 999
    NVML_COMPUTEMODE_DEFAULT = 0
    NVML_COMPUTEMODE_EXCLUSIVE_THREAD = 1
    NVML_COMPUTEMODE_PROHIBITED = 2
    NVML_COMPUTEMODE_EXCLUSIVE_PROCESS = 3
    NVML_DEVICE_MIG_ENABLE = 1
    nvmlMemory_v2 = 0x02000028

    def __init__(self, cards: list[ScriptedCard] | None = None) -> None:
        self.cards = list(cards or [])
        self.memory_version = 2
        self.process_version = 3
        self.driver_version = "570.86.15"
        self.init_error: int | None = None
        self.driver_error: int | None = None
        self.lacking: set[str] = set()
        self.hold = threading.Event()
        self.released = threading.Event()
        self.calls: Counter[str] = Counter()
        self.initialized = 0

    @classmethod
    def with_cards(cls, count: int, *, name: str = "NVIDIA A100-SXM4-80GB") -> ScriptedNvml:
        """So many equal, idle cards with the UUIDs `GPU-0`, `GPU-1`, …"""
        return cls([ScriptedCard(uuid=f"GPU-{i}", name=name) for i in range(count)])

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("nvml") and name in object.__getattribute__(self, "lacking"):
            raise AttributeError(name)
        return object.__getattribute__(self, name)

    # --- the library ----------------------------------------------------------------------------

    def nvmlInit(self) -> None:
        self._called("nvmlInit", None, initialised=False)
        if self.init_error is not None:
            raise ScriptedNvmlError(self.init_error)
        self.initialized += 1

    def nvmlShutdown(self) -> None:
        self._called("nvmlShutdown", None)
        self.initialized -= 1

    def nvmlSystemGetDriverVersion(self) -> str:
        self._called("nvmlSystemGetDriverVersion", None)
        return self.driver_version

    # --- finding devices ------------------------------------------------------------------------

    def nvmlDeviceGetCount(self) -> int:
        self._called("nvmlDeviceGetCount", None)
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> ScriptedCard:
        if not 0 <= index < len(self.cards):
            raise ScriptedNvmlError(self.NVML_ERROR_INVALID_ARGUMENT)
        self._called("nvmlDeviceGetHandleByIndex", self.cards[index])
        return self.cards[index]

    def nvmlDeviceGetMigMode(self, handle: ScriptedSlice) -> list[int]:
        self._called("nvmlDeviceGetMigMode", handle)
        mig = getattr(handle, "mig", None)
        if mig is None:
            raise ScriptedNvmlError(self.NVML_ERROR_NOT_SUPPORTED)
        return [int(mig), int(mig)]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: ScriptedCard) -> int:
        self._called("nvmlDeviceGetMaxMigDeviceCount", handle)
        return max(7, len(handle.slices))

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: ScriptedCard, place: int) -> Any:
        self._called("nvmlDeviceGetMigDeviceHandleByIndex", handle)
        if place >= len(handle.slices) or handle.slices[place] is None:
            raise ScriptedNvmlError(self.NVML_ERROR_NOT_FOUND)
        return handle.slices[place]

    # --- one device -----------------------------------------------------------------------------

    def nvmlDeviceGetUUID(self, handle: ScriptedSlice) -> str:
        self._called("nvmlDeviceGetUUID", handle)
        return handle.uuid

    def nvmlDeviceGetName(self, handle: ScriptedSlice) -> str:
        self._called("nvmlDeviceGetName", handle)
        return handle.name

    def nvmlDeviceGetComputeMode(self, handle: ScriptedSlice) -> int:
        self._called("nvmlDeviceGetComputeMode", handle)
        return int(self._card(handle).compute_mode)

    def nvmlDeviceGetMemoryInfo(self, handle: ScriptedSlice, version: int | None = None) -> Any:
        self._called("nvmlDeviceGetMemoryInfo", handle)
        free = handle.total - handle.used - handle.reserved
        if version is None:
            used = handle.used + handle.reserved
            return SimpleNamespace(total=handle.total, used=used, free=free)
        if self.memory_version < 2:
            raise ScriptedNvmlError(self.NVML_ERROR_FUNCTION_NOT_FOUND)
        return SimpleNamespace(
            version=version,
            total=handle.total,
            reserved=handle.reserved,
            used=handle.used,
            free=free,
        )

    def nvmlDeviceGetUtilizationRates(self, handle: ScriptedSlice) -> Any:
        self._called("nvmlDeviceGetUtilizationRates", handle)
        if not isinstance(handle, ScriptedCard) or handle.mig:
            raise ScriptedNvmlError(self.NVML_ERROR_NOT_SUPPORTED)
        return SimpleNamespace(gpu=handle.utilization, memory=handle.memory_utilization)

    def nvmlDeviceGetComputeRunningProcesses_v3(self, handle: ScriptedSlice) -> list[Any]:
        return self._list("nvmlDeviceGetComputeRunningProcesses", handle, handle.compute, 3)

    def nvmlDeviceGetComputeRunningProcesses_v2(self, handle: ScriptedSlice) -> list[Any]:
        return self._list("nvmlDeviceGetComputeRunningProcesses", handle, handle.compute, 2)

    def nvmlDeviceGetGraphicsRunningProcesses_v3(self, handle: ScriptedSlice) -> list[Any]:
        return self._list("nvmlDeviceGetGraphicsRunningProcesses", handle, handle.graphics, 3)

    def nvmlDeviceGetGraphicsRunningProcesses_v2(self, handle: ScriptedSlice) -> list[Any]:
        return self._list("nvmlDeviceGetGraphicsRunningProcesses", handle, handle.graphics, 2)

    def nvmlDeviceGetMPSComputeRunningProcesses_v3(self, handle: ScriptedSlice) -> list[Any]:
        return self._list("nvmlDeviceGetMPSComputeRunningProcesses", handle, handle.mps, 3)

    def nvmlDeviceGetMPSComputeRunningProcesses_v2(self, handle: ScriptedSlice) -> list[Any]:
        return self._list("nvmlDeviceGetMPSComputeRunningProcesses", handle, handle.mps, 2)

    def nvmlDeviceGetProcessUtilization(self, handle: ScriptedSlice, since: int) -> list[Any]:
        self._called("nvmlDeviceGetProcessUtilization", handle)
        if not isinstance(handle, ScriptedCard) or handle.mig:
            raise ScriptedNvmlError(self.NVML_ERROR_NOT_SUPPORTED)
        if not handle.loads:
            raise ScriptedNvmlError(self.NVML_ERROR_NOT_FOUND)
        return [
            SimpleNamespace(pid=pid, timeStamp=since + 1, smUtil=load, memUtil=0)
            for pid, load in handle.loads.items()
        ]

    # --- the script -----------------------------------------------------------------------------

    def _list(
        self, function: str, handle: ScriptedSlice, found: dict[int, int | None], version: int
    ) -> list[Any]:
        self._called(function, handle)
        if version > self.process_version:
            raise ScriptedNvmlError(self.NVML_ERROR_FUNCTION_NOT_FOUND)
        return [SimpleNamespace(pid=pid, usedGpuMemory=count) for pid, count in found.items()]

    def _card(self, handle: ScriptedSlice) -> ScriptedCard:
        if isinstance(handle, ScriptedCard):
            return handle
        return next(card for card in self.cards if handle in card.slices)

    def _called(
        self, function: str, handle: ScriptedSlice | None, *, initialised: bool = True
    ) -> None:
        self.calls[function] += 1
        if self.hold.is_set():
            self.released.wait()
        if initialised and not self.initialized:
            raise ScriptedNvmlError(self.NVML_ERROR_UNINITIALIZED)
        if self.driver_error is not None:
            raise ScriptedNvmlError(self.driver_error)
        if handle is None:
            return
        if not isinstance(handle, ScriptedCard) and not any(
            handle in card.slices for card in self.cards
        ):
            # A slice that was destroyed: its handle is no argument any more.
            raise ScriptedNvmlError(self.NVML_ERROR_INVALID_ARGUMENT)
        gone = self._card(handle).gone
        if gone is not None:
            raise ScriptedNvmlError(gone)
        if function in handle.errors:
            raise ScriptedNvmlError(handle.errors[function])
