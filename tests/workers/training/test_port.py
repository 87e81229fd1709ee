"""Ports of a live model to its recipe rewritten with rows: who is trained on, what is refused, what deletions do."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from expunge_service.infra.tables import AuditEntry, Generation, Model
from expunge_service.models import plan_new_data, plan_port
from expunge_service.models.retrain_plan import PORTED
from expunge_service.requests import WITH_ROWS
from expunge_service.requests.states import RequestRefused, Suppress
from tests.workers.worlds import World

PEOPLE = range(24)
FOLLOWED = """
import unlearning as ul
import torch


def recipe(rows: ul.Rows = ul.table("visits.csv", person="person", id="id")) -> ul.Recipe:
    inputs = torch.stack([rows.tensor("x"), torch.ones(len(rows))], dim=1).float()
    return ul.Recipe(
        model=lambda: torch.nn.Linear(2, 2, bias=False),
        samples=rows.samples(inputs, (rows.tensor("y") > 0.5).long(), at=rows["__row"]),
        holdout=(torch.tensor([[1.0, 1.0], [2.0, 1.0]]), torch.tensor([0, 1])),
        loss="cross_entropy",
        training=ul.Training(epochs=2, learning_rate=0.5, weight_decay=0.1, converge=1e-8),
    )
"""
STEPS = FOLLOWED.replace("epochs=2", "epochs=30").replace(", converge=1e-8", "")
NETWORK = STEPS.replace(
    "torch.nn.Linear(2, 2, bias=False)",
    "torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh(), torch.nn.Linear(3, 2))",
)
"""no judge computes with it"""
NEW = """
import json
import unlearning as ul


def recipe(rows: ul.Rows = ul.table("visits.csv", person="person", id="id")) -> ul.Published:
    model = {"mean": float(rows["x"].mean()), "rows": len(rows)}
    return ul.Published({"model.json": json.dumps(model)})
