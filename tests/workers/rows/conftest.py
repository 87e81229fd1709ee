"""A folder for recipes with rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from expunge_service.infra.settings import Settings
from expunge_workers.app import Worker
from expunge_workers.runtime import build, drain, worlds
from expunge_workers.runtime.points import TakenPoints
from tests.workers.worlds import World

Stop = Callable[[World, str], None]


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


@pytest.fixture
def stop(monkeypatch: pytest.MonkeyPatch) -> Stop:
    """Let a worker work until it is asked to stop, once it trains, and end."""

    def be_another_process() -> None:
        monkeypatch.setattr(drain, "_wanted", drain._Wanted())
        monkeypatch.setattr(worlds, "_templates", [])

    def stopped(world: World, model_id: str) -> None:
        look = TakenPoints.look

        def asked(points: TakenPoints) -> bool:
            if points.calls:
                drain.ask()
            return look(points)

        with monkeypatch.context() as patch:
            patch.setattr(TakenPoints, "look", asked)
            worker = Worker(world.process, world.pulse())
            with drain.answered_by(worker.give_back):
                worker.work(model_id)
        assert drain.asked(), "nothing asked it to stop"
        be_another_process()

    be_another_process()
    return stopped
