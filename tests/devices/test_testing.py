"""The stand-ins keep to what they stand for."""

from __future__ import annotations

import inspect

import pynvml
import pytest

from horus_lab.devices.nvml_query import load
from horus_lab.devices.probe import Probe, ProcessTable
from horus_lab.errors import DeviceUnavailable
from horus_lab.predict.protocol import Predictor
from horus_lab.records import (
    Basis,
    DeclaredNeeds,
    JobRequest,
    Observation,
    Prediction,
    decode,
    encode,
)
from horus_lab.service.clock import Clock
from horus_lab.service.parts import Watcher
from horus_lab.testing import (
    ManualClock,
    ScriptedNvml,
    ScriptedNvmlError,
    ScriptedPredictor,
    ScriptedProbe,
    ScriptedProcesses,
    ScriptedWatcher,
    a_device,
    a_prediction,
    a_process,
    a_reading,
    a_request,
    some_features,
)

GIB = 2**30

NAMES = [name for name in dir(ScriptedNvml) if name.lower().startswith("nvml")]
CONSTANTS = [name for name in NAMES if not callable(getattr(ScriptedNvml, name))]
FUNCTIONS = [name for name in NAMES if name.startswith("nvml") and name not in CONSTANTS]


@pytest.mark.parametrize("name", CONSTANTS)
def test_the_scripted_module_s_constants_are_the_real_one_s(name: str) -> None:
    assert getattr(ScriptedNvml, name) == getattr(pynvml, name)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_scripted_module_s_functions_take_what_the_real_one_s_take(name: str) -> None:
    real = inspect.signature(getattr(pynvml, name)).parameters
    scripted = list(inspect.signature(getattr(ScriptedNvml, name)).parameters)[1:]
    variadic = any(one.kind is inspect.Parameter.VAR_POSITIONAL for one in real.values())
    assert variadic or len(scripted) == len(real)


@pytest.mark.parametrize("code", [1, 2, 3, 4, 6, 9, 10, 12, 13, 15, 16, 18, 999])
def test_the_scripted_module_s_errors_read_like_the_real_one_s(code: int) -> None:
    assert str(ScriptedNvmlError(code)) == str(pynvml.NVMLError(code))
    assert ScriptedNvmlError(code).value == pynvml.NVMLError(code).value


def test_nothing_can_be_asked_before_nvml_is_initialised_as_in_the_real_module() -> None:
    with pytest.raises(ScriptedNvmlError, match="Uninitialized"):
        ScriptedNvml.with_cards(1).nvmlDeviceGetCount()


def test_the_module_that_is_installed_here_is_nvidia_ml_py_s() -> None:
    assert load() is pynvml


def test_another_distribution_s_module_of_the_same_name_is_refused_with_the_cure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    monkeypatch.setattr(pynvml, "__file__", f"{tmp_path}/pynvml/__init__.py")
    with pytest.raises(DeviceUnavailable, match="is not nvidia-ml-py's") as caught:
        load()
    assert "pip uninstall --yes pynvml" in caught.value.hint


def test_the_stand_ins_fit_the_protocols_that_they_stand_for() -> None:
    """mypy reads these lines; running them shows that nothing is missing at run time."""
    clock: Clock = ManualClock()
    probe: Probe = ScriptedProbe([a_device()])
    table: ProcessTable = ScriptedProcesses()
    predictor: Predictor = ScriptedPredictor()
    watcher: Watcher = ScriptedWatcher()
    assert clock.now() > clock.monotonic()
    assert probe.devices()[0].uuid == "GPU-a"
    assert table.identify(1) is None
    prediction = predictor.predict(None, None, a_device().spec, held_bytes=None)
    assert prediction.basis is Basis.UNKNOWN
    watcher.close()


def test_a_manual_clock_moves_when_it_is_told_to_and_never_back() -> None:
    clock = ManualClock(at=50.0)
    assert clock.advance(2.5) == 52.5
    assert (clock.now(), clock.monotonic()) == (52.5, 2.5)
    with pytest.raises(ValueError, match="backwards"):
        clock.advance(-1.0)


def test_a_scripted_probe_gives_its_looks_in_order_and_repeats_the_last() -> None:
    first, last = a_reading(used_gib=1), a_reading(used_gib=2)
    probe = ScriptedProbe([a_device()], [(first,), RuntimeError("broken"), (last,)])
    assert probe.read(1.0, {})[0].memory_used_bytes == GIB
    with pytest.raises(RuntimeError, match="broken"):
        probe.read(2.0, {})
    (reading,) = probe.read(3.0, {"a": frozenset({1})})
    assert (reading.memory_used_bytes, reading.read_at) == (2 * GIB, 3.0)
    assert probe.read(4.0, {})[0].memory_used_bytes == 2 * GIB


def test_a_scripted_probe_opens_and_closes_or_says_why_not() -> None:
    probe = ScriptedProbe([a_device()])
    probe.open()
    assert probe.opened
    probe.close()
    assert not probe.opened
    probe.unavailable = "no driver"
    with pytest.raises(DeviceUnavailable, match="no driver"):
        probe.open()


def test_a_scripted_predictor_knows_modules_and_graphs_and_believes_declarations() -> None:
    named = a_prediction(gib=3)
    predictor = ScriptedPredictor({"Net": named, "f" * 16: a_prediction(gib=5)})
    spec = a_device(model="T4").spec

    def gib(prediction: Prediction) -> float | None:
        return prediction.memory_bytes.p50 / GIB if prediction.memory_bytes else None

    assert gib(predictor.predict(some_features(), None, spec)) == 3
    by_graph = some_features("f" * 16, module_name="Other")
    assert gib(predictor.predict(by_graph, None, spec)) == 5
    declared = DeclaredNeeds(memory_bytes=7 * GIB)
    assert gib(predictor.predict(None, declared, spec)) == 7
    assert predictor.predict(some_features(), None, spec).device_model == "T4"
    seen = Observation(graph_hash="f" * 16, device_model="T4", observed_at=1.0)
    predictor.learn(seen)
    assert predictor.learned == [seen]


def test_scripted_processes_end_and_their_children_live_on() -> None:
    table = ScriptedProcesses()
    parent = table.start(10, children=[11, 12])
    assert table.tree(parent) == {10, 11, 12}
    table.end(10)
    assert not table.alive(parent)
    assert table.tree(parent) == {11, 12}
    table.end(11)
    table.end(12)
    assert table.tree(parent) == frozenset()


def test_a_reused_pid_is_another_scripted_process() -> None:
    table = ScriptedProcesses()
    first = table.start(10)
    table.end(10)
    second = table.start(10)
    assert not table.alive(first)
    assert table.alive(second)
    assert first != second


def test_a_scripted_watcher_tells_of_watched_jobs_only() -> None:
    told: list[tuple[str, tuple[int, ...]]] = []
    watcher = ScriptedWatcher()
    watcher.start(lambda job, survivors: told.append((job, survivors)))
    watcher.watch("a", a_process())
    watcher.end("a", (5,))
    watcher.end("b")
    watcher.unwatch("a")
    watcher.end("a")
    assert told == [("a", (5,))]


def test_built_requests_pass_the_wire() -> None:
    for request in (a_request(), a_request(gib=None), a_request("x", devices=2)):
        assert decode(encode(request), JobRequest) == request
