"""First principles, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from horus_lab.predict import roofline
from horus_lab.predict.roofline import Installation, capability_of, estimate, work_of
from horus_lab.records import DeviceKind, DeviceSpec, OperationClass, Phase
from tests.predict.conftest import features, row


def device(kind: DeviceKind = DeviceKind.NVIDIA, cores: int = 4) -> DeviceSpec:
    return DeviceSpec(
        model="plain",
        kind=kind,
        memory_bytes=2**34,
        peak_flops={"float32": 1e12, "tf32": 4e12, "float16": 8e12},
        memory_bandwidth=1e11,
        multiprocessors=cores,
        launch_seconds=1e-5,
        context_bytes=0,
    )


def step_of(*rows: object, spec: DeviceSpec | None = None, **changes: object) -> roofline.Estimate:
    made = features(operations=rows, **changes)
    return estimate(work_of(made), capability_of([spec or device()]))


def test_a_large_product_takes_its_flops_over_the_reachable_rate() -> None:
    found = step_of(row(OperationClass.LINEAR, Phase.FORWARD, 1, 1e12, 0))
    by_hand = 1.0 / roofline.MATRIX_EFFICIENCY[OperationClass.LINEAR]
    kernel, loop = roofline.KERNEL_SECONDS, roofline.GPU_LOOP_SECONDS
    assert found.step[0] == pytest.approx(by_hand + kernel + loop)
    assert found.busy[0] == pytest.approx(by_hand + kernel)
    assert found.utilization[0] == pytest.approx((by_hand + kernel) / (by_hand + kernel + loop))


def test_a_float32_convolution_runs_in_tf32_and_a_product_does_not() -> None:
    product = step_of(row(OperationClass.LINEAR, Phase.FORWARD, 1, 1e13, 0))
    convolution = step_of(row(OperationClass.CONVOLUTION, Phase.FORWARD, 1, 1e13, 0))
    efficiency = roofline.MATRIX_EFFICIENCY
    ratio = 4 * efficiency[OperationClass.CONVOLUTION] / efficiency[OperationClass.LINEAR]
    assert product.compute[0] / convolution.compute[0] == pytest.approx(ratio)


def test_an_old_torch_runs_float32_products_in_tf32_too() -> None:
    made = features(operations=(row(OperationClass.LINEAR, Phase.FORWARD, 1, 1e13, 0),))
    now = estimate(work_of(made), capability_of([device()]))
    then = estimate(work_of(made, Installation(tf32_products=True)), capability_of([device()]))
    assert now.compute[0] == pytest.approx(4 * then.compute[0])


def test_half_precision_is_as_fast_as_the_table_says() -> None:
    rows = (row(OperationClass.LINEAR, Phase.FORWARD, 1, 1e13, 0),)
    full = step_of(*rows)
    half = step_of(*rows, dtype_flops={"float16": 1e13})
    assert full.compute[0] / half.compute[0] == pytest.approx(8.0)


def test_traffic_bounds_a_step_that_computes_little() -> None:
    found = step_of(row(OperationClass.ACTIVATION, Phase.FORWARD, 1, 1e6, 10**11))
    assert found.traffic[0] == pytest.approx(1.0 / roofline.BANDWIDTH_EFFICIENCY)
    assert found.busy[0] == pytest.approx(found.traffic[0], rel=1e-4)


def test_tiny_kernels_leave_the_device_idle_while_the_host_dispatches() -> None:
    found = step_of(row(OperationClass.LINEAR, Phase.FORWARD, 10_000, 1e3, 10**3))
    assert found.step[0] == pytest.approx(10_000 * 1e-5 + roofline.GPU_LOOP_SECONDS)
    assert found.utilization[0] == pytest.approx(
        10_000 * roofline.KERNEL_SECONDS / found.step[0], rel=1e-3
    )


def test_a_grouped_convolutions_backward_pass_costs_twice_its_forward_pass_at_most() -> None:
    overcounted = step_of(
        row(OperationClass.CONVOLUTION, Phase.FORWARD, 1, 1e12, 0),
        row(OperationClass.CONVOLUTION, Phase.BACKWARD, 1, 5e13, 0),
    )
    right = step_of(
        row(OperationClass.CONVOLUTION, Phase.FORWARD, 1, 1e12, 0),
        row(OperationClass.CONVOLUTION, Phase.BACKWARD, 1, 2e12, 0),
    )
    assert overcounted.step[0] == pytest.approx(right.step[0])


def test_a_tiny_model_keeps_one_core_of_a_cpu_busy() -> None:
    cpu = device(DeviceKind.CPU, cores=4)
    found = step_of(row(OperationClass.LINEAR, Phase.FORWARD, 100, 1e3, 10**3), spec=cpu)
    assert found.utilization[0] == pytest.approx(1 / 4, rel=0.01)


def test_large_operations_spread_over_every_core() -> None:
    cpu = device(DeviceKind.CPU, cores=4)
    found = step_of(row(OperationClass.LINEAR, Phase.FORWARD, 1, 1e12, 0), spec=cpu)
    assert found.utilization[0] > 0.95


def test_without_a_breakdown_the_totals_are_one_operation() -> None:
    found = estimate(work_of(features(operations=())), capability_of([device()]))
    assert found.compute[0] > 0
    assert np.isfinite(found.step[0])


def test_devices_side_by_side_are_as_one_by_one() -> None:
    specs = [device(), device(DeviceKind.CPU), device(cores=8)]
    work = work_of(features())
    together = estimate(work, capability_of(specs))
    for index, spec in enumerate(specs):
        alone = estimate(work, capability_of([spec]))
        assert alone.step[0] == pytest.approx(together.step[index])
        assert alone.busy[0] == pytest.approx(together.busy[index])
