"""The laboratory calls a recipe on its rows as a service does, and measures what it gives."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from expunge_lab import advise, audit_epsilon, evaluate
from expunge_lab.costs import measured as costs_of
from expunge_lab.recipe import load_recipe
from expunge_service.infra.settings import Settings
from expunge_workers.check import __main__
from expunge_workers.runtime.worlds import template
from tests.workers.rows.data import APART, EVERYBODY, lay_out, rows_of
from tests.workers.rows.test_judge import PLAIN as HEAD
from tests.workers.rows.test_methods import NETWORK
from tests.workers.worlds import TENANT, World
from unlearning.rows import is_aside
from unlearning.types import RecipeError, Refused

QUIET = ["--noise-std", "1e-6", "--max-distance", "1e-8"]
QUICK = ["--seeds", "1", "--shadows", "0", "--trials", "0", "--device", "cpu", "--no-plot", "--json"]
TRAINED_ON = {f"p{person}" for person in EVERYBODY if not is_aside((f"p{person}",), 0.2, b"", "aside")}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "recipes"


def evaluated(recipe: Path, capsys: pytest.CaptureFixture[str], *methods: str) -> dict[str, dict[str, Any]]:
    arguments = ["--recipe", str(recipe), *QUICK, *QUIET, "--forget", "10%", "--methods", ",".join(methods)]
    assert evaluate.main(arguments) == 0
    return {row["method"]: row for row in json.loads(capsys.readouterr().out)}


def measured(recipe: Path, capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    arguments = [str(recipe), "--measure", "--seconds", "90", "--device", "cpu", "--json", *more]
    assert __main__.main(arguments) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)["measured"]
    return found


def test_a_recipe_holds_the_samples_of_those_who_are_trained_on(folder: Path) -> None:
    """The others are its holdout, made by the function that it gives."""
    lay_out(folder, recipe=NETWORK.replace('person="person"', 'person="person", id="id"'))
    recipe = load_recipe(folder / "rows.py", Settings()).recipe
    rows = [*rows_of()]
    trained_on, apart = ([row for row in rows if (row["person"] in TRAINED_ON) is side] for side in (True, False))
    assert [*recipe.samples.ids] == [str(row["id"]) for row in trained_on]
    assert [*recipe.samples.people] == [(row["person"],) for row in trained_on]
    for some, (inputs, targets) in ((trained_on, recipe.samples.tensors()), (apart, recipe.holdout_tensors)):
        assert torch.equal(inputs, torch.tensor([[row["x"], row["y"]] for row in some]) / 4.0)
        assert targets.tolist() == [row["x"] > 3 for row in some]


def test_a_recipe_without_rows_is_refused(folder: Path) -> None:
    folder.mkdir()
    (folder / "plain.py").write_text("def recipe(): ...\n")
    with pytest.raises(Refused, match="recipe\\(\\) asks for no rows"):
        load_recipe(folder / "plain.py", Settings())


def test_methods_are_as_far_from_a_retraining_as_their_guarantee_says(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lay_out(folder, recipe=NETWORK)
    rows = evaluated(folder / "rows.py", capsys, "retrain", "recollection", "mini")
    assert (rows["retrain"]["distance_left"], rows["retrain"]["claim"]["guarantee"]) == (0.0, "exact")
    assert rows["recollection"]["distance_left"] < 0.5 < rows["untouched"]["distance_left"]
    assert {rows[name]["claim"]["guarantee"] for name in ("recollection", "mini")} == {"none"}


def test_a_retrain_is_measured_in_a_world_and_other_methods_here(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both train the same network on the same people, so that their accuracies agree."""
    lay_out(folder, recipe=NETWORK)
    found = measured(folder / "rows.py", capsys, "--methods", "retrain,recollection,rewind", *QUIET)
    rows = {row["method"]: row for row in found["methods"]}
    assert {name: row["guarantee"] for name, row in rows.items()} == {
        "retrain": "exact",
        "recollection": "none",
        "rewind": "none",
    }
    assert {row["refused"] for row in rows.values()} == {None}
    for name in ("recollection", "rewind"):
        assert rows[name]["accuracy"] == pytest.approx(rows["retrain"]["accuracy"], abs=0.04), name
    assert rows["retrain"]["update_retrainings"] == 1.0 and rows["recollection"]["trainings_a_year"] is None


