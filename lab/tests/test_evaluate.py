"""`python -m expunge_lab.evaluate`: a table, JSON and a plot for a recipe, without a service."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from expunge_lab.evaluate import main, support_vectors
from expunge_lab.recipe import load_recipe
from expunge_service.infra.settings import Settings
from tests.workers.rows.data import write_csv

ROOT = Path(__file__).parents[2]
NETWORK = ROOT / "tests" / "workers" / "recipes" / "network.py"

RECIPE = """
import torch, unlearning as ul

FEATURES = [f"f{number}" for number in range(5)]

def both(rows):
    return rows.tensor(*FEATURES).float(), rows.tensor("label")

def recipe(rows: ul.Rows = ul.table("small.csv", person="person", id="id", aside=0.35)) -> ul.Recipe:
    return ul.Recipe(
        model=lambda: torch.nn.Linear(5, 2, bias=False),
        samples=rows.samples(*both(rows), at=rows["__row"]),
        holdout=both,
        loss="cross_entropy",
        training=ul.Training(epochs=3, weight_decay=0.05, converge=1e-8),
    )
"""


def rows_of_thirty_people() -> Iterator[dict[str, object]]:
    """Yield three rows each; of thirty people, twenty are trained on."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(90, 5, generator=generator)
    y = (x[:, 0] + 0.5 * torch.randn(90, generator=generator) > 0).long()
    for place, (features, label) in enumerate(zip(x.tolist(), y.tolist(), strict=True)):
        named = {"id": f"s{place}", "person": f"person-{place // 3}", "label": label}
        yield named | {f"f{number}": value for number, value in enumerate(features)}


QUICK = ["--seeds", "2", "--shadows", "4", "--trials", "3", "--device", "cpu"]
NO_PLOT = [*QUICK, "--no-plot"]


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "small.py"
    path.write_text(RECIPE)
    write_csv(tmp_path / "small.csv", rows_of_thirty_people())
    return path


