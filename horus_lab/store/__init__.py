"""Where jobs, fences and observations are kept: SQLAlchemy, SQLite by default."""
