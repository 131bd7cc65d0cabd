"""How a granted device reaches the process that trains.

A kernel may not see every device (an inherited `CUDA_VISIBLE_DEVICES`), and once CUDA is
initialised the mask no longer changes. So `plan_handover` decides, from what the process can
see, between using the CPU, narrowing the mask, and an explicit index; or it refuses. It is pure;
`look` and `apply` touch torch and the environment. Nothing here creates a CUDA context.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct

from horus_lab.errors import DeviceNotVisible
from horus_lab.records import Device, DeviceKind


class Visibility(Struct, frozen=True, kw_only=True):
    """What this process can see of CUDA, found without making a context.

    Attributes:
        cuda_initialized: torch has initialised CUDA here: the mask is fixed.
        cuda_available: torch is a CUDA build and the driver answers.
        uuids: UUID by CUDA index, known once CUDA is initialised.
        mask: `CUDA_VISIBLE_DEVICES` as inherited; `None` where it is not set.
    """

    cuda_initialized: bool = False
    cuda_available: bool = False
    uuids: tuple[str, ...] = ()
    mask: str | None = None


class Handover(Struct, frozen=True, kw_only=True):
    """What to do to train on the granted device.

    Attributes:
        action: `cpu`; `mask`: set `CUDA_VISIBLE_DEVICES` to `mask` before CUDA starts; `index`:
            CUDA has started, and the device has this index.
        device: torch's name of the device after the action.
    """

    action: Literal["cpu", "mask", "index"]
    device: str
    mask: str = ""


def plan_handover(device: Device, sees: Visibility) -> Handover:
    """How this process gets to `device`.

    Raises:
        DeviceNotVisible: CUDA is initialised without the device, or the inherited mask
            excludes it.
    """
    if device.simulated or device.kind is DeviceKind.CPU:
        return Handover(action="cpu", device="cpu")
    if not sees.cuda_available:
        raise DeviceNotVisible(
            f"{device.name} was granted, and torch in this kernel cannot use CUDA.",
            hint="Install a CUDA build of torch that matches the driver, or train on the CPU.",
        )
    if sees.cuda_initialized:
        for index, uuid in enumerate(sees.uuids):
            if _same_uuid(uuid, device.uuid):
                return Handover(action="index", device=f"cuda:{index}")
        raise DeviceNotVisible(
            f"{device.name} was granted, and this kernel initialised CUDA without it.",
            hint="Restart the kernel and request again before anything touches CUDA.",
        )
    if sees.mask is not None and not _mask_may_allow(sees.mask, device):
        raise DeviceNotVisible(
            f"{device.name} was granted, and CUDA_VISIBLE_DEVICES={sees.mask} excludes it.",
            hint="Start the kernel without that mask, or ask for a device that it allows.",
        )
    return Handover(action="mask", device="cuda:0", mask=device.uuid)


def allowed_uuids(sees: Visibility) -> tuple[str, ...]:
    """The only devices worth asking for; empty where nothing restricts the choice."""
    if sees.cuda_initialized:
        return sees.uuids
    entries = _entries(sees.mask)
    if entries and all(entry.startswith(("GPU-", "MIG-")) for entry in entries):
        return entries
    return ()


def look(environ: Mapping[str, str] | None = None) -> Visibility:
    """What this process sees now. Asks torch only if it is imported already.

    A mask of integers means nothing until CUDA orders its devices, so there CUDA is initialised
    (which still makes no context) and the UUIDs are read.
    """
    environ = os.environ if environ is None else environ
    mask = environ.get("CUDA_VISIBLE_DEVICES")
    torch = sys.modules.get("torch")
    if torch is None:
        return Visibility(mask=mask)
    cuda = torch.cuda
    if not cuda.is_initialized():
        available = _counts_devices(cuda, mask)
        if not (available and _has_integers(mask)):
            return Visibility(mask=mask, cuda_available=available)
    uuids = tuple(
        _prefixed(str(cuda.get_device_properties(index).uuid))
        for index in range(cuda.device_count())
    )
    return Visibility(mask=mask, cuda_initialized=True, cuda_available=True, uuids=uuids)


def apply(handover: Handover) -> None:
    """Carry the plan out in this process's environment."""
    if handover.action == "mask":
        os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        os.environ["CUDA_VISIBLE_DEVICES"] = handover.mask
        torch = sys.modules.get("torch")
        if torch is not None:
            # torch remembers the count it saw under the earlier mask.
            forget = getattr(torch.cuda.device_count, "cache_clear", None)
            if forget is not None:
                forget()


def _counts_devices(cuda: Any, mask: str | None) -> bool:
    return bool(cuda._is_compiled() and mask not in ("", "-1") and cuda.device_count() > 0)


def _has_integers(mask: str | None) -> bool:
    return any(entry.isdigit() for entry in _entries(mask))


def _prefixed(uuid: str) -> str:
    return uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"


def _same_uuid(left: str, right: str) -> bool:
    return _prefixed(left).lower() == _prefixed(right).lower()


def _entries(mask: str | None) -> tuple[str, ...]:
    if mask is None:
        return ()
    return tuple(entry.strip() for entry in mask.split(",") if entry.strip())


def _mask_may_allow(mask: str, device: Device) -> bool:
    """Whether an inherited mask of UUIDs includes the device.

    UUIDs may be shortened to a unique prefix. CUDA stops at the first entry it does not know;
    `-1` and an empty mask hide everything. An integer is never taken for a card: see `look`.
    """
    for entry in _entries(mask):
        if not entry.startswith(("GPU-", "MIG-")):
            return False
        if device.uuid.lower().startswith(entry.lower()):
            return True
    return False
