"""Bring a store's schema to this version's, never back from a newer one."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect

from horus_lab.errors import StoreUnavailable


def check_version(connection: Connection, name: str) -> None:
    """Only reads.

    Raises:
        StoreUnavailable: the store was made by a newer version, or is somebody else's database.
    """
    found = set(MigrationContext.configure(connection).get_current_heads())
    known = {script.revision for script in _scripts().walk_revisions()}
    if found - known:
        raise StoreUnavailable(
            f"The store {name} was made by a newer Horus Lab (schema {', '.join(sorted(found))}) "
            "and was left untouched.",
            hint="Upgrade horus-lab here, or choose another store.",
        )
    if not found and inspect(connection).get_table_names():
        raise StoreUnavailable(
            f"The store {name} is a database of something else and was left untouched.",
            hint="Choose a file that does not exist yet, or an empty database.",
        )


def upgrade(connection: Connection) -> None:
    """Make or upgrade the schema inside the connection's transaction."""
    config = _config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def latest_revision() -> str:
    """The schema revision that this version writes."""
    head = _scripts().get_current_head()
    assert head is not None
    return head


def _scripts() -> ScriptDirectory:
    return ScriptDirectory.from_config(_config())


def _config() -> Config:
    config = Config()
    folder = Path(str(resources.files("horus_lab.store") / "migrations"))
    # Alembic reads options as ConfigParser does, where a per cent sign starts a reference.
    config.set_main_option("script_location", str(folder).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config
