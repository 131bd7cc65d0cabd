"""A store that cannot be used says so, says what to do, and keeps what it has."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from horus_lab.errors import ConfigurationError, HorusError, StoreUnavailable
from horus_lab.records import JobState
from horus_lab.store import SqlStore, StoreSettings
from horus_lab.store.migrate import latest_revision
from horus_lab.store.sqlite import file_system
from tests.store.records import job

QUICK = StoreSettings(busy_seconds=0.1)


def in_another_process(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python code in a process of its own, with the project importable."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_second_broker_in_another_process_is_refused_and_told_who_holds_the_store(
    store: SqlStore, url: str
) -> None:
    store.claim("broker-one", 1.0)
    done = in_another_process(
        """
        import sys
        from horus_lab.errors import StoreUnavailable
        from horus_lab.store import SqlStore
        try:
            SqlStore.open(sys.argv[1])
        except StoreUnavailable as error:
            print(error)
        """,
        url,
    )
    assert f"process {os.getpid()}" in done.stdout, done.stderr
    assert "broker-one" in done.stdout
    epoch = store.claim("broker-one", 2.0)
    store.commit(epoch, jobs=[job("j1")])  # the first goes on undisturbed


def test_a_second_broker_in_this_process_is_refused(store: SqlStore, url: str) -> None:
    with pytest.raises(StoreUnavailable, match=r"in use by another broker"):
        SqlStore.open(url)


def test_the_same_file_by_another_name_is_the_same_store(store: SqlStore, file: Path) -> None:
    link = file.parent / "link.sqlite3"
    link.symlink_to(file)
    with pytest.raises(StoreUnavailable, match=r"in use by another broker"):
        SqlStore.open(f"sqlite:///{link}")


def test_a_lock_ends_with_its_process_however_it_ends(url: str) -> None:
    done = in_another_process(
        """
        import os, signal, sys
        from horus_lab.store import SqlStore
        store = SqlStore.open(sys.argv[1])
        store.claim("doomed", 1.0)
        os.kill(os.getpid(), signal.SIGKILL)
        """,
        url,
    )
    assert done.returncode == -9
    again = SqlStore.open(url)
    assert again.claim("next", 2.0) == 2
    again.close()


def test_a_child_of_the_broker_does_not_keep_its_lock(url: str) -> None:
    store = SqlStore.open(url)
    heard, say = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(say, b"x")
        signal.pause()
        os._exit(0)
    try:
        os.read(heard, 1)
        store.close()
        again = SqlStore.open(url)  # although the child lives
        again.close()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(heard)
        os.close(say)


def test_a_store_that_somebody_else_has_locked_loses_nothing_and_goes_on_afterwards(
    url: str, file: Path
) -> None:
    store = SqlStore.open(url, QUICK)
    epoch = store.claim("b1", 1.0)
    shell = sqlite3.connect(file, isolation_level=None)
    shell.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable, match=r"locked by another program") as caught:
        store.commit(epoch, jobs=[job("j1")])
    assert "Close the program" in caught.value.hint
    assert store.load().jobs == ()  # reading goes on
    shell.execute("ROLLBACK")
    shell.close()
    store.commit(epoch, jobs=[job("j1")])
    assert len(store.load().jobs) == 1
    store.close()


def test_a_full_store_loses_nothing_and_goes_on_when_there_is_room(url: str) -> None:
    store = SqlStore.open(url)
    epoch = store.claim("b1", 1.0)
    store.commit(epoch, jobs=[job("kept")])
    store.close()
    full = SqlStore.open(url, StoreSettings(max_bytes=1))  # a limit below the size is the size
    epoch = full.claim("b2", 2.0)
    large = job("large", outcome="x" * 100_000)
    with pytest.raises(StoreUnavailable, match=r"is full") as caught:
        full.commit(epoch, jobs=[large], next_fence=5)
    assert "Free some disk space" in caught.value.hint
    assert [kept.id for kept in full.load().jobs] == ["kept"]
    assert full.load().next_fence == 1
    full.close()
    roomy = SqlStore.open(url)
    roomy.commit(roomy.claim("b3", 3.0), jobs=[large])
    assert roomy.job("large") == large
    roomy.close()


@pytest.fixture
def reachable() -> Iterator[Path]:
    """A folder that every account may walk into, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def open_without_privileges(folder: Path) -> subprocess.CompletedProcess[str]:
    """Open the store as somebody who is not root: root may write everything."""
    return in_another_process(
        """
        import os, sys
        from horus_lab.errors import StoreUnavailable
        from horus_lab.store import SqlStore
        SqlStore.open(sys.argv[2]).close()  # what is imported late may be root's alone
        if os.getuid() == 0:
            os.setuid(65534)
        try:
            SqlStore.open(sys.argv[1])
        except StoreUnavailable as error:
            print(error)
        """,
        f"sqlite:///{folder}/horus.sqlite3",
        f"sqlite:///{folder.parent}/warm/horus.sqlite3",
    )


