"""The public measured sets as samples: graph features on a device model, and what was measured.

Each loader takes the folder of its set (see docs/prediction.md for where users get them). Sets
differ in what surrounds the job (driver, torch, libraries), so each sample names its set, and the
fit gives every set an offset of its own.
"""

from __future__ import annotations

import ast
import csv
import gzip
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from msgspec import Struct

from horus_lab.errors import ConfigurationError
from horus_lab.predict.analytic import Layer, Totals, mlp_step, totals_step
from horus_lab.predict.captured import CapturedStep, at_batch
from horus_lab.predict.roofline import TODAY, Installation
from horus_lab.predict.specs import SPECS
from horus_lab.records import DeviceSpec, GraphFeatures

_MIB = 2**20
_ATTENTION = re.compile(
    r"vit|deit|beit|swin|cait|xcit|pit_|levit|crossvit|twins|visformer|mixer|resmlp|gmlp|eva|volo"
    r"|nest|jx_|tnt|convit|sequencer|flexi|coat|davit|maxvit|maxxvit|samvit|hiera|mvit"
)


class Sample(Struct, frozen=True, kw_only=True):
    """One measured run.

    Attributes:
        source: the set's folder name.
        surroundings: which installation measured it; memory offsets are common to it.
        family: what is left out together ("resnet", "mlp pyramid").
        input_bound: the loader or an environment set the pace, not the graph.
        paper_bytes: what the Horus paper's memory formula says, where it can be computed.
    """

    source: str
    surroundings: str
    model: str
    family: str
    spec: DeviceSpec
    features: GraphFeatures
    memory_bytes: float | None = None
    utilization: float | None = None
    memory_utilization: float | None = None
    step_seconds: float | None = None
    input_bound: bool = False
    paper_bytes: float | None = None
    live_only_bytes: float | None = None


INSTALLATIONS = {
    # By their utilization: MLPs on an A100 ran their products in TF32 and one kernel a parameter.
    "gpumemnet": Installation(fused_optimizer=False, tf32_products=True),
    "lucid": Installation(fused_optimizer=False, tf32_products=True),
    "gavel": Installation(fused_optimizer=False),
    "timm": Installation(fused_optimizer=False),
    "carma": TODAY,
}
"""What is known, or follows from the figures, of the software of each surroundings."""


class Captures:
    """The captured steps by name; any batch size of a name captured at two of them."""

    def __init__(self, steps: Iterable[CapturedStep]) -> None:
        self._steps: dict[tuple[str, str], dict[int, GraphFeatures]] = {}
        for one in steps:
            key = (one.name, one.features.precision)
            self._steps.setdefault(key, {})[one.batch] = one.features

    def get(self, name: str, batch: int, precision: str = "32-true") -> GraphFeatures | None:
        """The features of a step, or `None` where the name was not captured."""
        known = self._steps.get((name, precision))
        if not known:
            return None
        if batch in known:
            return known[batch]
        if len(known) < 2:
            return None
        low, high = sorted(known)[:2]
        return at_batch(known[low], known[high], batch)


def family_of(name: str) -> str:
    """A model name's family: what stands before its first digit, without "net" and a version."""
    lower = re.sub(
        r"^(tf|legacy|gluon|ssl|swsl|test|ens|adv|dm|eca|ecaresnet|ese)_", "", name.lower()
    )
    found = re.match(r"[a-z]+", lower)
    family = found.group(0) if found else lower
    return re.sub(r"(net)?(v|rs|d|x|y)?$", "", family) or family


def gpumemnet_mlp(folder: Path, captures: Captures) -> Iterator[Sample]:
    """MLPs on an A100: utilization and memory."""
    del captures
    for row in _rows(folder / "mlp.csv.gz"):
        layers = [Layer(*one) for one in ast.literal_eval(row["layers"])]
        setting = row["configuration"]
        inputs = int(setting.split("input:")[1].split("_")[0])
        shape = setting.split("arch:")[1].split("_")[0]
        batch = int(row["batch"])
        parameters, activations = int(row["total_parameters"]), int(row["total_activations"])
        features = mlp_step(layers, inputs, batch)
        yield Sample(
            source="gpumemnet_mlp",
            surroundings="gpumemnet",
            model=setting,
            family=f"mlp {shape}",
            spec=SPECS["A100-40GB"],
            features=features,
            memory_bytes=float(row["max_memory_mib"]) * _MIB,
            utilization=float(row["gpu_util_pct"]) / 100.0,
            paper_bytes=paper_formula(activations, batch, parameters),
            live_only_bytes=float(features.peak_live_bytes),
        )


