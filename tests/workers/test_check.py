"""`expunge check`: what it says of a recipe's sources, of its training, whether that repeats, and of each method."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from expunge_workers.check import __main__
from expunge_workers.check.checks import check
from tests.workers.worlds import RECIPES

RECIPE = """import os

import people
import torch

import unlearning as ul


def recipe(rows: ul.Rows = ul.table("people.csv", person="person", id="id")) -> ul.Recipe:
    samples, model = people.samples(rows), lambda: torch.nn.Linear(4, 2, bias=False)
    training = ul.Training(epochs=3, learning_rate=0.5, weight_decay=0.1, converge=1e-8)
    return ul.Recipe(model, samples, people.strangers(), "cross_entropy", training)
"""


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    """Write a recipe beside the table of the tests' people; return its file."""

    def written(body: str) -> Path:
        for name in ("people.py", "people.csv"):
            shutil.copy(RECIPES / name, tmp_path)
        (tmp_path / "mine.py").write_text(body)
        return tmp_path / "mine.py"

    return written


def changed(old: str, new: str) -> str:
    assert old in RECIPE
    return RECIPE.replace(old, new)


def findings(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in found["findings"]}


def test_of_a_good_recipe_it_says_what_its_source_holds_and_which_guarantee_each_method_can_have(
    write: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert __main__.main([str(write(RECIPE)), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    said = findings(found)
    assert said["source rows"]["what"] == "36 rows of 12 people; requests name them as 'p0', 'p1', 'p2'."
    assert found["counts"] == {"sources": 1, "rows": 36, "people": 12}
    assert "it publishes 136 bytes, and its score is 1" in said["the recipe runs"]["what"]
    assert said["ids of people"]["what"] == "They look like ids that requests can name."
    assert said["it repeats"]["what"] == "Two processes made the same bytes."
    can = {each["method"]: each["guarantee"] for each in found["methods"]}
    assert [can[name] for name in ("retrain", "newton", "recollection")] == ["exact", "proved", "proved"]
    assert [each["guarantee"] for each in found["methods"]][:2] == ["exact"] * 2
    (late,) = [each for each in found["methods"] if each["method"] == "late"]
    assert late["guarantee"] is None and "run=ul.run()" in late["refused"]


def test_ids_that_no_request_can_name_are_a_fault(tmp_path: Path) -> None:
    (tmp_path / "people.csv").write_text("person,x\n17.0,1\n18.0,2\n19.0,3\n")
    (tmp_path / "mine.py").write_text(
        "import unlearning as ul\n\n\n"
        "def recipe(rows=ul.table('people.csv', person='person')):\n"
        "    return ul.Published({'model.json': '{}'})\n"
    )
    told = findings(check(tmp_path, "mine"))["ids of people"]
    assert (
        not told["well"]
        and told["what"].startswith("Persons 1, 2, 3 (counted by first appearance): ")
        and "the ids that requests name" in told["hint"]
    )


def test_a_training_that_draws_without_a_seed_is_told(write: Callable[[str], Path]) -> None:
    body = changed("    samples, model", "    torch.manual_seed(int.from_bytes(os.urandom(4)))\n    samples, model")
    file = write(body.replace("converge=1e-8", "batch_size=8").replace("people.samples(rows)", "drawn(rows)") + DRAWN)
    told = findings(check(file.parent, file.stem))["it repeats"]
    assert told["what"].startswith("Two processes made different bytes") and "Seed what draws" in told["hint"]


DRAWN = """

def drawn(rows):
    x = people.inputs(rows)
    return rows.samples(x + 0.1 * torch.randn(x.shape), rows["label"], at=rows["__row"])
"""


@pytest.mark.parametrize(("body", "what"), [
    (RECIPE + "    x = = 1\n", "raised SyntaxError at line 13 of mine.py"),
    (changed("    samples, model", "    rows['agee']\n    samples, model"), "agee"),
    (changed("ul.Recipe(model, samples, people.strangers(), \"cross_entropy\", training)", "{}"), "dict"),
    (changed("people.samples(rows)", "nan(rows)") + "\n\ndef nan(rows):\n    x = people.inputs(rows)\n"
     "    x[7] = float('nan')\n    return rows.samples(x, rows['label'], at=rows['__row'])\n", "NaN"),
    (changed("torch.nn.Linear(4, 2", "torch.nn.Linear(5, 2"), "RuntimeError"),
], ids=["syntax", "column", "type", "NaN", "width"])  # fmt: skip
def test_a_fault_is_named_and_then_no_guarantee_is(
    write: Callable[[str], Path], body: str, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert __main__.main([str(write(body)), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    ran = findings(found)["the recipe runs"]
    assert not ran["well"] and what in ran["what"]
    assert found["methods"] == []


def test_the_command_ends_with_the_fault_and_its_line(
    write: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert __main__.main([str(write(changed("samples, model", "{}['agee']\n    samples, model")))]) == 1
    assert "FAIL the recipe runs: The recipe raised KeyError at line 10 of mine.py." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("score", "what", "hint"),
    [
        ("0.9", "Published got a float as score", "score=lambda apart: ..."),
        ("lambda apart: apart.label.mean()", "have no 'label'", "Write rows.pandas().label, or rows['label']."),
        ("lambda apart: 'good'", "score() gave a str", "Give one number"),
        (
            "lambda apart: {}['age']",
            "raised KeyError in its score at line 5 of mine.py",
            "Call score(rows) in recipe()",
        ),
    ],
    ids=["number", "frame", "text", "error"],
)
def test_a_fault_of_the_score_is_told_as_one(write: Callable[[str], Path], score: str, what: str, hint: str) -> None:
    """Calling recipe() by hand, as is advised elsewhere, meets none of them but the first."""
    file = write(
        "import unlearning as ul\n\n\n"
        "def recipe(rows=ul.table('people.csv', person='person', id='id', aside=0.4)):\n"
        f"    return ul.Published({{'model.json': '{{}}'}}, score={score})\n"
    )
    told = findings(check(file.parent, file.stem))["the recipe runs"]
    assert not told["well"] and what in told["what"] and hint in told["hint"]


def test_people_who_are_kept_apart_are_counted_and_not_their_rows(write: Callable[[str], Path]) -> None:
    file = write(changed('id="id")', 'id="id", aside=0.4)'))
    source = findings(check(file.parent, file.stem))["source rows"]["what"]
    (apart,) = re.findall(r"([0-9]+) people are kept apart, drawn anew by each check", source)
    assert 0 < int(apart) < 12  # of 36 rows


def test_a_score_that_nobody_is_kept_apart_for_is_told(write: Callable[[str], Path]) -> None:
    file = write(
        "import unlearning as ul\n\n\n"
        "def recipe(rows=ul.table('people.csv', person='person')):\n"
        "    return ul.Published({'model.json': '{}'}, score=lambda apart: 1)\n"
    )
    told = findings(check(file.parent, file.stem))["the recipe runs"]
    assert told["well"] and "nothing scores it, for no source keeps people apart (aside=)" in told["what"]


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("recipes/trees/recipe.py", "Register it: expunge models add NAME --recipe trees."),
        ("recipes/trees", "Register it: expunge models add NAME --recipe trees."),
        ("recipes/text/adapters.py", "Register it: expunge models add NAME --recipe text/adapters."),
        ("ranker/recipe.py", "Copy ranker into {}, and register it: expunge models add NAME --recipe ranker."),
        ("mine.py", "Copy mine.py into {}, and register it: expunge models add NAME --recipe mine."),
    ],
)
def test_a_recipe_is_registered_under_the_name_that_a_service_finds_it_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, sentence: str
) -> None:
    monkeypatch.setenv("EXPUNGE_RECIPES", str(tmp_path / "recipes"))
    assert __main__._registering(tmp_path / path) == sentence.format(tmp_path / "recipes")


def test_measuring_needs_the_laboratory_and_names_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(__main__, "find_spec", lambda _: None)
    with pytest.raises(SystemExit) as ended:
        __main__.main(["recipe.py", "--measure"])
    assert ended.value.code == 2
    assert "expunge-lab, which is not installed. Run: pip install expunge-lab" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        __main__.main(["recipe.py", "--seconds", "3"])
    assert "unrecognized arguments: --seconds 3" in capsys.readouterr().err