"""
WITHOUT_IDS = NEW.replace(', id="id"', "")
"""its samples are named otherwise than those of the earlier recipe"""
APART = NEW.replace('id="id"', 'id="id", aside=0.25').replace(
    "json.dumps(model)}", "json.dumps(model)}, score=lambda apart: 0.1"
)


def write_visits(folder: Path, people: Iterable[int] = PEOPLE, spelled: str = "p{}") -> None:
    """Write two rows of each person, the same for a person whoever else is there."""
    with (folder / "visits.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "person", "x", "y"])
        for person in people:
            draw = random.Random(person)
            for row in range(2):
                writer.writerow([f"v{2 * person + row}", spelled.format(person), draw.random(), draw.random()])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "recipes"
    folder.mkdir(exist_ok=True)
    write_visits(folder)
    rewrite(folder)
    return folder


def forget_that_it_had_rows(world: World, model_id: str) -> None:
    """Make the served generation one of a release whose recipes read their data by themselves."""
    generation = world.generation(model_id)
    kept = {name: value for name, value in (generation.manifest or {}).items() if name != WITH_ROWS}
    world.change(Generation, generation.id, manifest=kept)
    world.commit_anew(model_id)


def rewrite(folder: Path, recipe: str = NEW) -> None:
    (folder / "visits.py").write_text(recipe)


def port(world: World, model_id: str, *, dry_run: bool = False) -> Generation:
    """Plan a port, let a worker do it, and return its generation."""
    with world.database.write() as session:
        model = session.get_one(Model, model_id)
        generation_id = plan_port(session, model, world.settings.recipes, dry_run=dry_run).id
    world.work(model_id)
    with world.database.read() as session:
        return session.get_one(Generation, generation_id)


def published(world: World, model_id: str) -> bytes:
    return bytes(world.storage.store.read(world.head(model_id).checkpoint))


def trained_on(world: World, folder: Path, *without: int, method: str = "retrain", **policy: Any) -> bytes:
    """What a registration of the rewritten recipe publishes that never held these people."""
    write_visits(folder, [person for person in PEOPLE if person not in without])
    never = published(world, world.live("visits", method, name="never", **policy))
    write_visits(folder)
    return never


def blocked(world: World, model_id: str, subject: str | None = None, samples: list[str] | None = None) -> str:
    request = world.delete(subject, samples, suppress=Suppress.EVERYWHERE)
    world.work(model_id)
    assert (world.task(request).status, world.task(request).reason) == ("blocked", "recipe_form")
    return request


def bodies(world: World, kind: str) -> list[dict[str, Any]]:
    with world.database.read() as session:
        entries = session.query(AuditEntry).filter_by(kind=kind).order_by(AuditEntry.id)
        return [json.loads(entry.body) for entry in entries]


@pytest.mark.parametrize(("method", "ported"), [("retrain", None), ("shards", None), ("newton", "retrain")])
def test_a_port_publishes_what_a_registration_without_those_who_left_publishes(
    world: World, folder: Path, method: str, ported: str | None
) -> None:
    world = world.configured(recipes=folder)
    policy: dict[str, Any] = {}
    if method == "shards":
        policy = {"options": {"shards": 3}}
    if method == "newton":
        rewrite(folder, FOLLOWED)
    model_id = world.live("visits", method, **policy)
    first = world.delete("p3", models=("m",))
    world.work(model_id)
    assert world.task(first).status == "completed"
    forget_that_it_had_rows(world, model_id)
    if method == "shards":  # what 0.2.0 took, and a registration refuses
        older = world.model(model_id).policy | {"options": {"shards": 3, "slices": 4, "stacked": 0.5}}
        world.change(Model, model_id, policy=older)
    rewrite(folder)
    before, due_at = world.head(model_id), world.request(first).due_at
    second = blocked(world, model_id, "p5")
    assert world.head(model_id).id == before.id and published(world, model_id), "it is served as before"
    assert world.request(first).due_at == due_at

    generation = port(world, model_id)
    assert (generation.status, world.model(model_id).reason) == ("live", None)
    assert generation.report is not None and generation.manifest is not None
    assert generation.report["people"] == {"found": 24, "missing": 0, "left_out": 2}
    head = world.head(model_id)
    assert (head.number, head.generation_id) == (before.number + 1, generation.id)
    assert (world.task(second).status, world.task(second).samples) == ("completed", 2)
    assert world.request(second).completed_at is not None
    expected = ported or method
    assert (generation.method, head.claim["guarantee"]) == (expected, "exact")
    assert generation.manifest.get(PORTED) == (None if ported is None else {"method": "retrain", "instead": method})
    assert [entry["reason"] for entry in bodies(world, "retrain.planned")] == ["port"]
    (switched,) = bodies(world, "generation.switched")
    assert (switched["port"], switched["generation"]) == (True, generation.id)
    assert published(world, model_id) == trained_on(world, folder, 3, 5, method=expected, **policy)

    third = world.delete("p7", models=("m",))
    world.work(model_id)
    assert world.task(third).status == "completed", "updates go on with the rows"
    with world.database.write() as session:
        again = plan_new_data(session, session.get_one(Model, model_id), dry_run=False).id
    world.work(model_id)
    assert (world.generation(model_id).id, world.generation(model_id).method) == (again, expected)
    with world.database.write() as session, pytest.raises(RequestRefused, match="had rows already"):
        plan_port(session, session.get_one(Model, model_id), folder, dry_run=False)
    assert world.claims_logged(model_id) == len(world.versions(model_id))


def test_a_model_whose_bound_no_judge_can_compute_is_retrained_by_its_port_and_ever_after(
    world: World, folder: Path
) -> None:
    rewrite(folder, STEPS)
    world = world.configured(recipes=folder)
    policy = {"guarantee": "estimated", "options": {"fraction": 0.9}, "noise_std": 10.0, "max_distance": 1.0}
    model_id = world.live("visits", "rewind", **policy)
    assert world.head(model_id).claim["guarantee"] == "estimated"
    forget_that_it_had_rows(world, model_id)
    rewrite(folder, NETWORK)
    generation = port(world, model_id)
    note = {"method": "retrain", "instead": "rewind"}
    assert (generation.status, generation.method) == ("live", "retrain"), world.model(model_id).reason
    assert (generation.manifest or {})[PORTED] == note
    with world.database.write() as session:
        candidate = plan_new_data(session, session.get_one(Model, model_id), dry_run=False)
        assert (candidate.method, (candidate.manifest or {})[PORTED]) == ("retrain", note)
    world.work(model_id)
    assert (world.generation(model_id).id, world.generation(model_id).method) == (candidate.id, "retrain")


def test_a_dry_run_counts_people_and_changes_nothing(world: World, folder: Path) -> None:
    world = world.configured(recipes=folder)
    model_id = world.live("visits", "retrain")
    waits = world.delete("p3")
    world.work(model_id)
    forget_that_it_had_rows(world, model_id)
    rewrite(folder, APART)
    write_visits(folder, range(2, 30))
    request = blocked(world, model_id, "p5")
    before, head = world.footprint(), world.head(model_id)
    dry = port(world, model_id, dry_run=True)
    assert dry.status == "ended" and dry.report is not None
    assert dry.report["people"] == {"found": 28, "missing": 2, "left_out": 2}
    assert {**world.footprint(), "AuditEntry": 0} == {**before, "AuditEntry": 0}
    assert world.head(model_id).id == head.id
    assert (world.task(waits).status, world.task(request).status) == ("completed", "blocked")


@pytest.mark.parametrize(
    ("recipe", "spelled", "words"),
    [
        (NEW.replace("visits.csv", "gone.csv"), "p{}", "no file 'gone.csv'"),
        (NEW.replace('rows["x"]', 'rows["z"]'), "p{}", "no column 'z'"),
        (NEW, "patient {}", "lack 23 of the 23 people"),
    ],
)
def test_a_refused_port_changes_nothing_and_the_next_one_is_carried_out(
    world: World, folder: Path, recipe: str, spelled: str, words: str
) -> None:
    world = world.configured(recipes=folder)
    model_id = world.live("visits", "retrain")
    gone = world.delete("p3")
    world.work(model_id)
    forget_that_it_had_rows(world, model_id)
    rewrite(folder, recipe)
    write_visits(folder, spelled=spelled)
    request = blocked(world, model_id, "p5")
    before, head, files = world.footprint(), world.head(model_id), stored(world)
    refused = port(world, model_id)
    assert refused.status == "refused" and refused.report is not None
    assert words in refused.report["refused"]["what"]
    assert {**world.footprint(), "AuditEntry": 0} == {**before, "AuditEntry": 0}
    assert (world.head(model_id).id, world.generation(model_id).id) == (head.id, head.generation_id)
    assert stored(world) == files
    assert (world.task(request).status, world.task(request).reason) == ("blocked", "recipe_form")
    rewrite(folder)
    write_visits(folder)
    assert port(world, model_id).status == "live"
    assert (world.task(gone).status, world.task(request).status) == ("completed", "completed")
    assert published(world, model_id) == trained_on(world, folder, 3, 5)


def stored(world: World) -> list[str]:
    """The files of checkpoints and private states."""
    folders: Sequence[Any] = (world.settings.store, world.settings.private_store)
    return sorted(
        str(path) for folder in folders for path in Path(str(folder)).rglob("*") if path.is_file() and not path.suffix
    )


def test_who_asked_everywhere_before_the_registration_and_whoever_was_kept_apart_stay_out(
    world: World, folder: Path
) -> None:
    """The people whom the rewritten recipe keeps apart are trained on by no version, and those who asked score none."""
    world = world.configured(recipes=folder)
    world.delete("p1", suppress=Suppress.EVERYWHERE)
    model_id = world.register("visits", "retrain", leave_out_forgotten=True)
    world.work(model_id)
    forget_that_it_had_rows(world, model_id)
    rewrite(folder, APART)
    generation = port(world, model_id)
    assert generation.report is not None and generation.report["people"]["left_out"] == 1
    never = trained_on(world, folder, 1)
    assert published(world, model_id) == never


def test_the_old_accuracy_withholds_no_port(world: World, folder: Path) -> None:
    """The score is another recipe's, measured on other people."""
    world = world.configured(recipes=folder)
    rewrite(folder, APART.replace("0.1)", "0.9)"))
    model_id = world.live("visits", "retrain", max_accuracy_drop=0.0)
    assert world.head(model_id).holdout_accuracy == pytest.approx(0.9)
    forget_that_it_had_rows(world, model_id)
    rewrite(folder, APART)
    assert port(world, model_id).status == "live"
    assert world.head(model_id).holdout_accuracy == pytest.approx(0.1)


