"""A model that is bytes, through the service: published as it is, forgotten exactly, never a pickle, never a mix."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from expunge.workers import doctor
from expunge.workers.runtime.heartbeat import HeartbeatSender
from expunge.workers.storage import environment
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


def test_the_doctor_asks_the_workers_for_their_threads_and_not_its_own_shell(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    world.live("of_bytes", "retrain")
    world.pulse().beat()
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    (finding,) = [each for each in doctor.examine(world.settings) if each.name == "generation of m"]
    assert finding.well and "again" not in finding.what
    HeartbeatSender.of(replace(world.process, owner="another"), "worker").beat()
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (finding,) = [each for each in doctor.examine(world.settings) if each.name == "generation of m"]
    assert finding.well and "trains the whole model again" in finding.what and "threads 1, now 7" in finding.what


def test_without_a_worker_the_doctor_judges_no_threads(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    world.live("of_bytes", "retrain")
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    (finding,) = [each for each in doctor.examine(world.settings) if each.name == "generation of m"]
    assert finding.well and "again" not in finding.what


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ("pickle.dumps({'a': 1})", "no format that is known to run no code"),
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


def test_a_format_that_the_recipe_names_waits_for_the_operator_and_is_declared(world: World, tmp_path: Path) -> None:
    source = (RECIPES / "of_bytes.py").read_text().replace('suffix="means.json"', 'suffix="means.json", format="means"')
    source = source.replace('return json.dumps({"members": [means]', 'return b" " + json.dumps({"members": [means]')
    (tmp_path / "named.py").write_text(source)
    here = world.configured(recipes=tmp_path)
    model_id = here.register("named", "retrain")
    here.work(model_id)
    assert "EXPUNGE_ARTEFACT_FORMATS=means" in (here.model(model_id).reason or "")
    there = world.configured(recipes=tmp_path, artefact_formats="gguf, means")
    model_id = there.live("named", "retrain", name="admitted")
    claim = Claim.from_json(there.head(model_id).claim)
    assert any("of the format means" in sentence for sentence in claim.declared)
    assert not any("of the format" in sentence for sentence in (*claim.checked, *claim.assumptions))


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
    assert len(environment._wheel("numpy")) == 64
    assert environment._wheel("numpy") != environment._wheel("torch")