def test_a_folder_that_cannot_be_written_is_refused_with_what_to_do(reachable: Path) -> None:
    folder = reachable / "data"
    SqlStore.open(f"sqlite:///{folder}/horus.sqlite3").close()
    for path in folder.iterdir():
        path.chmod(0o444)
    folder.chmod(0o555)
    done = open_without_privileges(folder)
    folder.chmod(0o755)
    assert "cannot be locked" in done.stdout, done.stderr
    assert "writable for this account" in done.stdout


def test_a_file_that_can_only_be_read_is_refused_with_what_to_do(reachable: Path) -> None:
    folder = reachable / "data"
    SqlStore.open(f"sqlite:///{folder}/horus.sqlite3").close()
    (folder / "horus.sqlite3.lock").chmod(0o666)
    (folder / "horus.sqlite3").chmod(0o444)
    folder.chmod(0o777)
    done = open_without_privileges(folder)
    assert "can only be read" in done.stdout, done.stderr
    assert "writable for this account" in done.stdout


def test_a_file_that_is_no_database_is_refused_and_left_as_it_is(file: Path, url: str) -> None:
    file.parent.mkdir()
    file.write_bytes(b"these are my holiday notes\n" * 100)
    before = file.read_bytes()
    with pytest.raises(StoreUnavailable, match=r"left as it was|left as it is") as caught:
        SqlStore.open(url)
    assert str(file) in caught.value.message
    assert file.read_bytes() == before


@pytest.mark.parametrize("page", [3, 30])  # what is read at a start, and some old job's body
def test_a_damaged_store_is_refused_and_left_as_it_is(file: Path, url: str, page: int) -> None:
    store = SqlStore.open(url)
    epoch = store.claim("b1", 1.0)
    store.commit(epoch, jobs=[job(f"j{n}", outcome="x" * 3000) for n in range(50)])
    store.close()
    with file.open("r+b") as damaged:
        damaged.seek(4096 * page)
        damaged.write(os.urandom(4096 * 8))
    before = file.read_bytes()
    with pytest.raises(StoreUnavailable) as caught:
        SqlStore.open(url)
    assert str(file) in caught.value.message
    assert "backup" in caught.value.hint
    assert file.read_bytes() == before
    with pytest.raises(StoreUnavailable, match="damaged"):  # and no lock is left behind
        SqlStore.open(url)


def test_a_store_from_a_newer_version_is_refused_and_untouched(file: Path, url: str) -> None:
    store = SqlStore.open(url)
    store.commit(store.claim("b1", 1.0), jobs=[job("j1")])
    store.close()
    with sqlite3.connect(file) as future:
        future.execute("UPDATE alembic_version SET version_num = '9999'")
    future.close()
    before = file.read_bytes()
    with pytest.raises(StoreUnavailable, match=r"newer Horus Lab \(schema 9999\)") as caught:
        SqlStore.open(url)
    assert "Upgrade horus-lab" in caught.value.hint
    assert file.read_bytes() == before


