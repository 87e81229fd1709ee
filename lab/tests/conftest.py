"""Fixtures of the workers' tests: real databases, and a world with a worker."""

from __future__ import annotations

from tests.workers.conftest import (
    database_url,
    no_wait_for_the_bucket,
    postgres_databases,
    settings,
    sqlite_template,
    world,
)

__all__ = ["database_url", "no_wait_for_the_bucket", "postgres_databases", "settings", "sqlite_template", "world"]
