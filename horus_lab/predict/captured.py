"""A table of captured steps: graph features of named models, without any measurement."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec
from msgspec import Struct

from horus_lab.errors import ConfigurationError
from horus_lab.records import GraphFeatures, OperationStatistics


class CapturedStep(Struct, frozen=True, kw_only=True):
    """One named model at one batch size: "timm/resnet50" at 32, say."""

    name: str
    batch: int
    optimizer: str
    features: GraphFeatures


def read_captured(path: Path) -> list[CapturedStep]:
    """The steps of a JSON-lines file.

    Raises:
        ConfigurationError: the file is missing or a line is no captured step.
    """
    if not path.is_file():
        raise ConfigurationError(
            f"There is no table of captured steps at {path}.",
            hint="Make it with `python -m benchmarks.data.capture`, or name it with --captured.",
        )
    decoder = msgspec.json.Decoder(CapturedStep)
    try:
        return decoder.decode_lines(path.read_bytes())
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"{path} is not a table of captured steps: {error}.",
            hint="Make it anew with `python -m benchmarks.data.capture`.",
        ) from error


def write_captured(path: Path, steps: Iterable[CapturedStep]) -> None:
    """The steps as JSON lines."""
    path.write_bytes(msgspec.json.Encoder().encode_lines(list(steps)))


def at_batch(first: GraphFeatures, second: GraphFeatures, batch: int) -> GraphFeatures:
    """The features of a third batch size: every count of a step is affine in the batch.

    Raises:
        ValueError: the two are of one batch size, or of unknown ones.
    """
    low, high = first.samples, second.samples
    if low is None or high is None or low == high:
        raise ValueError("two different, known batch sizes are needed")
    share = (batch - low) / (high - low)

    def between(one: float, other: float) -> float:
        return max(0.0, one + share * (other - one))

    others = {(row.operation, row.phase): row for row in second.operations}
    rows = []
    for row in first.operations:
        match = others.get((row.operation, row.phase), row)
        rows.append(
            OperationStatistics(
                operation=row.operation,
                phase=row.phase,
                launches=round(between(row.launches, match.launches)),
                flops=between(row.flops, match.flops),
                bytes_moved=round(between(row.bytes_moved, match.bytes_moved)),
            )
        )
    return msgspec.structs.replace(
        first,
        samples=batch,
        operations=tuple(rows),
        flops=sum(row.flops for row in rows),
        bytes_moved=sum(row.bytes_moved for row in rows),
        launches=sum(row.launches for row in rows),
        dtype_flops={
            name: between(flops, second.dtype_flops.get(name, flops))
            for name, flops in first.dtype_flops.items()
        },
        input_bytes=round(between(first.input_bytes, second.input_bytes)),
        saved_activation_bytes=round(
            between(first.saved_activation_bytes, second.saved_activation_bytes)
        ),
        peak_live_bytes=round(between(first.peak_live_bytes, second.peak_live_bytes)),
    )