def test_somebody_elses_database_is_refused_and_untouched(file: Path, url: str) -> None:
    file.parent.mkdir()
    with sqlite3.connect(file) as other:
        other.execute("CREATE TABLE recipes (name TEXT)")
    other.close()
    before = file.read_bytes()
    with pytest.raises(StoreUnavailable, match="something else"):
        SqlStore.open(url)
    assert file.read_bytes() == before


def test_a_row_that_cannot_be_read_is_named(store: SqlStore, file: Path) -> None:
    epoch = store.claim("b1", 1.0)
    store.commit(epoch, jobs=[job("j1")])
    with sqlite3.connect(file) as other:
        other.execute("UPDATE jobs SET body = '{}'")
    other.close()
    with pytest.raises(StoreUnavailable, match="Job that cannot be read"):
        store.load()


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "fuse.sshfs", "9p"])
def test_a_network_file_system_is_refused_before_anything_is_made(
    file: Path, url: str, tmp_path: Path, kind: str
) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/sda / ext4 rw 0 0\nserver:/home {tmp_path} {kind} rw 0 0\n")
    with pytest.raises(StoreUnavailable, match=r"network file system") as caught:
        SqlStore.open(url, mounts=mounts)
    assert kind in caught.value.message
    assert "local disk" in caught.value.hint
    assert not file.parent.exists()


def test_the_deepest_and_latest_mount_decides() -> None:
    mounts = "\n".join(
        [
            "/dev/sda / ext4 rw 0 0",
            "server:/home /home nfs rw 0 0",
            "/dev/sdb /home/my\\040disk xfs rw 0 0",
            "tmpfs /mnt tmpfs rw 0 0",
            "server:/x /mnt nfs rw 0 0",
        ]
    )
    assert file_system(Path("/srv/x"), mounts) == "ext4"
    assert file_system(Path("/home/ann/x"), mounts) == "nfs"
    assert file_system(Path("/home/my disk/x"), mounts) == "xfs"
    assert file_system(Path("/homework"), mounts) == "ext4"
    assert file_system(Path("/mnt/x"), mounts) == "nfs"
    assert file_system(Path("/x"), "") == ""


@pytest.mark.parametrize(
    "url", ["sqlite://", "sqlite:///:memory:", "not a url", "nosuchdb://host/x"]
)
def test_a_url_that_cannot_be_used_is_a_configuration_error(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        SqlStore.open(url)
    assert caught.value.hint


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(StoreUnavailable, match=r"cannot be made"):
        SqlStore.open(f"sqlite:///{tmp_path}/file/horus.sqlite3")


def test_the_store_is_private_to_its_account(store: SqlStore, file: Path) -> None:
    store.claim("b", 0.0)
    for path in (file.parent, *file.parent.iterdir()):
        assert path.stat().st_mode & 0o077 == 0, path


def test_a_schema_revision_of_its_own_is_shipped_and_applied(store: SqlStore, file: Path) -> None:
    with sqlite3.connect(file) as audit:
        (found,) = audit.execute("SELECT version_num FROM alembic_version").fetchone()
        (mode,) = audit.execute("PRAGMA journal_mode").fetchone()
    audit.close()
    assert found == latest_revision()
    assert mode == "wal"


def test_the_migrations_make_the_tables_that_the_code_uses(store: SqlStore) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.runtime.migration import MigrationContext

    from horus_lab.store.schema import metadata

    with store._engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []


def test_every_commit_reaches_the_disk_before_it_returns(store: SqlStore) -> None:
    with store._engine.connect() as connection:
        full = connection.exec_driver_sql("PRAGMA synchronous").scalar()
        foreign = connection.exec_driver_sql("PRAGMA foreign_keys").scalar()
    assert (full, foreign) == (2, 1)  # 2 is FULL


def test_errors_are_horus_errors_with_a_hint(store: SqlStore, file: Path) -> None:
    store.claim("b", 0.0)
    store._engine.dispose()
    for path in file.parent.glob("horus.sqlite3*"):
        path.unlink()
    file.mkdir()  # a directory where the file was
    with pytest.raises(HorusError) as caught:
        store.commit(1, jobs=[job("j1", JobState.DONE)])
    assert caught.value.code == "store_unavailable"
    assert caught.value.hint
