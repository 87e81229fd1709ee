"""The fixtures of the workers: what the queue gives out, a worker of these tests takes."""

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
