"""What NVIDIA's device models can do, by their published figures.

Rates are dense (no sparsity), tensor cores with float32 accumulation where the model has them.
`tf32` stands beside `float32`: torch uses it for convolutions by default, for matrix products on
request. `launch_seconds` and `context_bytes` are not published: they are what one operation of an
eager torch step costs its host (Python's share included), and what a bare CUDA context takes, on
machines of that time; the first follows from the step times of the training sets.
"""

from __future__ import annotations

import re

from msgspec import Struct

from horus_lab.records import DeviceKind, DeviceSpec

_GIB = 2**30
_MIB = 2**20
_TERA = 1e12
_GIGA = 1e9

_ASSUMED_MEMORY_BYTES = 16 * _GIB
_MIG_COMPUTE_SLICES = 7
_MIG_MEMORY_SLICES = 8


class _Row(Struct, frozen=True):
    """One line of the table: FLOP/s in units of 10^12, bandwidth in 10^9 bytes/s, memory in GiB."""

    model: str
    memory: float
    float32: float
    tf32: float
    float16: float
    bfloat16: float
    float64: float
    bandwidth: float
    multiprocessors: int
    context_mib: int
    launch_microseconds: float


# Order matters only between variants of one name: the first is meant where memory is not known.
_TABLE = (
    # model, GiB, float32, tf32, float16, bfloat16, float64, GB/s, SMs, context MiB, launch µs
    _Row("K80", 12, 4.37, 0, 4.37, 0, 1.46, 240, 13, 320, 18.0),
    _Row("GTX 1080 Ti", 11, 11.3, 0, 11.3, 0, 0.35, 484, 28, 350, 15.0),
    _Row("P100-16GB", 16, 10.6, 0, 21.2, 0, 5.3, 732, 56, 350, 15.0),
    _Row("P100-12GB", 12, 9.3, 0, 18.7, 0, 4.7, 549, 56, 350, 15.0),
    _Row("V100-16GB", 16, 15.7, 0, 125.0, 0, 7.8, 900, 80, 400, 13.5),
    _Row("V100-32GB", 32, 15.7, 0, 125.0, 0, 7.8, 900, 80, 400, 13.5),
    _Row("T4", 16, 8.1, 0, 65.0, 0, 0.25, 320, 40, 370, 13.5),
    _Row("RTX 2080 Ti", 11, 13.4, 0, 53.8, 0, 0.42, 616, 68, 370, 12.0),
    _Row("Titan RTX", 24, 16.3, 0, 130.5, 0, 0.51, 672, 72, 370, 12.0),
    _Row("RTX 8000", 48, 16.3, 0, 130.5, 0, 0.51, 672, 72, 370, 12.0),
    _Row("RTX 3060", 12, 12.7, 12.7, 25.5, 25.5, 0.2, 360, 28, 420, 12.0),
    _Row("RTX 3070", 8, 20.3, 20.3, 40.6, 40.6, 0.32, 448, 46, 420, 12.0),
    _Row("RTX 3080", 10, 29.8, 29.8, 59.5, 59.5, 0.47, 760, 68, 420, 12.0),
    _Row("RTX 3090", 24, 35.6, 35.6, 71.2, 71.2, 0.56, 936, 82, 450, 12.0),
    _Row("RTX 4060 Ti", 16, 22.1, 22.1, 44.1, 44.1, 0.34, 288, 34, 450, 10.5),
    _Row("RTX 4070", 12, 29.1, 29.1, 58.3, 58.3, 0.46, 504, 46, 450, 10.5),
    _Row("RTX 4080", 16, 48.7, 48.7, 97.5, 97.5, 0.76, 717, 76, 450, 10.5),
    _Row("RTX 4090", 24, 82.6, 82.6, 165.2, 165.2, 1.29, 1008, 128, 450, 10.5),
    _Row("RTX 5080", 16, 56.3, 56.3, 112.6, 112.6, 0.88, 960, 84, 500, 9.0),
    _Row("RTX 5090", 32, 104.8, 104.8, 209.5, 209.5, 1.64, 1792, 170, 500, 9.0),
    _Row("A10", 24, 31.2, 62.5, 125.0, 125.0, 0.49, 600, 72, 450, 12.0),
    _Row("A16", 16, 4.5, 9.0, 18.0, 18.0, 0.07, 200, 10, 420, 13.5),
    _Row("A30", 24, 10.3, 82.0, 165.0, 165.0, 5.2, 933, 56, 450, 12.0),
    _Row("A40", 48, 37.4, 74.8, 149.7, 149.7, 0.58, 696, 84, 450, 12.0),
    _Row("RTX A4000", 16, 19.2, 38.3, 76.7, 76.7, 0.3, 448, 48, 420, 12.0),
    _Row("RTX A5000", 24, 27.8, 55.6, 111.1, 111.1, 0.43, 768, 64, 420, 12.0),
    _Row("RTX A6000", 48, 38.7, 77.4, 154.8, 154.8, 0.6, 768, 84, 450, 12.0),
    _Row("A100-40GB", 40, 19.5, 156.0, 312.0, 312.0, 9.7, 1555, 108, 480, 12.0),
    _Row("A100-80GB", 80, 19.5, 156.0, 312.0, 312.0, 9.7, 2039, 108, 480, 12.0),
    _Row("L4", 24, 30.3, 60.0, 121.0, 121.0, 0.47, 300, 58, 450, 10.5),
    _Row("L40", 48, 90.5, 90.5, 181.0, 181.0, 1.4, 864, 142, 470, 10.5),
    _Row("L40S", 48, 91.6, 183.0, 362.0, 362.0, 1.4, 864, 142, 470, 10.5),
    _Row("RTX 6000 Ada", 48, 91.1, 182.1, 364.2, 364.2, 1.4, 960, 142, 470, 10.5),
    _Row("H100-80GB PCIe", 80, 51.2, 378.0, 756.0, 756.0, 25.6, 2039, 114, 550, 9.8),
    _Row("H100-80GB", 80, 66.9, 494.7, 989.4, 989.4, 33.5, 3352, 132, 550, 9.8),
    _Row("GH200-96GB", 96, 66.9, 494.7, 989.4, 989.4, 33.5, 4000, 132, 550, 11.2),
    _Row("H200", 141, 66.9, 494.7, 989.4, 989.4, 33.5, 4800, 132, 550, 9.8),
    _Row("B200", 180, 74.5, 1100.0, 2250.0, 2250.0, 37.0, 7700, 148, 600, 9.0),
    _Row("RTX PRO 6000", 96, 125.0, 251.0, 503.0, 503.0, 1.95, 1792, 188, 500, 9.0),
    _Row("GB10", 128, 31.0, 62.0, 125.0, 125.0, 0.48, 273, 48, 500, 12.0),
)

