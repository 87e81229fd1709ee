"""What a worker makes of an engine's answers, and of an engine that gives none."""

from __future__ import annotations

from pathlib import Path

import pytest

from expunge_workers.part import _public_file
from expunge_workers.runtime import model
from expunge_workers.runtime.engine import Engine, EngineAway, EngineDiffers, PartJob, Runner
from expunge_workers.runtime.part_files import PartFiles
from tests.workers.rows.data import lay_out, published, trained_on
from tests.workers.worlds import World

MODEL = b"{}"


class Answering:
    """Answers at once for whatever it is given, as who has the key of a part's files can."""

    def __init__(self, walls: str) -> None:
        self.walls = walls

    def submit(self, job: PartJob) -> None:
        facts = {"files": [["model.json", len(MODEL)]]}
        words = {"facts": facts, "score": None, "cpu": 0.0, "seconds": 0.0, "walls": self.walls}
        PartFiles.at(job.place, job.name, job.key).answer(words, MODEL)

    def look(self, name: str) -> str | None:
        return None

    def cancel(self, name: str) -> None:
        pass


class Away(Answering):
    def submit(self, job: PartJob) -> None:
        raise EngineAway("nobody is there")


def train_by(monkeypatch: pytest.MonkeyPatch, world: World, runner: Runner) -> None:
    """Have models that are opened from now on trained by this runner."""
    monkeypatch.setattr(model, "engine_of", lambda *_: Engine(runner, str(world.settings.home / "parts")))


@pytest.mark.parametrize(("walls", "claimed"), [("new root", "reported"), ("landlock alone", "none"), ("none", "none")])
def test_a_claim_says_no_more_of_walls_than_that_they_were_reported(
    world: World, folder: Path, monkeypatch: pytest.MonkeyPatch, walls: str, claimed: str
) -> None:
    lay_out(folder)
    world = world.configured(recipes=folder, trial_seconds=0.0)
    train_by(monkeypatch, world, Answering(walls))
    held = world.live("rows", "retrain")
    claim = world.head(held).claim
    assert published(world, held) == MODEL
    assert (claim["guarantee"], claim["operators_word"], claim["world"]["walls"]) == ("exact", True, claimed)


def test_an_engine_that_is_away_refuses_no_model_and_blocks_no_request(
    world: World, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay_out(folder)
    world = world.configured(recipes=folder, trial_seconds=0.0)
    held = world.register("rows", "retrain", name="held")
    for there in (Away("new root"), Answering("new root")):
        train_by(monkeypatch, world, there)
        for _ in range(5 if isinstance(there, Away) else 1):
            assert world.model(held).status == "preparing"
            world.expire_lease(held)
            world.work(held)
    assert world.model(held).status == "live", world.model(held).reason
    request = world.delete(f"p{trained_on(world)[0]}", models=("held",))
    train_by(monkeypatch, world, Away("new root"))
    for _ in range(5):
        world.expire_lease(held)
        world.work(held)
        assert world.task(request).status == "queued"
    train_by(monkeypatch, world, Answering("new root"))
    world.expire_lease(held)
    world.work(held)
    assert world.task(request).status == "completed"


def test_a_public_file_that_the_machine_has_not_is_no_fault_of_the_recipe(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("a")
    for path, sha256 in ((tmp_path / "words.txt", "0" * 64), (tmp_path / "gone.txt", "0" * 64)):
        with pytest.raises(EngineDiffers, match=f"the public file {path.name}, now none or another"):
            _public_file(str(path), sha256)
