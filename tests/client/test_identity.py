from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from horus_lab.client import notebook_name, this_process
from horus_lab.errors import ConfigurationError


def test_the_identity_agrees_with_what_psutil_reads() -> None:
    identity = this_process()
    # psutil gives the start as an epoch time: boot time + ticks / ticks a second.
    ticks = os.sysconf("SC_CLK_TCK")
    started = psutil.boot_time() + identity.start_ticks / ticks
    assert identity.pid == os.getpid()
    assert started == pytest.approx(psutil.Process().create_time(), abs=2.0)
    assert identity.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert f"pid:[{identity.pid_namespace}]" == os.readlink("/proc/self/ns/pid")


def test_a_process_name_with_brackets_and_spaces_does_not_shift_the_fields(tmp_path: Path) -> None:
    (tmp_path / "sys/kernel/random").mkdir(parents=True)
    (tmp_path / "sys/kernel/random/boot_id").write_text("boot-1\n")
    (tmp_path / "self/ns").mkdir(parents=True)
    (tmp_path / "self/ns/pid").write_text("")
    # Field 22 is the start time: after the name come the state (3) and fields 4 to 21.
    fields = ["S", *(str(number) for number in range(4, 22)), "123456", "23"]
    (tmp_path / "self/stat").write_text(f"42 (a) (b c) {' '.join(fields)}\n")
    identity = this_process(str(tmp_path))
    assert (identity.boot_id, identity.start_ticks) == ("boot-1", 123456)


def test_without_proc_the_error_says_what_is_needed(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="Linux"):
        this_process(str(tmp_path))


def test_the_notebooks_path_comes_from_the_jupyter_session() -> None:
    assert notebook_name({"JPY_SESSION_NAME": "/home/ada/digits.ipynb"}) == "/home/ada/digits.ipynb"


def test_of_a_path_past_the_bound_the_end_is_kept() -> None:
    name = notebook_name({"JPY_SESSION_NAME": "x" * 300 + "/digits.ipynb"})
    assert len(name) == 200
    assert name.endswith("/digits.ipynb")


def test_a_script_is_named_by_its_file(tmp_path: Path) -> None:
    script = tmp_path / "train_digits.py"
    script.write_text(
        "from horus_lab.client import kernel_id, notebook_name\n"
        "print([kernel_id(), notebook_name({})])\n"
    )
    said = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "['', 'train_digits.py']"
