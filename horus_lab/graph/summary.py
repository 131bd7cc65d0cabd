"""Graph features as a plain-text table."""

from __future__ import annotations

from horus_lab.records import GraphFeatures, Phase

_UNITS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def summary(features: GraphFeatures) -> str:
    """The step's totals, its memory and its costs by operation class."""
    f = features
    lines = [
        f"{f.module_name or 'module'}: one training step of "
        f"{f.samples if f.samples is not None else 'unknown'} samples, {f.precision}",
        f"  captured by {f.method.value} in {f.capture_seconds:.2f} s, "
        f"confidence {100 * f.confidence:.0f} %",
        f"  {_scaled(f.flops)}FLOP, {_mebibytes(f.bytes_moved)} moved, {f.launches} launches",
        f"  parameters {_scaled(f.parameters)}({_mebibytes(f.parameter_bytes)}), "
        f"gradients {_mebibytes(f.gradient_bytes)}, "
        f"optimizer {_mebibytes(f.optimizer_state_bytes)}",
        f"  saved activations {_mebibytes(f.saved_activation_bytes)}, "
        f"batch {_mebibytes(f.input_bytes)}, peak {_mebibytes(f.peak_live_bytes)}",
        f"  {'operations':<15}{'launches':>10}{'FLOP':>12}{'moved':>14}",
    ]
    by_class: dict[str, tuple[int, float, int]] = {}
    for one in f.operations:
        name = f"{one.operation.value}"
        if one.phase is Phase.BACKWARD:
            name += " (back)"
        launches, flops, moved = by_class.get(name, (0, 0.0, 0))
        by_class[name] = (
            launches + one.launches,
            flops + one.flops,
            moved + one.bytes_moved,
        )
    for name, (launches, flops, moved) in sorted(by_class.items(), key=lambda row: -row[1][1]):
        lines.append(f"  {name:<22}{launches:>6}{_scaled(flops):>12}{_mebibytes(moved):>14}")
    lines += [f"  note: {note}" for note in f.notes]
    return "\n".join(lines)


def _scaled(count: float) -> str:
    for size, unit in _UNITS:
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count:.0f} "


def _mebibytes(count: int) -> str:
    return f"{count / 2**20:,.1f} MiB"
