"""The table of the five papers: run small, its page and picture, and when a figure is bold."""

from __future__ import annotations

import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import benchmarks.five
from benchmarks.five import page, results
from benchmarks.five.adult import adult
from benchmarks.five.entrants import CALLED, ENTRANTS, NOTHING, RETRAINING, guarantee
from benchmarks.five.picture import picture
from benchmarks.five.settings import SETTINGS, Setting, digits_softmax
from benchmarks.five.table import MANNERS, measured
from unlearning import Problem, Recipe, Samples, Training
from unlearning.methods.rewind import Rewind

SEEDS = (0, 1)


pytestmark = pytest.mark.usefixtures("one_thread")


def recipe(training: Training) -> Recipe:
    """Return the digits' softmax regression of 200 samples of 20 people, and as many unseen ones."""
    whole = digits_softmax()
    names = [f"image-{place}" for place in range(200)]
    people = [f"person-{place % 20}" for place in range(200)]
    samples = Samples(names, people, whole.samples.inputs[:200], whole.samples.targets[:200])
    return replace(whole, samples=samples, holdout=tuple(part[:200] for part in whole.holdout), training=training)


@pytest.fixture(scope="module")
def table() -> dict[str, Any]:
    small = Setting("digits", "softmax", "a small run", digits_softmax)
    training = Training(epochs=10, learning_rate=1.0, weight_decay=1e-3)
    first, last = measured(small, recipe(training), (0.1,), SEEDS)
    assert (first["seeds"], last["seeds"]) == (1, 2)
    return last


def figures(case: dict[str, Any]) -> dict[str, dict[str, list[float]]]:
    return {row["name"]: row["figures"] for row in case["rows"]}


def test_each_entrant_has_a_row_in_each_case_with_a_figure_for_each_seed(table: dict[str, Any]) -> None:
    assert [case["manner"] for case in table["cases"]] == list(MANNERS)
    for case in table["cases"]:
        assert list(figures(case)) == [NOTHING, RETRAINING, *ENTRANTS]
        assert {len(values) for row in figures(case).values() for values in row.values()} == {len(SEEDS)}


def test_the_ends_of_the_scale_are_doing_nothing_and_retraining(table: dict[str, Any]) -> None:
    for case in table["cases"]:
        rows = figures(case)
        assert rows[NOTHING]["distance left"] == [1.0, 1.0] and rows[NOTHING]["seconds"] == [0.0, 0.0]
        assert rows[RETRAINING]["distance left"] == rows[RETRAINING]["disagreement"] == [0.0, 0.0]
        assert max(rows["HF, as served"]["distance left"]) < 0.2


def test_one_at_a_time_ends_where_together_does_for_methods_whose_order_does_not_matter(table: dict[str, Any]) -> None:
    together, apart = map(figures, table["cases"])
    for name in ("HF, as served", "R2D, as published and served", "Mini, as served"):
        assert apart[name]["distance left"] == pytest.approx(together[name]["distance left"], rel=1e-3)
    assert apart["SAFE, as published"]["distance left"] != together["gradient ascent"]["distance left"]


def test_a_refusal_is_the_row() -> None:
    small = Setting("digits", "softmax", "a small run", digits_softmax)
    training = Training(epochs=3, learning_rate=1.0, weight_decay=1e-2, converge=1e-6)
    (refusing,) = measured(small, recipe(training), (0.1,), (0,))
    name = "R2D, as published and served"
    rows = {row["name"]: row for row in refusing["cases"][0]["rows"]}
    refused = rows[name]["refused"]
    assert "converge" in refused and not rows[name]["figures"]
    assert not rows["CNS, as served"]["refused"]
    assert f"| {name} | refused: {refused} |" in page.page([refusing])
    assert "R2D" not in picture([refusing]) and "CNS" in picture([refusing])


def test_the_certificate_is_what_the_model_can_have(table: dict[str, Any]) -> None:
    stopped = Problem(recipe(Training(epochs=3, learning_rate=1.0, weight_decay=1e-2)))
    at_minimum = Problem(recipe(Training(epochs=3, learning_rate=1.0, weight_decay=1e-2, converge=1e-6)))
    for name in ("HF, as served", "CNS, as served"):
        assert guarantee(ENTRANTS[name], stopped) == table["costs"][name]["guarantee"] == "none"
        assert guarantee(ENTRANTS[name], at_minimum) == "proved"
    assert guarantee(Rewind(feature_norm=2.0), stopped) == "proved"


def test_the_page_and_its_picture_are_made_from_the_published_figures() -> None:
    tables = results.read()
    assert tables
    assert page.PAGE.read_text() == page.page(tables, results.read(results.AUDITS_PUBLISHED))
    assert page.PICTURE.read_text() == picture(tables)
    assert "](docs/five.svg)" in (results.ROOT / "README.md").read_text()