@pytest.mark.parametrize(
    "names",
    [
        {"untouched", "retrain", "late", "newton", "rewind"},
        pytest.param(
            {"untouched", "retrain", "late", "shards", "recollection", "newton", "mini", "rewind", "safe", "cns"},
            marks=pytest.mark.drill,
        ),
    ],
    ids=["five", "all"],
)
def test_methods_get_a_row_for_each_seed_as_json_and_a_plot_as_png(
    recipe: Path, tmp_path: Path, names: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    plot = tmp_path / "plots" / "small.png"
    chosen = ["--methods", ",".join(sorted(names - {"untouched"})), "--forget", "10%,20%"]
    assert main(["--recipe", str(recipe), *QUICK, *chosen, "--json", "--plot", str(plot)]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {(row["method"], row["seed"], row["forget_fraction"]) for row in rows} == {
        (name, seed, share) for name in names for seed in (0, 1) for share in (0.1, 0.2)
    }
    by_method = {row["method"]: row for row in rows if row["seed"] == 0 and row["forget_fraction"] == 0.1}
    assert by_method["retrain"]["distance_to_retrain"] == 0.0
    assert by_method["retrain"]["claim"]["guarantee"] == "exact"
    assert by_method["newton"]["claim"]["guarantee"] == "proved" and by_method["newton"]["claim"]["epsilon"] < 1
    assert by_method["newton"]["claim"]["samples"] == 6 and by_method["newton"]["claim"]["people"] == 2
    assert by_method["rewind"]["refused"].startswith("A model that was trained to convergence")
    assert "`expunge check PATH --measure` measures both" in by_method["late"]["refused"]
    data = plot.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert min(struct.unpack(">II", data[16:24])) > 300


def test_the_table_names_methods_and_refusals(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--recipe", str(recipe), *NO_PLOT, "--methods", "newton,rewind"]) == 0
    shown = capsys.readouterr().out
    assert "newton" in shown and "untouched" in shown and "proved" in shown
    assert shown.count("rewind: A model that was trained to convergence") == 1


def test_a_stream_has_a_row_for_each_round(recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plot = tmp_path / "stream.png"
    arguments = ["--recipe", str(recipe), *QUICK, "--methods", "newton", "--stream", "3x6", "--json"]
    assert main([*arguments, "--plot", str(plot)]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["seed"], row["round"], row["m"]) for row in rows] == [
        (seed, turn, 6 * turn) for seed in (0, 1) for turn in (1, 2, 3)
    ]
    epsilons = [row["claim"]["epsilon"] for row in rows if row["seed"] == 0 and row["method"] == "newton"]
    assert epsilons == sorted(set(epsilons))  # mu^2 adds from release to release
    assert plot.stat().st_size > 1000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--methods", "magic"], "method is 'magic'. Allowed:"),
        (["--forget", "lots"], "Write 5% or 0.05"),
        (["--forget", "150%"], "Each must lie between 0 and 1"),
        (["--forget", "99.9%"], "leaves none"),
        (["--stream", "20"], "Write rounds x samples"),
        (["--epsilon", "-1"], "epsilon is -1.0"),
        (["--shadows", "3"], "even number"),
        (["--options", "[]"], "must be a JSON object"),
        (["--options", "{"], "must be a JSON object"),
        (["--options", '{"newton": {"speed": 1}}'], "newton has no option 'speed'"),
        (["--seeds", "0"], "seeds is empty"),
        (["--comparators", "magic"], "There is no comparator 'magic'"),
        (["--comparators", "scrub", "--options", '{"scrub": {"speed": 1}}'], "scrub has no option 'speed'"),
        (["--class", "1"], "--class is given without --stream"),
        (["--stream", "9x9", "--class", "1"], "9 rounds of 9 are asked for"),
        (["--u-lira", "7"], "Use an even number of at least 8"),
        (["--klom", "2"], "at least 3 models of each kind"),
    ],
)
def test_a_wrong_argument_is_one_line_and_a_hint(
    recipe: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    base = ["--recipe", str(recipe), *NO_PLOT, "--methods", "newton"]
    assert main([*base, *arguments]) == 2
    told = capsys.readouterr().err
    assert message in " ".join(told.split())
    assert "Traceback" not in told


def test_a_missing_recipe_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--recipe", str(tmp_path / "nothing.py"), *NO_PLOT]) == 2
    assert "no recipe 'nothing'" in " ".join(capsys.readouterr().err.split())


def test_a_required_guarantee_that_a_method_lacks_is_its_refusal(
    recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--recipe", str(recipe), *NO_PLOT, "--methods", "newton", "--guarantee", "exact", "--json"]) == 0
    rows = [row for row in json.loads(capsys.readouterr().out) if row["method"] == "newton"]
    assert all(row["refused"].startswith("newton is never exact") for row in rows)


def test_the_support_vectors_separate_a_ring_from_its_middle() -> None:
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(400, 2, generator=generator, dtype=torch.float64)
    labels = (points.norm(dim=1) > 1.2).double()
    scores = support_vectors(points[:200], labels[:200], points[200:])
    assert float(((scores > 0).double() == labels[200:]).double().mean()) > 0.9


def test_the_digits_forget_one_percent_with_a_proof_at_small_cost(capsys: pytest.CaptureFixture[str]) -> None:
    quick = ["--seeds", "3", "--shadows", "0", "--trials", "0", "--device", "cpu", "--no-plot", "--json"]
    arguments = ["--recipe", str(ROOT / "examples/digits"), "--forget", "1%", "--guarantee", "proved"]
    assert main([*arguments, "--methods", "newton,recollection", *quick]) == 0
    rows = json.loads(capsys.readouterr().out)
    before = {row["seed"]: row["test_accuracy"] for row in rows if row["method"] == "untouched"}
    proved = [row for row in rows if row["method"] != "untouched"]
    assert len(proved) == 6
    for row in proved:
        assert (row["claim"]["guarantee"], row["claim"]["delta"]) == ("proved", 1e-5)
        assert row["claim"]["epsilon"] <= 1.0
        assert before[row["seed"]] >= 0.9
        assert row["published_accuracy"] >= before[row["seed"]] - 0.005


def test_rewind_serves_the_digits_that_were_stopped_early(capsys: pytest.CaptureFixture[str]) -> None:
    quick = ["--seeds", "1", "--shadows", "0", "--trials", "0", "--device", "cpu", "--no-plot", "--json"]
    assert main(["--recipe", str(ROOT / "examples/digits/descent.py"), "--methods", "rewind", *quick]) == 0
    [row] = [row for row in json.loads(capsys.readouterr().out) if row["method"] == "rewind"]
    assert row["refused"] is None and row["distance_left"] < 1.0


def test_methods_that_train_in_parts_say_where_they_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    chosen = ["--methods", "retrain,late,shards", "--seeds", "1", "--shadows", "0", "--trials", "2", "--forget", "4%"]
    assert main(["--recipe", str(NETWORK), *chosen, "--device", "cpu", "--no-plot", "--json"]) == 0
    _, retrain, *others = json.loads(capsys.readouterr().out)
    assert (retrain["method"], retrain["refused"], retrain["distance_to_retrain"]) == ("retrain", None, 0.0)
    assert [row["method"] for row in others] == ["late", "shards"]
    assert all("`expunge check PATH --measure` measures both" in row["refused"] for row in others)


def test_comparators_stand_beside_the_methods_and_claim_nothing(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    chosen = [
        "--methods",
        "retrain,newton",
        "--forget",
        "20%",
        "--comparators",
        "fine_tune,scrub",
        "--report",
        str(page),
    ]
    assert main(["--recipe", str(recipe), *NO_PLOT, *chosen, "--json"]) == 0
    told = capsys.readouterr()
    rows = [row for row in json.loads(told.out) if row["seed"] == 0]
    assert [row["method"] for row in rows] == ["untouched", "retrain", "newton", "fine_tune", "scrub"]
    assert [row["claim"]["guarantee"] for row in rows] == ["none", "exact", "proved", "none", "none"]
    assert all(row["unseen_auc"] is not None and row["two_model_auc"] is not None for row in rows)
    assert [row["average_rank"] is None for row in rows] == [True, True, False, False, False]
    assert rows[1]["loss_pearson"] == pytest.approx(1.0) and rows[0]["loss_pearson"] is None
    assert rows[1]["divergence"] == pytest.approx(0.0, abs=1e-9) and rows[0]["divergence"] > 0.0
    assert "At least 12 trainings" in " ".join(told.err.split()) and "The first took" in told.err
    written = page.read_text()
    assert "fine_tune (baseline)" in written and "newton (baseline)" not in written
    assert "--comparators fine_tune,scrub" in written


def test_no_policy_can_name_a_comparator(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--recipe", str(recipe), *NO_PLOT, "--methods", "scrub"]) == 2
    assert "method is 'scrub'. Allowed:" in " ".join(capsys.readouterr().err.split())


def test_a_stream_of_a_class_forgets_that_class_and_adds_up_its_regret(
    recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = ["--methods", "retrain", "--comparators", "fine_tune", "--stream", "3x5", "--class", "1"]
    assert main(["--recipe", str(recipe), *NO_PLOT, *chosen, "--json"]) == 0
    rows = [row for row in json.loads(capsys.readouterr().out) if row["seed"] == 0]
    tuned = [row for row in rows if row["method"] == "fine_tune"]
    assert [row["m"] for row in tuned] == [5, 10, 15]
    regrets = [row["dynamic_regret"] for row in tuned]
    assert regrets == pytest.approx([sum(row["divergence"] for row in tuned[: turn + 1]) for turn in range(3)])
    assert regrets == sorted(regrets) and regrets[0] > 0.0
    last = {row["method"]: row for row in rows if row["round"] == 3}
    holdout = load_recipe(recipe, Settings()).recipe.holdout_tensors[1]
    share = float((holdout == 1).double().mean())
    for row in last.values():
        both = share * row["class_accuracy"] + (1 - share) * row["other_classes_accuracy"]
        assert row["test_accuracy"] == pytest.approx(both)
    assert last["retrain"]["dynamic_regret"] == pytest.approx(0.0, abs=1e-9)


def test_many_trainings_are_made_when_they_are_asked_for(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quick = ["--seeds", "1", "--shadows", "0", "--trials", "0", "--device", "cpu", "--no-plot", "--json"]
    chosen = ["--methods", "retrain", "--forget", "20%", "--u-lira", "8", "--klom", "3"]
    assert main(["--recipe", str(recipe), *quick, *chosen]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert all(0.0 <= row["u_lira_accuracy"] <= 1.0 for row in rows)
    assert [row["klom"] for row in rows] == [None, None]  # convex, to its minimum, without noise: no randomness
