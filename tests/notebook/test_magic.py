"""`%horus` in a real IPython shell; the broker answers on paper."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell

from horus_lab.errors import UnknownJob
from horus_lab.notebook.magic import CellFailed, HorusMagics, ShownError
from horus_lab.records import (
    Basis,
    Fit,
    History,
    Interval,
    Prediction,
    PredictReply,
    PredictRequest,
    StoryEntry,
    TrackRecord,
)
from tests.callbacks.conftest import CPU, GIB, PaperBroker


class PaperApi(PaperBroker):
    """The rest of the API that the magic asks."""

    def __init__(self) -> None:
        super().__init__()
        self.predicted: list[PredictRequest] = []

    def jobs(self, *_: Any, **__: Any) -> tuple[Any, ...]:
        return () if self._job is None else (self._job,)

    def job(self, job_id: str, *arguments: Any, **named: Any) -> Any:
        if self._job is None or job_id != self._job.id:
            raise UnknownJob(f"No job has the id {job_id!r}.", hint="See %horus jobs --all.")
        return super().job(job_id)

    def story(self, job_id: str) -> tuple[StoryEntry, ...]:
        assert self._job is not None
        return (StoryEntry(at=100.0, event="Submitted", from_state=None, to_state=self._job.state),)

    def history(self) -> History:
        return History(jobs=(), track_record=TrackRecord(runs=0))

    def predict(self, request: PredictRequest) -> PredictReply:
        self.predicted.append(request)
        prediction = Prediction(
            device_model="cpu",
            basis=Basis.DECLARED,
            memory_bytes=Interval(GIB, GIB, 2 * GIB),
        )
        fit = Fit(device_uuid=CPU.uuid, prediction=prediction, fits_now=True, fits_ever=True)
        return PredictReply(fits=(fit,), expected_wait_seconds=Interval(0.0, 0.0, 0.0))


@pytest.fixture(scope="module")
def shell() -> Any:
    return InteractiveShell.instance()


@pytest.fixture
def api() -> PaperApi:
    return PaperApi()


@pytest.fixture
def magic(shell: Any, api: PaperApi) -> Iterator[HorusMagics]:
    magics = HorusMagics(shell, discover=lambda: api)  # type: ignore[arg-type,return-value]
    shell.register_magics(magics)
    yield magics
    shell.user_ns.pop("seen", None)


def run(shell: Any, line: str) -> Any:
    return shell.run_line_magic("horus", line)


def test_the_bare_magic_shows_devices_and_jobs(shell: Any, magic: HorusMagics) -> None:
    text = repr(run(shell, ""))
    assert "Devices" in text
    assert "CPU" in text
    # Nothing was measured yet, and that is not zero.
    assert "unknown" in text
    assert "No jobs." in text


def test_an_answer_keeps_its_records(shell: Any, magic: HorusMagics) -> None:
    (state,) = run(shell, "devices").records
    assert state.device == CPU


def test_predict_from_declared_needs_asks_and_queues_nothing(
    shell: Any, magic: HorusMagics, api: PaperApi
) -> None:
    text = repr(run(shell, "predict --memory 2GiB --utilization 0.5"))
    (request,) = api.predicted
    assert request.declared is not None
    assert (request.declared.memory_bytes, request.declared.utilization) == (2 * GIB, 0.5)
    assert api.requests == []
    assert "1.0–2.0 GiB" in text
    assert "granted at once" in text


def test_predict_from_a_model_captures_it(shell: Any, magic: HorusMagics, api: PaperApi) -> None:
    shell.run_cell("import torch; net = torch.nn.Linear(4, 2); x = torch.zeros(3, 4)")
    run(shell, "predict net x --optimizer torch.optim.SGD")
    features = api.predicted[0].features
    assert features is not None
    assert (features.parameters, features.samples) == (10, 3)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("nonsense", "has no command 'nonsense'"),
        ("jobs --nonsense", "--nonsense"),
        ("cancel", "Write %horus cancel JOB"),
        ("run", "%%horus run"),
        ("devices now", "takes no arguments"),
        ("predict 'open", "No closing quotation"),
        ("predict missing_name x", "missing_name"),
        ("predict only_a_model", "needs a batch"),
        ("predict --devices many", "invalid int value"),
    ],
)
def test_a_line_that_is_not_understood_is_a_usage_error(
    shell: Any, magic: HorusMagics, line: str, says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        run(shell, line)


@pytest.mark.parametrize("line", ["why nobody", "predict --memory lots", "predict"])
def test_an_error_of_horus_shows_its_words_and_no_traceback(
    shell: Any, magic: HorusMagics, line: str
) -> None:
    with pytest.raises(ShownError) as caught:
        run(shell, line)
    (shown,) = caught.value._render_traceback_()
    assert shown.startswith("Horus: ")
    assert "Traceback" not in shown


def test_a_gated_cell_runs_with_its_slot_and_gives_it_back(
    shell: Any, magic: HorusMagics, api: PaperApi
) -> None:
    shell.run_cell_magic(
        "horus", "run --memory 1GiB --name study", "seen = horus_slot.device\nhorus_slot.step(3)"
    )
    assert shell.user_ns["seen"] == "cpu"
    assert "horus_slot" not in shell.user_ns
    (request,) = api.requests
    assert request.name == "study"
    assert [(r.outcome, r.steps) for r in api.releases] == [("done", 3)]


def test_a_gated_cell_that_fails_gives_its_slot_back_and_stops_the_notebook(
    shell: Any, magic: HorusMagics, api: PaperApi
) -> None:
    with pytest.raises(CellFailed):
        shell.run_cell_magic("horus", "run --memory 1GiB", "1 / 0")
    assert [r.outcome for r in api.releases] == ["failed"]


def test_help_and_the_docstring_tell_the_same(
    shell: Any, magic: HorusMagics, capsys: pytest.CaptureFixture[str]
) -> None:
    run(shell, "help")
    assert capsys.readouterr().out.strip() == (magic.horus.__doc__ or "").strip()
