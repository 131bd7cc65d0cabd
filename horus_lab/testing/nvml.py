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
from typing import Any, ClassVar, NamedTuple

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
        self._generation = 0

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
        self._called("nvmlInit", initialised=False)
        if self.init_error is not None:
            raise ScriptedNvmlError(self.init_error)
        self.initialized += 1
        self._generation += 1

    def nvmlShutdown(self) -> None:
        self._called("nvmlShutdown")
        self.initialized -= 1

    def nvmlSystemGetDriverVersion(self) -> str:
        self._called("nvmlSystemGetDriverVersion")
        return self.driver_version

    # --- finding devices ------------------------------------------------------------------------

    def nvmlDeviceGetCount(self) -> int:
        self._called("nvmlDeviceGetCount")
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> _Handle:
        self._called("nvmlDeviceGetHandleByIndex")
        if not 0 <= index < len(self.cards):
            raise ScriptedNvmlError(self.NVML_ERROR_INVALID_ARGUMENT)
        card = self.cards[index]
        self._fail("nvmlDeviceGetHandleByIndex", card)
        return _Handle(card, self._generation)

    def nvmlDeviceGetMigMode(self, handle: _Handle) -> list[int]:
        one = self._device("nvmlDeviceGetMigMode", handle)
        if not isinstance(one, ScriptedCard) or one.mig is None:
            raise ScriptedNvmlError(self.NVML_ERROR_NOT_SUPPORTED)
        return [int(one.mig), int(one.mig)]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: _Handle) -> int:
        one = self._device("nvmlDeviceGetMaxMigDeviceCount", handle)
        return max(7, len(self._card(one).slices))

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: _Handle, place: int) -> _Handle:
        one = self._device("nvmlDeviceGetMigDeviceHandleByIndex", handle)
        slices = self._card(one).slices
        there = slices[place] if place < len(slices) else None
        if there is None:
            raise ScriptedNvmlError(self.NVML_ERROR_NOT_FOUND)
        return _Handle(there, self._generation)

    # --- one device -----------------------------------------------------------------------------

    def nvmlDeviceGetUUID(self, handle: _Handle) -> str:
        return self._device("nvmlDeviceGetUUID", handle).uuid

    def nvmlDeviceGetName(self, handle: _Handle) -> str:
        return self._device("nvmlDeviceGetName", handle).name

    def nvmlDeviceGetComputeMode(self, handle: _Handle) -> int:
        return self._card(self._device("nvmlDeviceGetComputeMode", handle)).compute_mode

    def nvmlDeviceGetMemoryInfo(self, handle: _Handle, version: int | None = None) -> Any:
        one = self._device("nvmlDeviceGetMemoryInfo", handle)
        free = one.total - one.used - one.reserved
        if version is None:
            return SimpleNamespace(total=one.total, used=one.used + one.reserved, free=free)
        if self.memory_version < 2:
            raise ScriptedNvmlError(self.NVML_ERROR_FUNCTION_NOT_FOUND)
        return SimpleNamespace(
            version=version, total=one.total, reserved=one.reserved, used=one.used, free=free
        )

    def nvmlDeviceGetUtilizationRates(self, handle: _Handle) -> Any:
        one = self._device("nvmlDeviceGetUtilizationRates", handle)
        if not isinstance(one, ScriptedCard) or one.mig:
            raise ScriptedNvmlError(self.NVML_ERROR_NOT_SUPPORTED)
        return SimpleNamespace(gpu=one.utilization, memory=one.memory_utilization)

    def nvmlDeviceGetComputeRunningProcesses_v3(self, handle: _Handle) -> list[Any]:
        return self._list("Compute", handle, 3)

    def nvmlDeviceGetComputeRunningProcesses_v2(self, handle: _Handle) -> list[Any]:
        return self._list("Compute", handle, 2)

    def nvmlDeviceGetGraphicsRunningProcesses_v3(self, handle: _Handle) -> list[Any]:
        return self._list("Graphics", handle, 3)

    def nvmlDeviceGetGraphicsRunningProcesses_v2(self, handle: _Handle) -> list[Any]:
        return self._list("Graphics", handle, 2)

    def nvmlDeviceGetMPSComputeRunningProcesses_v3(self, handle: _Handle) -> list[Any]:
        return self._list("MPSCompute", handle, 3)

    def nvmlDeviceGetMPSComputeRunningProcesses_v2(self, handle: _Handle) -> list[Any]:
        return self._list("MPSCompute", handle, 2)

    def nvmlDeviceGetProcessUtilization(self, handle: _Handle, since: int) -> list[Any]:
        one = self._device("nvmlDeviceGetProcessUtilization", handle)
        if not isinstance(one, ScriptedCard) or one.mig:
            raise ScriptedNvmlError(self.NVML_ERROR_NOT_SUPPORTED)
        if not one.loads:
            raise ScriptedNvmlError(self.NVML_ERROR_NOT_FOUND)
        return [
            SimpleNamespace(pid=pid, timeStamp=since + 1, smUtil=load, memUtil=0)
            for pid, load in one.loads.items()
        ]

    # --- the script -----------------------------------------------------------------------------

    def _called(self, function: str, *, initialised: bool = True) -> None:
        self.calls[function] += 1
        if self.hold.is_set():
            self.released.wait()
        if initialised and not self.initialized:
            raise ScriptedNvmlError(self.NVML_ERROR_UNINITIALIZED)
        if self.driver_error is not None:
            raise ScriptedNvmlError(self.driver_error)

    def _device(self, function: str, handle: _Handle) -> ScriptedSlice:
        """What the handle stands for, unless this function fails for it."""
        self._called(function)
        one = handle.device
        there = one in self.cards or any(one in card.slices for card in self.cards)
        if handle.generation != self._generation or not there:
            # Of a slice that was destroyed, or of NVML before it was started anew.
            raise ScriptedNvmlError(self.NVML_ERROR_INVALID_ARGUMENT)
        self._fail(function, one)
        return one

    def _fail(self, function: str, one: ScriptedSlice) -> None:
        gone = self._card(one).gone
        if gone is not None:
            raise ScriptedNvmlError(gone)
        if function in one.errors:
            raise ScriptedNvmlError(one.errors[function])

    def _card(self, one: ScriptedSlice) -> ScriptedCard:
        if isinstance(one, ScriptedCard):
            return one
        return next(card for card in self.cards if one in card.slices)

    def _list(self, kind: str, handle: _Handle, version: int) -> list[Any]:
        one = self._device(f"nvmlDeviceGet{kind}RunningProcesses", handle)
        if version > self.process_version:
            raise ScriptedNvmlError(self.NVML_ERROR_FUNCTION_NOT_FOUND)
        found = {"Compute": one.compute, "Graphics": one.graphics, "MPSCompute": one.mps}[kind]
        return [SimpleNamespace(pid=pid, usedGpuMemory=count) for pid, count in found.items()]


class _Handle(NamedTuple):
    """What stands for a device until NVML is started anew."""

    device: ScriptedSlice
    generation: int