# What a product name is recognised by, most specific first.
_PATTERNS = tuple(
    (re.compile(pattern), models)
    for pattern, models in (
        (r"\bgh200\b", ("GH200-96GB",)),
        (r"\bgb10\b|\bdgx spark\b", ("GB10",)),
        (r"\bb200\b|\bgb200\b", ("B200",)),
        (r"\bh200\b", ("H200",)),
        (r"\bh100\b.*\bpcie\b", ("H100-80GB PCIe",)),
        (r"\bh100\b", ("H100-80GB",)),
        (r"\ba(?:100|800)\b", ("A100-40GB", "A100-80GB")),
        (r"\brtx pro 6000\b", ("RTX PRO 6000",)),
        (r"\brtx 6000 ada\b", ("RTX 6000 Ada",)),
        (r"\ba6000\b", ("RTX A6000",)),
        (r"\ba5000\b", ("RTX A5000",)),
        (r"\ba4000\b", ("RTX A4000",)),
        (r"\bl40s\b", ("L40S",)),
        (r"\bl40\b", ("L40",)),
        (r"\bl4\b", ("L4",)),
        (r"\ba40\b", ("A40",)),
        (r"\ba30\b", ("A30",)),
        (r"\ba16\b", ("A16",)),
        (r"\ba10g?\b", ("A10",)),
        (r"\bv100s?\b", ("V100-16GB", "V100-32GB")),
        (r"\bp100\b", ("P100-16GB", "P100-12GB")),
        (r"\bk80\b", ("K80",)),
        (r"\bt4\b", ("T4",)),
        (r"\btitan rtx\b", ("Titan RTX",)),
        (r"\brtx 8000\b", ("RTX 8000",)),
        (r"\b5090\b", ("RTX 5090",)),
        (r"\b5080\b", ("RTX 5080",)),
        (r"\b4090\b", ("RTX 4090",)),
        (r"\b4080\b", ("RTX 4080",)),
        (r"\b4070\b", ("RTX 4070",)),
        (r"\b4060 ti\b", ("RTX 4060 Ti",)),
        (r"\b3090\b", ("RTX 3090",)),
        (r"\b3080\b", ("RTX 3080",)),
        (r"\b3070\b", ("RTX 3070",)),
        (r"\b3060\b", ("RTX 3060",)),
        (r"\b2080 ?ti\b", ("RTX 2080 Ti",)),
        (r"\b1080 ?ti\b", ("GTX 1080 Ti",)),
    )
)

# Cards that share a number with a faster or slower sibling: not to be taken for it.
_OTHER_CARD = re.compile(r"\b\d{4} (?:ti|super)\b|\b\d{4}(?:ti|super)\b|\blaptop\b|\bmax-q\b")
_MIG = re.compile(r"\bmig\s+(\d+)(?:c\.\d+)?g\.(\d+)gb")
_SIZE = re.compile(r"(\d+)\s?gi?b\b")


