"""What a recipe with rows may not do, and what a refusal says: what happened, where, and what to write instead."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load

from expunge_workers.runtime import world_model, worlds
from expunge_workers.runtime.walls import WITHOUT_NAMESPACES, Probe
from tests.workers.rows.data import ALL, APART, forget, lay_out, model_of, published, trained_on
from tests.workers.rows.test_judge import PLAIN as HEAD
from tests.workers.rows.test_methods import NETWORK
from tests.workers.runtime.template import unreachable
from tests.workers.worlds import World


def refused(world: World, method: str = "retrain", **policy: Any) -> str:
    """Return why a registration of the recipe ``rows`` is refused."""
    model = world.register("rows", method, **policy)
    world.work(model)
    assert world.model(model).status == "refused"
    return str(world.model(model).reason)


def with_line(line: str, recipe: str = ALL) -> str:
    return recipe.replace("    frame = rows.pandas()", f"    {line}\n    frame = rows.pandas()")


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        (
            with_line('open("people.csv")'),
            ("opened a file at line 7 of rows.py", "ul.table('people.csv'", "ul.public("),
        ),
        (with_line("import os; os._exit(3)"), ("raised SystemExit",)),
        (with_line("raise KeyError('p7')"), ("raised KeyError at line 7 of rows.py",)),
        (with_line("rows['z']"), ("no column 'z'", "id, person, x, y, word")),
        (ALL.replace("ul.Published(", "dict("), ("returned a dict", "Return ul.Published")),
        (ALL.replace('"people.csv"', '"gone.csv"'), ("no file 'gone.csv'",)),
        (ALL.replace('"people.csv"', '"../people.csv"'), ("../people.csv", "not one beneath the recipe's folder")),
        (ALL.replace('"people.csv"', '"@acme/people.csv"'), ("@acme/people.csv", "another tenant")),
        (
            ALL.replace('person="person"', 'person=ul.via("@acme/people.csv", "id", "person")'),
            ("@acme/people.csv", "another tenant"),
        ),
        (
            ALL.replace('ul.table("people.csv"', 'ul.folder(".", index="@acme/people.csv", file="word"'),
            ("not one beneath",),
        ),
        (
            ALL.replace('ul.table("people.csv"', 'ul.folder("letters", index="@acme/people.csv", file="word"'),
            ("@acme/people.csv", "another tenant"),
        ),
        (
            ALL.replace('ul.table("people.csv"', 'ul.arrays(names="people.csv", a="@acme/a.npy"'),
            ("@acme/a.npy", "another tenant"),
        ),
        (ALL.replace('person="person"', 'person="name"'), ("lacks the columns name",)),
        (ALL.replace("rows: ul.Rows = ul.table", "x, rows: ul.Rows = ul.table"), ("parameter 'x'",)),
        (ALL.replace("model.json", "model.pkl"), ("pickled",)),
    ],
    ids=lambda value: value[0][:30] if isinstance(value, tuple) else "",
)
def test_a_registration_says_why(world: World, folder: Path, recipe: str, words: tuple[str, ...]) -> None:
    lay_out(folder, recipe=recipe)
    reason = refused(world.configured(recipes=folder))
    assert all(word in reason for word in words), reason


def test_methods_that_need_samples_and_a_late_that_never_goes_on_are_refused(world: World, folder: Path) -> None:
    lay_out(folder, recipe=ALL.replace(", run: ul.TrainingRun = ul.run()", "").replace("run.start is None", "True"))
    world = world.configured(recipes=folder)
    assert "choose retrain, shards or late" in refused(world, "newton")


def test_a_file_of_the_service_is_no_source(world: World, folder: Path) -> None:
    lay_out(folder, recipe=ALL)
    home = folder / "home"
    home.mkdir()
    (home / "people.csv").write_bytes((folder / "people.csv").read_bytes())
    world = world.configured(recipes=folder, home=home)
    (folder / "rows.py").write_text(ALL.replace('"people.csv"', '"home/people.csv"'))
    assert "files of the service" in refused(world)


def test_a_public_file_is_the_declared_one_or_the_training_is_refused(world: World, folder: Path) -> None:
    words = b"w1\nw2\n"
    digest = hashlib.sha256(words).hexdigest()
    recipe = ALL.replace(", run:", f', words=ul.public("words.txt", "{digest}"), run:').replace(
        "sorted(frame.word.unique())", "words.read_text().split()"
    )
    lay_out(folder, recipe=recipe)
    (folder / "words.txt").write_bytes(words)
    world = world.configured(recipes=folder)
    held = world.live("rows", "retrain")
    assert model_of(world, held)["words"] == ["w1", "w2"]
    record = world.head(held).claim["world"]
    assert record["public_files"] == [{"name": "words.txt", "sha256": digest}]
    (folder / "words.txt").write_bytes(b"another")
    request = world.delete("p3")
    world.work(held)
    task = world.task(request)
    assert (task.status, task.reason) == ("blocked", "recipe_failed")
    (folder / "words.txt").write_bytes(words)


def test_a_training_that_does_not_repeat_is_served_and_says_so(world: World, folder: Path) -> None:
    world = world.configured(recipes=folder, trial_seconds=60)
    lay_out(folder, recipe=with_line("import time; print(time.time())"))
    claim = world.head(world.live("rows", "retrain", name="repeats")).claim
    assert claim["deterministic"] and claim["world"]["repeats"] is True
    lay_out(folder, recipe=with_line("import time; now = time.time()").replace('"start": start', '"start": now'))
    again = world.live("rows", "retrain", name="differs")
    claim = world.head(again).claim
    assert not claim["deterministic"] and claim["world"]["repeats"] is False
    assert any("different" in line for line in claim["tried"])
    forget(world, again, 3)
    assert world.head(again).claim["world"]["repeats"] is False


def test_behind_landlock_alone_a_claim_is_the_operators_word(
    world: World, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if reason := unreachable():
        pytest.skip(reason)
    lay_out(folder)
    world = world.configured(recipes=folder)
    weaker = worlds.Template.start()
    weaker.probe = Probe(WITHOUT_NAMESPACES)
    monkeypatch.setattr(worlds, "_templates", [weaker])
    held = world.live("rows", "retrain", name="held")
    forget(world, held, trained_on(world)[0])
    claim = world.head(held).claim
    assert claim["operators_word"] and claim["world"]["walls"] == "landlock alone"
    assert any("opened nothing else is the operator's word" in line for line in claim["declared"])
    weaker.kill()


def test_a_shared_secret_decides_who_is_apart_and_no_model_does(world: World, folder: Path) -> None:
    lay_out(folder, recipe=APART)
    world = world.configured(recipes=folder)
    first, second = (world.live("rows", "retrain", name=name) for name in ("first", "second"))
    assert published(world, first) == published(world, second)


def test_an_answer_that_cannot_be_read_is_the_recipes_or_ours(
    world: World, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A judge runs no code of the recipe."""
    silent = "from expunge_workers.runtime import model_tasks\n\nmodel_tasks.TASKS['prepare'] = lambda task: ({}, {})\n"
    lay_out(folder, recipe=silent + NETWORK)
    world = world.configured(recipes=folder)
    assert "The recipe's process gave no state that can be read. Let the recipe" in refused(world, "mini")

    def cut(data: bytes) -> dict[str, torch.Tensor]:
        tensors = load(data)
        return {name: value for name, value in tensors.items() if name != "weights"}

    monkeypatch.setattr(world_model, "load_tensors", cut)
    lay_out(folder, recipe=HEAD)
    assert "The fault is in Expunge, and not in the recipe." in refused(world, "newton", name="judged")
