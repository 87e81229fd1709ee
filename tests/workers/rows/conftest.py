"""A folder for recipes with rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from expunge.workers.runtime import build


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