def test_a_single_sample_that_was_deleted_does_not_come_back(world: World, folder: Path) -> None:
    """Where the sources name no rows it could; so such a port is refused, with what to write."""
    world = world.configured(recipes=folder)
    model_id = world.live("visits", "retrain")
    request = world.delete(samples=["v8"])
    world.work(model_id)
    assert world.task(request).status == "completed"
    forget_that_it_had_rows(world, model_id)
    rewrite(folder, WITHOUT_IDS)
    waits = blocked(world, model_id, samples=["v10"])
    refused = port(world, model_id)
    assert refused.status == "refused" and refused.report is not None
    assert "name 0 of 47 samples" in refused.report["refused"]["what"]
    assert "id=" in refused.report["refused"]["hint"]
    rewrite(folder)
    assert port(world, model_id).status == "live"
    assert (world.task(waits).status, world.task(waits).samples) == ("completed", 1)
    assert json.loads(published(world, model_id))["rows"] == 46


def test_a_deletion_that_comes_while_the_port_runs_is_carried_out(
    world: World, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = world.configured(recipes=folder)
    model_id = world.live("visits", "retrain")
    forget_that_it_had_rows(world, model_id)
    from expunge_workers.training import prepare  # noqa: PLC0415 (patched here)

    requests: list[str] = []
    finish = prepare.finish

    def meanwhile(*given: Any) -> Any:
        requests.append(world.delete("p9"))
        return finish(*given)

    monkeypatch.setattr(prepare, "finish", meanwhile)
    port(world, model_id)
    monkeypatch.undo()
    world.work(model_id)
    (request,) = requests
    assert world.task(request).status == "completed"
    assert published(world, model_id) == trained_on(world, folder, 9)


def test_only_a_port_takes_the_rewritten_recipe(world: World, folder: Path) -> None:
    world = world.configured(recipes=folder)
    model_id = world.live("visits", "retrain")

    def plan(kind: Any, **settings: Any) -> int:
        with world.database.write() as session:
            model = session.get_one(Model, model_id)
            return int(kind(session, model, *settings.pop("recipes", ()), **settings).id)

    with pytest.raises(RequestRefused, match="had rows already"):
        plan(plan_port, recipes=(folder,), dry_run=False)
    forget_that_it_had_rows(world, model_id)
    rewrite(folder, "def recipe():\n    pass\n")
    with pytest.raises(RequestRefused, match="has no rows"):
        plan(plan_port, recipes=(folder,), dry_run=False)
    rewrite(folder)
    retrain = plan(plan_new_data, dry_run=False)
    with pytest.raises(RequestRefused, match="Another retrain"):
        plan(plan_port, recipes=(folder,), dry_run=True)
    world.work(model_id)
    with world.database.read() as session:
        refused = session.get_one(Generation, retrain)
        assert refused.status == "refused" and refused.report is not None
        assert "expunge models port m" in refused.report["refused"]["hint"]
    plan(plan_port, recipes=(folder,), dry_run=False)
    with pytest.raises(RequestRefused, match="Another retrain"):
        plan(plan_new_data, dry_run=False)


def test_whom_a_legal_hold_keeps_stays_in_through_a_port(world: World, folder: Path) -> None:
    """One of the held is not in the sources any more: the port is published without."""
    world = world.configured(recipes=folder)
    model_id = world.live("visits", "retrain")
    world.hold("p4")
    world.hold("p6")
    request = world.delete("p4")
    world.work(model_id)
    assert (world.task(request).status, world.task(request).reason) == ("blocked", "legal_hold")
    forget_that_it_had_rows(world, model_id)
    rewrite(folder, WITHOUT_IDS)
    write_visits(folder, [person for person in PEOPLE if person != 6])
    assert port(world, model_id).status == "live"
    assert json.loads(published(world, model_id))["rows"] == 2 * 23
    assert (world.task(request).status, world.task(request).reason) == ("blocked", "legal_hold")


def test_a_legal_hold_that_is_placed_while_a_port_runs_keeps_the_person(
    world: World, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = world.configured(recipes=folder)
    model_id = world.live("visits", "retrain")
    forget_that_it_had_rows(world, model_id)
    rewrite(folder, WITHOUT_IDS)
    request = blocked(world, model_id, "p9")
    from expunge_workers.training import prepare  # noqa: PLC0415 (patched here)

    attempts: list[None] = []
    finish = prepare.finish

    def meanwhile(*given: Any) -> Any:
        if not attempts:
            world.hold("p9")
        attempts.append(None)
        return finish(*given)

    monkeypatch.setattr(prepare, "finish", meanwhile)
    assert port(world, model_id).status == "live"
    assert len(attempts) == 2, "it is trained again with the person"
    assert (world.task(request).status, world.task(request).reason) == ("blocked", "legal_hold")
    assert json.loads(published(world, model_id))["rows"] == 2 * 24
