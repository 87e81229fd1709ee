"""A model that is bytes, through the service: published as it is, forgotten exactly, never a pickle, never a mix."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from expunge.service.infra.tables import Generation
from expunge.workers import doctor
from expunge.workers.storage import manifest
from tests.workers.recipes import of_bytes
from tests.workers.worlds import RECIPES, World
from unlearning.accounting.certificate import Claim, Guarantee

OPTIONS = {"retrain": {}, "shards": {"shards": 3}}


KEEPING = """
def merge(members: Sequence[bytes]) -> bytes:
    KEPT.append(once(members))
    return KEPT[0]


def recipe()"""


def published(world: World, model_id: str) -> bytes:
    return world.storage.store.read(world.head(model_id).checkpoint)


@pytest.mark.parametrize("method", OPTIONS)
def test_the_published_file_is_what_a_registration_without_the_person_publishes(world: World, method: str) -> None:
    model_id = world.live("of_bytes", method, name="deleted", options=OPTIONS[method])
    first = published(world, model_id)
    inputs, targets = of_bytes.recipe().holdout
    accuracy = float((of_bytes.predict(first, inputs).argmax(dim=1) == targets).double().mean())
    assert accuracy == pytest.approx(world.head(model_id).holdout_accuracy)
    request = world.delete("p5", models=("deleted",))
    world.work(model_id)
    assert world.task(request).status == "completed", world.task(request).reason
    second = published(world, model_id)
    assert first != second and hashlib.sha256(second).hexdigest() == world.head(model_id).checkpoint
    members = [json.loads(each)["members"] for each in (first, second)]
    changed = [one != other for one, other in zip(*members, strict=True)]
    assert sum(changed) == 1 and len(changed) == (3 if method == "shards" else 1)
    world.delete("p5")
    never = world.register("of_bytes", method, name="never", options=OPTIONS[method], leave_out_forgotten=True)
    world.work(never)
    assert published(world, never) == second
    claim = Claim.from_json(world.head(model_id).claim)
    assert (claim.guarantee, claim.updates) == (Guarantee.EXACT, 1)
    assert any("byte for byte on one platform" in each for each in claim.assumptions)
    assert any("may be values of samples" in each for each in claim.assumptions)


def test_other_libraries_end_in_a_new_generation_and_never_in_a_mix(world: World) -> None:
    options = {"shards": 3}
    model_id = world.live("of_bytes", "shards", options=options, fallback="retrain")
    before = world.head(model_id)
    with world.database.write() as session:
        generation = session.get_one(Generation, before.generation_id)
        assert generation.manifest is not None
        libraries = generation.manifest["libraries"]
        assert {"numpy", "numpy wheel", "instructions", "threads"} <= libraries.keys()
        generation.manifest = {**generation.manifest, "libraries": {**libraries, "numpy": "1.0"}}
    (found,) = [each for each in doctor.examine(world.settings) if each.name == "generation of m"]
    assert not found.well and "numpy 1.0" in found.what
    request = world.delete("p5")
    world.work(model_id)
    assert world.task(request).reason == "awaiting_retrain"
    world.configured().work(model_id)
    now = world.head(model_id)
    assert now.generation_id != before.generation_id and world.task(request).status == "completed"


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ("pickle.dumps({'a': 1})", "a pickle, which runs code"),
        ("'text'", "returned a str"),
    ],
)
def test_what_is_no_safe_file_is_refused(world: World, tmp_path: Path, made: str, said: str) -> None:
    source = (RECIPES / "of_bytes.py").read_text().replace("import json\n", "import json\nimport pickle\n")
    source = source.replace("    people = len(run", f"    return {made}\n    people = len(run")
    (tmp_path / "planted.py").write_text(source)
    here = world.configured(recipes=tmp_path)
    model_id = here.register("planted", "retrain")
    here.work(model_id)
    assert said in (here.model(model_id).reason or "")


def test_a_merge_that_keeps_its_first_file_does_not_publish_it_again(world: World, tmp_path: Path) -> None:
    source = (RECIPES / "of_bytes.py").read_text().replace("def merge(", "KEPT: list[bytes] = []\n\n\ndef once(")
    (tmp_path / "keeping.py").write_text(source.replace("def recipe()", KEEPING))
    here = world.configured(recipes=tmp_path)
    model_id, worker, files = here.live("keeping", "shards", options={"shards": 3}), here.worker(), set()
    for person in ("p5", "p6"):  # the second update finds the model that the first one opened
        here.delete(person)
        worker.work(model_id)
        files.add(published(here, model_id))
    assert here.head(model_id).number == 3 and len(files) == 2


@pytest.mark.parametrize(("method", "said"), [("late", "shards or retrain"), ("newton", "Choose shards or retrain")])
def test_methods_that_need_more_than_bytes_say_so(world: World, method: str, said: str) -> None:
    model_id = world.register("of_bytes", method)
    world.work(model_id)
    assert said in (world.model(model_id).reason or "")


def test_a_wheel_is_known_by_its_files() -> None:
    assert len(manifest._wheel("numpy")) == 64
    assert manifest._wheel("numpy") != manifest._wheel("torch")
