"""Engines that train elsewhere: processes of the tests, and a Ray cluster of this machine where Ray is installed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from expunge_ray.runner import RayRunner
from expunge_service.infra.settings import Settings
from expunge_workers.runtime import model
from expunge_workers.runtime.engine import Engine, Runner
from tests.harness.ray_cluster import ray_cluster
from tests.workers.engines.programs import Programs
from tests.workers.worlds import World


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """As in tests/workers/rows: the same people are trained on in every run."""
    settings.pepper_file.write_text("5a" * 32)
    return settings


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "recipes"


@pytest.fixture(scope="session")
def cluster() -> Iterator[dict[str, str]]:
    """What reaches a Ray cluster that all tests of this pytest process share."""
    with ray_cluster() as variables:
        yield variables


@pytest.fixture(params=["programs", "ray"])
def runner(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runner]:
    if request.param == "programs":
        runner = Programs(tmp_path / "programs")
        yield runner
        for name in {file.name.partition(".")[0] for file in runner.folder.glob("*")}:
            runner.cancel(name)
        return
    for name, value in request.getfixturevalue("cluster").items():
        monkeypatch.setenv(name, value)
    yield RayRunner()


@pytest.fixture
def engine(world: World, runner: Runner, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """The engine, which models that are opened from now on are trained by."""
    made = Engine(runner, str(world.settings.home / "parts"))
    monkeypatch.setattr(model, "engine_of", lambda *_: made)
    return made


def programs(place: str) -> set[int]:
    """The programs of parts at a place that run on this machine."""
    of_parts = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().decode().split("\0")
            dead = (folder / "stat").read_text().rpartition(")")[2].split()[0] in "ZX"
        except (FileNotFoundError, ProcessLookupError):
            continue
        if "expunge_workers.part" in words and place in words and not dead:
            of_parts.add(int(folder.name))
    return of_parts
