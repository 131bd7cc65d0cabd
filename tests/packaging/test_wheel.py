"""What the wheel holds."""

from __future__ import annotations

import json
import tarfile
import zipfile
from pathlib import Path

import pytest

import horus_lab

ROOT = Path(__file__).parents[2]
NOT_PACKAGED = ("jupyter_ext/ui/", "jupyter_ext/config/", "jupyter_ext/labextension/")
LAB = "horus_lab-{0}.data/data/share/jupyter/labextensions/horus-lab/"


@pytest.fixture(scope="module")
def names(wheel: Path) -> frozenset[str]:
    with zipfile.ZipFile(wheel) as archive:
        return frozenset(archive.namelist())


def test_the_sidebar_and_the_package_have_one_version() -> None:
    assert json.loads((ROOT / "package.json").read_text())["version"] == horus_lab.__version__


@pytest.mark.packaging
def test_the_wheel_is_of_the_packages_version(wheel: Path) -> None:
    assert wheel.name == f"horus_lab-{horus_lab.__version__}-py3-none-any.whl"


@pytest.mark.packaging
def test_the_wheel_holds_three_packages_and_nothing_else(names: frozenset[str]) -> None:
    tops = {name.split("/")[0] for name in names}
    version = horus_lab.__version__
    assert tops == {
        "horus_lab",
        "jupyter_ext",
        "lightning_callbacks",
        f"horus_lab-{version}.dist-info",
        f"horus_lab-{version}.data",
    }


@pytest.mark.packaging
def test_the_wheel_holds_every_module_and_data_file_of_the_packages(names: frozenset[str]) -> None:
    suffixes = {".py", ".json", ".onnx", ".yaml", ".mako", ".md", ".typed"}
    wanted = {
        str(file.relative_to(ROOT))
        for package in ("horus_lab", "jupyter_ext", "lightning_callbacks")
        for file in (ROOT / package).rglob("*")
        if file.suffix in suffixes
    }
    wanted = {
        name
        for name in wanted
        if not name.startswith(
            ("jupyter_ext/ui/", "jupyter_ext/config/", "jupyter_ext/labextension/")
        )
    }
    assert wanted - names == set()
    assert "jupyter_ext/openapi.yaml" in wanted
    assert any(name.startswith("horus_lab/predict/shipped/") for name in wanted)
    assert any(name.startswith("horus_lab/store/migrations/") for name in wanted)


@pytest.mark.packaging
def test_the_sidebars_sources_stay_out_of_the_wheel(names: frozenset[str]) -> None:
    assert [name for name in names if "/ui/" in name or name.endswith((".ts", ".tsx"))] == []


@pytest.mark.packaging
def test_the_wheel_brings_the_built_sidebar_and_enables_the_server_extension(wheel: Path) -> None:
    data = LAB.format(horus_lab.__version__)
    with zipfile.ZipFile(wheel) as archive:
        described = json.loads(archive.read(data + "package.json"))
        entry = described["jupyterlab"]["_build"]["load"]
        assert archive.getinfo(data + entry).file_size > 0
        assert json.loads(archive.read(data + "install.json"))["packageName"] == "horus-lab"
        enabled = archive.read(
            data.partition("share/")[0] + "etc/jupyter/jupyter_server_config.d/horus_lab.json"
        )
    assert json.loads(enabled) == {"ServerApp": {"jpserver_extensions": {"jupyter_ext": True}}}


@pytest.mark.packaging
def test_the_sidebar_is_small(built_sidebar: Path, tmp_path: Path) -> None:
    packed = tmp_path / "static.zip"
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in (built_sidebar / "static").glob("*.js"):
            archive.write(file)
    assert packed.stat().st_size < 300_000


@pytest.mark.packaging
def test_the_sdist_holds_what_a_wheel_is_made_of(distributions: Path) -> None:
    (sdist,) = distributions.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        "pyproject.toml",
        "LICENSE",
        "yarn.lock",
        "jupyter_ext/ui/src/index.tsx",
        "jupyter_ext/labextension/package.json",
    } <= names
    assert not any(name.startswith(("node_modules", ".venv", "lib/")) for name in names)
