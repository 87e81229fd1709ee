"""A fresh world for every test, on SQLite and on PostgreSQL."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from expunge.service.infra.settings import Settings, ensure_secrets
from expunge.workers.runtime import heartbeat
from tests.service.conftest import database_url, postgres_databases, sqlite_template
from tests.workers import meanwhile
from tests.workers.worlds import RECIPES, World, open_world

__all__ = ["database_url", "postgres_databases", "sqlite_template"]

torch.set_num_threads(1)
"""tests fork workers that are to die: a pool of threads would not survive the fork, and its child would wait for it"""
os.environ["OMP_NUM_THREADS"] = "1"
"""the processes that train: a test compares what they give with what this one does"""


@pytest.fixture(autouse=True)
def no_wait_for_the_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an update end when it is done, and not with its time bucket: ``test_stopwatch.py`` is about that."""
    monkeypatch.setattr(heartbeat, "sleep", lambda _: None)


@pytest.fixture
def settings(database_url: str, tmp_path: Path) -> Settings:
    chosen = Settings(
        home=tmp_path / "home",
        database_url=database_url,
        recipes=RECIPES,
        device="cpu",
        trial_seconds=0,  # a trial takes seconds; test_trial.py is about it
    )
    ensure_secrets(chosen)
    return chosen


@pytest.fixture
def world(settings: Settings) -> Iterator[World]:
    meanwhile.reset()
    world = open_world(settings)
    yield world
    world.storage.close()
    meanwhile.reset()
