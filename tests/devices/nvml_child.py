"""Reads devices through the real nvidia-ml-py, one command a line; a child of test_nvml_library."""

from __future__ import annotations

import sys

import msgspec

from horus_lab.devices.nvml import NvmlProbe
from horus_lab.errors import DeviceUnavailable
from tests.devices.namespaces import outside_of_containers


def main() -> None:
    probe = NvmlProbe(processes=outside_of_containers())
    answers = {"open": probe.open, "devices": probe.devices, "read": lambda: probe.read(1.0, {})}
    for line in sys.stdin:
        try:
            answer: object = answers[line.strip()]()
        except DeviceUnavailable as error:
            answer = str(error)
        print(msgspec.json.encode(answer).decode(), flush=True)


if __name__ == "__main__":
    main()
