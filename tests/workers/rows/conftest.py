"""A folder for recipes with rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from expunge.service.infra.settings import Settings
from expunge.workers.runtime import build


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """Fix the key that people are kept apart and drawn into shards by: where a test counts on a word that few people
    have, one drawing in thirty keeps all of them apart."""
    settings.pepper_file.write_text("5a" * 32)
    return settings


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "recipes"


@pytest.fixture
def worlds_made(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The job of each world and how many parts it is made for, in order; a world imports the recipe once."""
    worlds: list[tuple[str, int]] = []
    make_world = build.make_world

    def noted(job: str, code: object, count: int, **settings: object) -> object:
        worlds.append((job, count))
        return make_world(job, code, count, **settings)  # type: ignore[arg-type]

    monkeypatch.setattr(build, "make_world", noted)
    return worlds