def timm_memory(folder: Path, captures: Captures) -> Iterator[Sample]:
    """Image models on an A100: memory. Censored and non-monotone rows are dropped."""
    totals = _totals(folder.parent / "timm_train")
    for row in _rows(folder / "timm_memory.csv"):
        if row["suspect_censored"] != "0" or row["suspect_nonmonotone"] != "0":
            continue
        name, batch = row["model"], int(row["batch_size"])
        known = totals.get(name)
        live = float(row["faketensor_final_MiB"]) * _MIB
        features = captures.get(f"timm/{name}", batch)
        if features is None and known is not None:
            features = totals_step(_with_live(known, live), batch, states=2)
        if features is None:
            continue
        yield Sample(
            source="timm_memory",
            surroundings="gpumemnet",
            model=name,
            family=family_of(name),
            spec=SPECS["A100-40GB"],
            features=features,
            memory_bytes=float(row["max_gpu_memory_MiB"]) * _MIB,
            paper_bytes=_paper(known, batch),
            live_only_bytes=live,
        )


def timm_train(folder: Path, captures: Captures) -> Iterator[Sample]:
    """Image models on an RTX 3090 with mixed precision: step time (nchw)."""
    for row in _rows(folder / "train_rtx3090.csv"):
        if row["layout"] != "nchw" or not row["gmacs_per_image"]:
            continue
        name, batch = row["model"], int(float(row["train_batch_size"]))
        features = captures.get(f"timm/{name}", batch, "16-mixed")
        if features is None:
            features = totals_step(_row_totals(row), batch, "16-mixed")
        yield Sample(
            source="timm_train",
            surroundings="timm",
            model=name,
            family=family_of(name),
            spec=SPECS["RTX 3090"],
            features=features,
            step_seconds=float(row["train_step_time"]) / 1000.0,
        )


_INPUT_BOUND = frozenset({"PPO", "TD3", "PointNet"})
# Its memory does not change with the batch: the sequences' length, which is not published, sets it.
_UNKNOWN_SIZE = frozenset({"Transformer"})


def lucid_pairs(folder: Path, captures: Captures) -> Iterator[Sample]:
    """Fourteen models on an RTX 3090: utilization, bandwidth, memory, step time."""
    for row in _rows(folder / "solo.csv"):
        name, batch = row["model"], int(row["batch"])
        precision = "16-mixed" if row["amp"] == "1" else "32-true"
        features = captures.get(f"lucid/{name}", batch, precision)
        if features is None:
            continue
        bound = name in _INPUT_BOUND
        speed = float(row["samples_per_s"])
        yield Sample(
            source="lucid_pairs",
            surroundings="lucid",
            model=name,
            family=family_of(name),
            spec=SPECS["RTX 3090"],
            features=features,
            memory_bytes=None if name in _UNKNOWN_SIZE else float(row["memory_mib"]) * _MIB,
            utilization=min(1.0, float(row["gpu_util_pct"]) / 100.0),
            memory_utilization=min(1.0, float(row["mem_util_pct"]) / 100.0),
            step_seconds=None if bound or speed <= 0 else batch / speed,
            input_bound=bound,
            live_only_bytes=float(features.peak_live_bytes),
        )


_GAVEL_DEVICES = {"k80": "K80", "p100": "P100-16GB", "v100": "V100-16GB"}


def gavel_pairs(folder: Path, captures: Captures) -> Iterator[Sample]:
    """Five models on K80, P100 and V100: step time, from the physical cluster's campaign."""
    for row in _rows(folder / "solo.csv"):
        device = _GAVEL_DEVICES.get(row["gpu"])
        if row["file"] != "physical" or row["scale"] != "1" or device is None or not row["batch"]:
            continue
        batch, speed = int(float(row["batch"])), float(row["isolated_steps_per_s"])
        features = captures.get(f"gavel/{row['model']}", batch)
        if features is None or speed <= 0:
            continue
        yield Sample(
            source="gavel_pairs",
            surroundings="gavel",
            model=row["model"],
            family=family_of(row["model"]),
            spec=SPECS[device],
            features=features,
            step_seconds=1.0 / speed,
        )


# The language models' sequence length is not published; the rows named resnet50_cifar100 repeat
# EfficientNet's memory and FakeTensor figures; those named mobilenet are MobileNetV3-Small by them.
_CARMA_NAMES = {
    "efficientNet_cifar100": "efficientnet_cifar100",
    "efficientNet": "efficientnet",
    "Inception": "inception",
    "mobilenet_cifar100": "mobilenet_cifar100",
    "resnet18_cifar100": "resnet18_cifar100",
    "resnet50": "resnet50",
    "vgg": "vgg16",
}