def test_a_world_that_is_killed_is_no_traceback(folder: Path) -> None:
    """As the kernel kills what takes too much memory: here the template with its worlds, while one trains."""
    lay_out(folder, recipe=APART.replace("frame =", "__import__('time').sleep(60); frame ="))
    threading.Timer(1.0, template().kill).start()
    with pytest.raises(Refused, match=r"A training on everybody did not end: the process .* ended"):
        costs_of(folder / "rows.py", ["--methods", "retrain", "--device", "cpu"])


def test_too_little_memory_is_no_traceback(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lay_out(folder, recipe=APART.replace("frame =", "raise MemoryError; frame ="))
    assert __main__.main([str(folder / "rows.py"), "--measure", "--device", "cpu"]) == 1
    assert "FAIL the recipe runs: It did not end:" in capsys.readouterr().out


def test_a_method_that_lacks_memory_leaves_the_others(folder: Path) -> None:
    """Only the part of ``late`` that goes on takes too much here."""
    lay_out(folder, recipe=APART.replace("start =", "if run.start is not None: raise MemoryError\n    start =", 1))
    found = costs_of(folder / "rows.py", ["--methods", "retrain,late", "--device", "cpu"]).to_json()
    refused = {row["method"]: row["refused"] for row in found["methods"]}
    assert refused["retrain"] is None and "had too little memory" in refused["late"]


def test_a_head_with_a_scaler_has_retrain_shards_and_newton(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lay_out(folder, recipe=HEAD)
    found = measured(folder / "rows.py", capsys, "--methods", "newton,retrain,shards,late,recollection")
    rows = {row["method"]: row for row in found["methods"]}
    assert {name: rows[name]["guarantee"] for name in ("newton", "retrain", "shards")} == {
        "newton": "proved",
        "retrain": "exact",
        "shards": "exact",
    }
    for name in ("newton", "retrain", "shards"):
        known = (rows[name][figure] for figure in ("accuracy", "preparation", "update", "state_bytes", "break_even"))
        assert rows[name]["refused"] is None and None not in known
    assert "run=ul.run()" in rows["late"]["refused"]
    assert f"of the {3 * len(TRAINED_ON) - 3} samples of those who stay are others" in rows["recollection"]["refused"]
    assert found["advice"].startswith("Retrain nightly: it takes")


def test_of_a_recipe_that_trains_by_itself_the_parts_are_measured(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lay_out(folder, recipe=APART)
    found = measured(folder / "rows.py", capsys)
    rows = {row["method"]: row for row in found["methods"]}
    exact = {name for name, row in rows.items() if row["refused"] is None}
    assert exact == {"retrain", "shards", "late"}
    assert all(rows[name]["guarantee"] == "exact" and rows[name]["update"] > 0.0 for name in exact)
    assert rows["shards"]["preparation"] > rows["shards"]["update"]
    assert found["retraining_seconds"] == rows["retrain"]["update"]
    assert "recipe() returned a Published" in rows["newton"]["refused"]


def test_the_terminal_says_once_why_methods_are_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lay_out(folder, recipe=APART)
    arguments = [str(folder / "rows.py"), "--measure", "--seconds", "60", "--device", "cpu"]
    assert __main__.main([*arguments, "--methods", "retrain,newton,mini"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.count("newton, mini: recipe() returned a Published, and the method needs samples") == 1


def test_a_training_that_does_not_fit_into_the_time_says_so(folder: Path) -> None:
    slow = APART.replace("import json", "import json, time").replace("frame =", "time.sleep(3); frame =")
    lay_out(folder, recipe=slow)
    with pytest.raises(Refused, match="A training on everybody takes more than 1 s"):
        costs_of(folder / "rows.py", ["--seconds", "1", "--device", "cpu", "--methods", "retrain"])


def test_a_notebook_is_advised_too(folder: Path) -> None:
    lay_out(folder, recipe=APART)
    shown = str(advise(folder / "rows.py", seconds=60, methods="retrain,newton"))
    assert "retrain | exact" in shown and "recipe() returned a Published" in shown


def test_what_compares_weights_says_no_to_files(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lay_out(folder, recipe=APART)
    place = ["--recipe", str(folder / "rows.py")]
    for main, arguments in ((evaluate.main, QUICK), (audit_epsilon.main, ["--device", "cpu"])):
        assert main([*place, *arguments]) == 2
        told = " ".join(capsys.readouterr().err.split())
        assert "The recipe trains by itself" in told and "`expunge check PATH --measure` measures" in told


def test_claims_about_a_head_are_attacked(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lay_out(folder, recipe=HEAD)
    arguments = ["--recipe", str(folder / "rows.py"), "--methods", "newton", "--trials", "50", "--device", "cpu"]
    assert audit_epsilon.main([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {row["guarantee"] for row in found["rows"]} == {"proved"} and found["greatest_distance"]["newton"] < 1e-5


def test_a_retraining_with_mini_batches_is_the_one_that_exact_claims(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It draws its batches anew over who stays."""
    lay_out(folder, recipe=NETWORK)
    arguments = ["--recipe", str(folder / "rows.py"), "--methods", "retrain,mini", "--trials", "50", "--device", "cpu"]
    assert audit_epsilon.main([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["greatest_distance"] == {"retrain": 0.0}
    assert found["refused"]["mini"].startswith("The guarantee is none")


TANGENT = HEAD.replace("import torch", "import torch\nfrom unlearning.features.tangent import Tangent").replace(
    "lambda: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(2, 2)).double()",
    "lambda: Tangent(torch.nn.Linear(2, 2).double(), {'weight': torch.eye(2), 'bias': torch.ones(2)})",
)


STEPS = HEAD.replace("epochs=0, converge=1e-9", "epochs=5")


@pytest.mark.parametrize("recipe", [TANGENT, STEPS], ids=["tangent", "steps"])
def test_tangents_and_steps_of_a_head_have_a_judge(folder: Path, recipe: str) -> None:
    lay_out(folder, recipe=recipe)
    assert load_recipe(folder / "rows.py", Settings()).judged


def test_without_a_judge_no_guarantee_but_none_is_asked_for(folder: Path) -> None:
    lay_out(folder, recipe=NETWORK)
    loaded = load_recipe(folder / "rows.py", Settings())
    assert (loaded.judged, loaded.guarantee(None), loaded.guarantee("exact")) == (False, "none", "exact")
    with pytest.raises(Refused, match="The guarantee proved is a bound, and the code of this recipe would compute it"):
        loaded.guarantee("proved")


def test_a_model_that_raises_is_refused_with_its_line(folder: Path) -> None:
    lay_out(folder, recipe=NETWORK.replace("model=Net", "model=lambda: Net(3)"))
    with pytest.raises(Refused, match=r"TypeError at line 24 of rows\.py"):
        load_recipe(folder / "rows.py", Settings())


def test_a_holdout_of_nobody_is_named(folder: Path) -> None:
    lay_out(folder, recipe=HEAD.replace(", aside=0.2", ""))
    with pytest.raises(Refused, match="no source keeps any"):
        load_recipe(folder / "rows.py", Settings())


def test_sources_lie_in_the_folder_of_data_too(folder: Path, tmp_path: Path) -> None:
    lay_out(folder, recipe=HEAD)
    data = tmp_path / "data" / "default"
    data.mkdir(parents=True)
    (folder / "people.csv").rename(data / "people.csv")
    loaded = load_recipe(folder / "rows.py", Settings().model_copy(update={"data": data.parent}))
    assert len(loaded.recipe.samples) == 3 * len(TRAINED_ON)


def test_who_asked_is_in_no_rows_and_in_no_holdout(world: World, folder: Path) -> None:
    lay_out(folder, recipe=HEAD)
    before = load_recipe(folder / "rows.py", world.settings, TENANT).recipe
    trained_on = {person for names in before.samples.people for person in names}
    apart = {f"p{person}" for person in EVERYBODY} - trained_on
    world.delete(min(trained_on))
    world.delete(min(apart))
    after = load_recipe(folder / "rows.py", world.settings, TENANT).recipe
    assert {person for names in after.samples.people for person in names} == trained_on - {min(trained_on)}
    assert len(before.holdout_tensors[0]) - len(after.holdout_tensors[0]) == 3


def test_where_everybody_asked_nothing_is_measured(world: World, folder: Path) -> None:
    lay_out(folder, range(3), recipe=HEAD)
    for person in range(3):
        world.delete(f"p{person}")
    with pytest.raises((Refused, RecipeError)):
        load_recipe(folder / "rows.py", world.settings, TENANT)
