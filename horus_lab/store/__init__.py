"""Where jobs, fences and observations are kept: SQLAlchemy, SQLite by default.

`protocol` says what a store does; `sql` is the one that is shipped; everything that is particular
to SQLite is in `sqlite`, and everything that changes a stored schema is in `migrations`.
"""

from __future__ import annotations

from horus_lab.store.protocol import Store, StoredState
from horus_lab.store.sql import SqlStore, StoreSettings

__all__ = ["SqlStore", "Store", "StoreSettings", "StoredState"]