def memory_models(folder: Path, captures: Captures) -> Iterator[Sample]:
    """Real models on A100s: memory, from two installations."""
    for row in _rows(folder / "gpumemnet_18.csv"):
        features = captures.get(f"memory/{row['model']}", int(row["batch"]))
        if features is None:
            continue
        yield Sample(
            source="memory_models",
            surroundings="gpumemnet",
            model=row["model"],
            family=family_of(row["model"]),
            spec=SPECS["A100-40GB"],
            features=features,
            memory_bytes=float(row["memory_mib"]) * _MIB,
            paper_bytes=float(row["horus_formula_mib"]) * _MIB,
            live_only_bytes=float(features.peak_live_bytes),
        )
    for row in _rows(folder / "carma_40.csv"):
        name = _CARMA_NAMES.get(row["model"])
        if name is None:
            continue
        features = captures.get(f"memory/{name}", int(float(row["batch"])))
        if features is None:
            continue
        yield Sample(
            source="memory_models",
            surroundings="carma",
            model=row["model"],
            family=family_of(name),
            spec=SPECS["A100-40GB"],
            features=features,
            memory_bytes=float(row["memory_mib"]) * _MIB,
            live_only_bytes=float(features.peak_live_bytes),
        )


LOADERS = {
    "gpumemnet_mlp": gpumemnet_mlp,
    "timm_memory": timm_memory,
    "timm_train": timm_train,
    "lucid_pairs": lucid_pairs,
    "gavel_pairs": gavel_pairs,
    "memory_models": memory_models,
}


def load_samples(data: Path, captures: Captures) -> list[Sample]:
    """Every set under `data`.

    Raises:
        ConfigurationError: a set's folder or file is missing, or a row cannot be read.
    """
    samples: list[Sample] = []
    for name, loader in LOADERS.items():
        if not (data / name).is_dir():
            raise ConfigurationError(
                f"The measured set {name} is missing: there is no folder {data / name}.",
                hint="docs/prediction.md says where each set is published.",
            )
        try:
            samples += list(loader(data / name, captures))
        except (KeyError, ValueError, SyntaxError) as error:
            raise ConfigurationError(
                f"A row of the measured set {name} cannot be read: {error!r}.",
                hint="docs/prediction.md says which columns each set has.",
            ) from error
    return samples


def paper_formula(activations: float, batch: int, parameters: float) -> float:
    """The Horus paper's memory in bytes as others quote it: 4·(A·B + P + B·G) with G = P."""
    return 4.0 * (activations * batch + parameters + batch * parameters)


def _paper(known: Totals | None, batch: int) -> float | None:
    if known is None:
        return None
    return paper_formula(known.activations, batch, known.parameters)


def _rows(path: Path) -> Iterator[dict[str, str]]:
    if not path.is_file():
        raise ConfigurationError(
            f"The measured set's file {path} is missing.",
            hint="docs/prediction.md says where each set is published.",
        )
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
        yield from csv.DictReader(lines)


def _row_totals(row: dict[str, str]) -> Totals:
    return Totals(
        name=row["model"],
        multiply_adds=max(1e6, float(row["gmacs_per_image"]) * 1e9),
        activations=max(1e4, float(row["macts_per_image"]) * 1e6),
        parameters=float(row["params_M"]) * 1e6,
        image=int(float(row["train_img_size"])),
        attention=bool(_ATTENTION.search(row["model"])),
    )


def _totals(folder: Path) -> dict[str, Totals]:
    """A model's totals at its smallest published image size, from the inference table."""
    found: dict[str, Totals] = {}
    for row in _rows(folder / "infer_all.csv.gz"):
        if not row["infer_gmacs"] or not row["param_count"]:
            continue
        name, image = row["model"].split(".")[0], int(float(row["infer_img_size"]))
        if name in found and found[name].image <= image:
            continue
        found[name] = Totals(
            name=name,
            multiply_adds=max(1e6, float(row["infer_gmacs"]) * 1e9),
            activations=max(1e4, float(row["infer_macts"] or 0) * 1e6),
            parameters=float(row["param_count"]) * 1e6,
            image=image,
            attention=bool(_ATTENTION.search(name)),
        )
    return found


def _with_live(totals: Totals, live: float) -> Totals:
    return Totals(
        name=totals.name,
        multiply_adds=totals.multiply_adds,
        activations=totals.activations,
        parameters=totals.parameters,
        image=totals.image,
        attention=totals.attention,
        live_bytes=live,
    )
