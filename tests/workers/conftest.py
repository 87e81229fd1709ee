"""A fresh world for every test, on SQLite and on PostgreSQL."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from expunge_service.infra.settings import Settings, ensure_secrets
from expunge_workers import app
from expunge_workers.runtime import heartbeat, rows_recipe, worlds
from expunge_workers.training import prepare
from expunge_workers.update import run
from tests.harness.draws import fix_draw
from tests.service.conftest import database_url, postgres_databases, sqlite_template
from tests.workers import meanwhile
from tests.workers.worlds import RECIPES, World, open_world

__all__ = ["database_url", "postgres_databases", "sqlite_template"]

torch.set_num_threads(1)
"""tests fork workers that are to die: a pool of threads would not survive the fork, and its child would wait for it"""
os.environ["OMP_NUM_THREADS"] = "1"
"""the processes that train: a test compares what they give with what this one does"""

THEIRS: list[list[worlds.Template]] = []
"""the templates of the workers beside a test that is a worker itself, and of those that work while these do"""


@pytest.fixture(autouse=True)
def no_wait_for_the_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an update end when it is done, and not with its time bucket: ``test_stopwatch.py`` is about that."""
    monkeypatch.setattr(heartbeat, "sleep", lambda _: None)


DECLARED: dict[tuple[Any, ...], dict[str, Any]] = {}
"""what recipes declare, by their code: it follows from nothing else, and each test has folders of its own to close"""


@pytest.fixture(autouse=True)
def recipes_declare_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask a recipe of the next test again only where its code is another."""
    ask = rows_recipe._facts

    def declared(module: str, files: tuple[tuple[str, bytes], ...], closed: tuple[str, ...]) -> dict[str, Any]:
        code = module, files
        if code not in DECLARED:
            DECLARED[code] = ask(module, files, closed)
        return DECLARED[code]

    monkeypatch.setattr(rows_recipe, "_facts", declared)


@pytest.fixture
def settings(database_url: str, tmp_path: Path) -> Settings:
    """The settings of a world with its own copy of the recipes and their tables, which a test may edit."""
    copies = tmp_path / "given_recipes"
    shutil.copytree(RECIPES, copies, ignore=shutil.ignore_patterns("__pycache__"))
    chosen = Settings(
        home=tmp_path / "home",
        database_url=database_url,
        recipes=copies,
        device="cpu",
        trial_seconds=0,  # a second training takes a world more
    )
    fix_draw(chosen)
    ensure_secrets(chosen)
    return chosen


@pytest.fixture
def world(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    meanwhile.HAPPENINGS.clear()
    meanwhile.watch_for_recipes(monkeypatch)
    world = open_world(settings)
    yield world
    world.storage.close()
    meanwhile.HAPPENINGS.clear()


@pytest.fixture
def reading(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keep the readers and the world of a preparation that a test makes step by step; workers have another template."""
    working = 0

    @contextmanager
    def another_workers() -> Iterator[None]:
        nonlocal working
        ours, depth = worlds._templates[:], working
        THEIRS.extend([] for _ in range(depth + 1 - len(THEIRS)))
        worlds._templates[:], working = THEIRS[depth], depth + 1
        try:
            with worlds.readers():
                yield
        finally:
            THEIRS[depth][:] = worlds._templates
            worlds._templates[:], working = ours, depth

    for room in (app, prepare, run):
        monkeypatch.setattr(room, "readers", another_workers)
    with worlds.readers():
        yield