def test_every_published_setting_is_known_and_ran_as_many_seeds_as_it_says() -> None:
    for table in results.read():
        assert (table["data"], table["model"]) in {(setting.data, setting.model) for setting in SETTINGS}
        for case in table["cases"]:
            kept = [row for row in case["rows"] if not row["refused"]]
            assert {len(values) for row in kept for values in row["figures"].values()} == {table["seeds"]}


@pytest.mark.parametrize("paper", ["HF", "Mini", "SAFE"])
def test_ours_leaves_less_of_the_distance_than_as_published(paper: str) -> None:
    """What README and changelog say of all three data sets; measured anew, it must hold again."""
    tables = results.read()
    assert {table["data"] for table in tables} == {"digits", "mnist", "adult"}
    for case in (case for table in tables for case in table["cases"]):
        rows = {row["name"]: row["figures"]["distance left"] for row in case["rows"] if not row["refused"]}
        assert page.ahead(rows[f"{paper}, as served"], rows[f"{paper}, as published"])


def test_bold_is_ahead_of_every_other_by_twice_the_error() -> None:
    def row(name: str, *distances: float) -> dict[str, Any]:
        return {"name": name, "refused": "", "figures": {"distance left": list(distances)}}

    ends = [row(NOTHING, 1.0, 1.0, 1.0), row(RETRAINING, 0.0, 0.0, 0.0)]
    near, far, wide = row("near", 0.1, 0.11, 0.12), row("far", 0.2, 0.21, 0.22), row("wide", 0.0, 0.2, 0.4)
    assert page.best("distance left", [*ends, near, far]) == "near"
    assert page.best("distance left", [*ends, near, far, wide]) is None
    assert page.best("distance left", [*ends, row("worse", 1.2, 1.21, 1.22)]) is None
    pair = [row("wide", 0.01, 0.2, 0.4), row("nearer in each seed", 0.0, 0.19, 0.39)]
    assert page.best("distance left", [*ends, *pair]) == "nearer in each seed"
    assert page.error([0.1, 0.2, 0.3]) == pytest.approx(statistics.stdev([0.1, 0.2, 0.3]) / 3**0.5)


@pytest.mark.parametrize("data", ["mnist", "adult"])
def test_missing_data_are_named_and_a_part_can_be_chosen(data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCH_FIVE", data)
    monkeypatch.setenv(f"EXPUNGE_{data.upper()}", "/nowhere")
    (row,) = benchmarks.five.rows()
    assert row["sides"]["not_run"].startswith("unverified here: ") and row["value"] is None
    assert f"Set EXPUNGE_{data.upper()} to the folder" in row["sides"]["not_run"]


def test_adult_is_read_as_its_files_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test file has a first line of its own, a point after each class, and here a country of its own."""

    def line(age: int, work: str, country: str, income: str) -> str:
        return f"{age}, {work}, 7, HS-grad, 9, Single, Sales, Wife, White, Male, 0, {age}, 40, {country}, {income}\n"

    training = [line(30, "Private", "Cuba", "<=50K"), line(40, "?", "Cuba", ">50K"), line(50, "?", "Peru", "<=50K")]
    (tmp_path / "adult.data").write_text("".join([*training, "\n"]))
    (tmp_path / "adult.test").write_text("|1x3 Cross validator\n" + line(60, "Private", "Laos", ">50K."))
    monkeypatch.setenv("EXPUNGE_ADULT", str(tmp_path))
    (inputs, targets), (unseen, unseen_targets) = adult(3, 5)
    assert targets.tolist() == [0, 1, 0] and unseen_targets.tolist() == [1]
    # six numbers, of which four never vary; work: "?" and "Private"; five words that never vary; then the countries
    expected = [[-1, 0, 0, 0, -1, 0, 0, 1], [0, 0, 0, 0, 0, 0, 1, 0], [1, 0, 0, 0, 1, 0, 1, 0]]
    countries = [[1, 0], [1, 0], [0, 1]]
    assert inputs.tolist() == [
        [*row, 1, 1, 1, 1, 1, 1, *country] for row, country in zip(expected, countries, strict=True)
    ]
    assert unseen.tolist() == [[2, 0, 0, 0, 2, 0, 0, 1, 1, 1, 1, 1, 1, 1, 0, 0]]


def test_every_entrant_says_how_a_policy_names_it() -> None:
    assert list(CALLED) == list(ENTRANTS)
    for name, method in ENTRANTS.items():
        assert name == "gradient ascent" or CALLED[name].startswith(f"`{method.name}`")
