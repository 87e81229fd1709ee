"""A migrated database of each kind."""

from tests.service.conftest import sqlite_template

__all__ = ["sqlite_template"]
