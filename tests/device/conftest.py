"""Tests that need the pretend device; ``tests/test_pretend_device.py`` runs them in a process that has it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.service.conftest import database_url, postgres_databases, sqlite_template
from tests.workers.conftest import no_wait_for_the_bucket

__all__ = ["database_url", "no_wait_for_the_bucket", "postgres_databases", "sqlite_template"]

collect_ignore_glob = [] if hasattr(torch, "pretend") else ["test_*"]


@pytest.fixture(autouse=True)
def well() -> Iterator[None]:
    """Begin each test on a device that is well and has room."""
    torch.ops.pretend.revive()
    torch.ops.pretend.room(2**32)
    yield
    torch.ops.pretend.revive()