def _spec(row: _Row) -> DeviceSpec:
    rates = {
        "float32": row.float32,
        "tf32": row.tf32 or row.float32,
        "float16": row.float16,
        "bfloat16": row.bfloat16 or row.float32 / 2,
        "float64": row.float64,
    }
    return DeviceSpec(
        model=row.model,
        kind=DeviceKind.NVIDIA,
        memory_bytes=int(row.memory * _GIB),
        peak_flops={dtype: rate * _TERA for dtype, rate in rates.items()},
        memory_bandwidth=row.bandwidth * _GIGA,
        multiprocessors=row.multiprocessors,
        launch_seconds=row.launch_microseconds * 1e-6,
        context_bytes=row.context_mib * _MIB,
    )


SPECS: dict[str, DeviceSpec] = {row.model: _spec(row) for row in _TABLE}
"""Specifications by device model, in the table's order."""


def spec_for(name: str, memory_bytes: int | None = None) -> DeviceSpec:
    """The specification of the device that NVML, or a person, calls `name`.

    "NVIDIA A100-SXM4-80GB", "A100-80GB" and "NVIDIA A100 80GB PCIe" are one device model. A MIG
    instance ("NVIDIA A100-SXM4-40GB MIG 3g.20gb") gets its share of the whole device. An unknown
    name gets a middling specification with the source `assumed`; predictions for it are wide.

    Args:
        memory_bytes: the device's memory where it is known; it tells variants of one name apart.
    """
    text = re.sub(r"[\s_-]+", " ", name.lower()).strip()
    mig = _MIG.search(text)
    if mig:
        return _instance(name[: _mig_start(name)].strip(), int(mig.group(1)), int(mig.group(2)))
    exact = next((spec for model, spec in SPECS.items() if _key(model) == _key(name)), None)
    spec = exact or _recognised(text, memory_bytes)
    if spec is None:
        return _assumed(name, memory_bytes)
    if memory_bytes:
        return _with(spec, memory_bytes=memory_bytes)
    return spec


def _key(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _mig_start(name: str) -> int:
    return name.lower().index("mig")


def _recognised(text: str, memory_bytes: int | None) -> DeviceSpec | None:
    for pattern, models in _PATTERNS:
        found = pattern.search(text)
        if not found:
            continue
        other = _OTHER_CARD.search(text)
        if other and other.group(0) not in found.group(0):
            return None
        candidates = [SPECS[model] for model in models]
        size = _SIZE.search(text)
        wanted = memory_bytes or (int(size.group(1)) * _GIB if size else None)
        if wanted is None:
            return candidates[0]
        return min(candidates, key=lambda spec: abs(spec.memory_bytes - wanted))
    return None


def _assumed(name: str, memory_bytes: int | None) -> DeviceSpec:
    clean = re.sub(r"\s+", " ", name).strip() or "unknown device"
    return DeviceSpec(
        model=clean[:200],
        kind=DeviceKind.NVIDIA,
        memory_bytes=memory_bytes or _ASSUMED_MEMORY_BYTES,
        peak_flops={
            "float32": 20 * _TERA,
            "tf32": 30 * _TERA,
            "float16": 60 * _TERA,
            "bfloat16": 60 * _TERA,
            "float64": 0.6 * _TERA,
        },
        memory_bandwidth=600 * _GIGA,
        multiprocessors=60,
        launch_seconds=8e-6,
        context_bytes=450 * _MIB,
        source="assumed",
    )


def _instance(parent: str, compute_slices: int, memory_gb: int) -> DeviceSpec:
    """A MIG instance: sevenths of the compute, eighths of the memory and its bandwidth."""
    whole = spec_for(parent)
    compute = min(1.0, compute_slices / _MIG_COMPUTE_SLICES)
    memory = memory_gb * _GIB
    slices = max(1, round(_MIG_MEMORY_SLICES * memory / whole.memory_bytes))
    bandwidth = whole.memory_bandwidth * min(1.0, slices / _MIG_MEMORY_SLICES)
    return _with(
        whole,
        model=f"{whole.model} MIG {compute_slices}g.{memory_gb}gb",
        kind=DeviceKind.MIG,
        memory_bytes=memory,
        peak_flops={dtype: rate * compute for dtype, rate in whole.peak_flops.items()},
        memory_bandwidth=bandwidth,
        multiprocessors=max(1, int(whole.multiprocessors * compute)),
    )


def _with(
    spec: DeviceSpec,
    *,
    model: str | None = None,
    kind: DeviceKind | None = None,
    memory_bytes: int | None = None,
    peak_flops: dict[str, float] | None = None,
    memory_bandwidth: float | None = None,
    multiprocessors: int | None = None,
) -> DeviceSpec:
    return DeviceSpec(
        model=model or spec.model,
        kind=kind or spec.kind,
        memory_bytes=memory_bytes or spec.memory_bytes,
        peak_flops=peak_flops or spec.peak_flops,
        memory_bandwidth=memory_bandwidth or spec.memory_bandwidth,
        multiprocessors=multiprocessors or spec.multiprocessors,
        launch_seconds=spec.launch_seconds,
        context_bytes=spec.context_bytes,
        source=spec.source,
    )
