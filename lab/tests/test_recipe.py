"""The laboratory loads recipes of both forms, and finds the same of the same people."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from expunge.service.infra.settings import Settings
from expunge.workers.check import __main__
from expunge_lab import advise, audit_epsilon, evaluate
from expunge_lab.recipe import load_recipe
from tests.workers.rows.data import APART, EVERYBODY, lay_out
from tests.workers.rows.test_judge import PLAIN as HEAD
from tests.workers.rows.test_methods import NETWORK, OLD_FORM
from tests.workers.worlds import TENANT, World
from unlearning.rows import is_aside
from unlearning.types import RecipeError, Refused

QUIET = ["--noise-std", "1e-6", "--max-distance", "1e-8"]
QUICK = ["--seeds", "1", "--shadows", "0", "--trials", "0", "--device", "cpu", "--no-plot", "--json"]
TRAINED_ON = {person for person in EVERYBODY if not is_aside((f"p{person}",), 0.2, b"", "aside")}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "recipes"


def both(folder: Path) -> tuple[Path, Path]:
    """The same network on the same people, with rows and in the old form."""
    lay_out(folder, recipe=NETWORK.replace('person="person"', 'person="person", id="id"'))
    (folder / "plain.py").write_text(OLD_FORM.format(trained_on=TRAINED_ON))
    return folder / "rows.py", folder / "plain.py"


def evaluated(recipe: Path, capsys: pytest.CaptureFixture[str], *methods: str) -> dict[str, dict[str, Any]]:
    arguments = ["--recipe", str(recipe), *QUICK, *QUIET, "--forget", "10%", "--methods", ",".join(methods)]
    assert evaluate.main(arguments) == 0
    return {row["method"]: row for row in json.loads(capsys.readouterr().out)}


def measured(recipe: Path, capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    arguments = [str(recipe), "--measure", "--seconds", "90", "--device", "cpu", "--json", *more]
    assert __main__.main(arguments) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)["measured"]
    return found


def test_both_forms_of_a_recipe_hold_the_same(folder: Path) -> None:
    with_rows, plain = (load_recipe(path, Settings()).recipe for path in both(folder))
    assert {names for names in with_rows.samples.people} == {(f"p{person}",) for person in TRAINED_ON}
    assert [*with_rows.samples.ids] == [*plain.samples.ids] and [*with_rows.samples.people] == [*plain.samples.people]
    for tensors in (
        zip(with_rows.samples.tensors(), plain.samples.tensors(), strict=True),
        zip(with_rows.holdout_tensors, plain.holdout_tensors, strict=True),
    ):
        assert all(torch.allclose(one, other) for one, other in tensors)


def test_both_forms_are_as_far_from_a_retraining(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    methods = ("retrain", "recollection", "mini")
    with_rows, plain = (evaluated(path, capsys, *methods) for path in both(folder))
    for name in methods:
        assert with_rows[name]["distance_left"] == pytest.approx(plain[name]["distance_left"], abs=1e-3)
        assert with_rows[name]["test_accuracy"] == pytest.approx(plain[name]["test_accuracy"], abs=0.04)
        assert with_rows[name]["claim"]["guarantee"] == plain[name]["claim"]["guarantee"]
    assert with_rows["recollection"]["distance_left"] < 0.5 < with_rows["untouched"]["distance_left"]


def test_both_forms_cost_the_same_in_counts(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A retrain of the new form is measured in a world, where it publishes a checkpoint."""
    methods = ("retrain", "recollection", "rewind")
    found = [measured(path, capsys, "--methods", ",".join(methods), *QUIET) for path in both(folder)]
    with_rows, plain = ({row["method"]: row for row in each["methods"]} for each in found)
    for name in methods:
        assert with_rows[name]["refused"] is None and plain[name]["refused"] is None
        assert with_rows[name]["guarantee"] == plain[name]["guarantee"]
        assert with_rows[name]["accuracy"] == pytest.approx(plain[name]["accuracy"], abs=0.04), name
        assert with_rows[name]["trainings_a_year"] == plain[name]["trainings_a_year"]
    assert with_rows["recollection"]["state_bytes"] == plain["recollection"]["state_bytes"]
    assert with_rows["retrain"]["update_retrainings"] == 1.0


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


def test_a_training_that_does_not_fit_into_the_time_says_so(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lay_out(
        folder, recipe=APART.replace("import json", "import json, time").replace("frame =", "time.sleep(3); frame =")
    )
    arguments = [str(folder / "rows.py"), "--measure", "--seconds", "1", "--device", "cpu", "--methods", "retrain"]
    assert __main__.main(arguments) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "A training on everybody takes more than 1 s. Give more time with --seconds." in told


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


FROZEN = HEAD.replace(
    "torch.nn.Flatten(), torch.nn.Linear(2, 2)",
    "torch.nn.Linear(2, 3).requires_grad_(False), torch.nn.Tanh(), torch.nn.Linear(3, 2)",
)
TANGENT = HEAD.replace("import torch", "import torch\nfrom unlearning.features.tangent import Tangent").replace(
    "lambda: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(2, 2)).double()",
    "lambda: Tangent(torch.nn.Linear(2, 2).double(), {'weight': torch.eye(2), 'bias': torch.ones(2)})",
)


def test_nothing_that_a_model_brings_along_has_to_be_declared(folder: Path) -> None:
    """In the service it follows from the rows of those who stay."""
    lay_out(folder, recipe=FROZEN)
    loaded = load_recipe(folder / "rows.py", Settings())
    assert loaded.judged and {name.partition(".")[0] for name in loaded.recipe.public} == {"0"}


@pytest.mark.parametrize("recipe", [NETWORK, TANGENT], ids=["network", "tangent"])
def test_without_a_judge_no_guarantee_but_none_is_asked_for(folder: Path, recipe: str) -> None:
    lay_out(folder, recipe=recipe)
    loaded = load_recipe(folder / "rows.py", Settings())
    assert (loaded.judged, loaded.guarantee(None), loaded.guarantee("exact")) == (False, "none", "exact")
    with pytest.raises(Refused, match="The guarantee proved is had with rows by a linear head"):
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
