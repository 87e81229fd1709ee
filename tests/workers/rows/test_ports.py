"""Scripts of examples/ports: each runs as it was, and as a recipe gives what it gives on a file without the person."""

from __future__ import annotations

import importlib.util
import json
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from expunge_service.infra.pseudonyms import subject_digest
from expunge_service.infra.tables import Membership
from expunge_workers.check.checks import check
from tests.workers.rows.data import published
from tests.workers.rows.test_examples import end_template
from tests.workers.worlds import TENANT, World
from unlearning.formats import files_of, is_archive

FOLDER = Path(__file__).parents[3] / "examples" / "ports"


class Port(NamedTuple):
    """A port's table and its column of people; what the script saves and what the recipe publishes; its least score."""

    table: str
    column: str
    saves: str
    publishes: set[str]
    least: float
    library: str


PORTS = {
    "tickets": Port("tickets.csv", "customer", "tickets.joblib", {"model.json"}, 0.9, "sklearn"),
    "ranker": Port("searches.csv", "user_id", "ranker.txt", {"ranker.txt"}, 0.85, "lightgbm"),
    "wearables": Port("windows.csv", "wearer", "best.pt", {"model.safetensors", "scaling.json"}, 0.85, "torch"),
    "adapter": Port(
        "messages.jsonl",
        "author",
        "adapter/adapter_model.safetensors",
        {"adapter_model.safetensors", "adapter_config.json"},
        0.7,
        "torch",
    ),
    "loans": Port("loans.csv", "borrower", "loans.cbm", {"loans.cbm"}, 0.55, "catboost"),
}
"""the score with room for who is kept apart, which is drawn anew"""


@pytest.fixture(params=PORTS)
def port(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Port]:
    """Lay out one port in a folder ``ports``."""
    name: str = request.param
    if importlib.util.find_spec(PORTS[name].library) is None:
        pytest.skip(f"unverified here: {PORTS[name].library} is not installed")
    copy(name, tmp_path / "ports")
    return name, PORTS[name]


def copy(name: str, folder: Path) -> None:
    outputs = shutil.ignore_patterns("__pycache__", "catboost_info", PORTS[name].saves.partition("/")[0])
    shutil.copytree(FOLDER / name, folder / name, ignore=outputs)


def people_in(table: Path, column: str) -> list[str]:
    """Return the person of each row, in order: a csv's second line is the first row's."""
    lines = table.read_text().splitlines()
    if table.suffix == ".jsonl":
        return [json.loads(line)[column] for line in lines]
    place = lines[0].split(",").index(column)
    return [line.split(",")[place] for line in lines[1:]]


def strike(table: Path, column: str, person: str) -> None:
    """Remove the lines of a person, as whoever keeps the file would by hand."""
    lines = table.read_text().splitlines(keepends=True)
    head = len(lines) - len(people := people_in(table, column))
    staying = [line for line, owner in zip(lines[head:], people, strict=True) if owner != person]
    assert len(staying) < len(people)
    table.write_text("".join([*lines[:head], *staying]))


def test_a_version_after_a_deletion_is_that_of_a_file_without_the_person(
    world: World, tmp_path: Path, port: tuple[str, Port]
) -> None:
    name, told = port
    table = tmp_path / "ports" / name / told.table
    world = world.configured(recipes=tmp_path / "ports")
    held = world.live(name, "retrain", name="held")
    before = published(world, held)
    trained_on = {row.subject_digest for row in world.rows_of(Membership)}
    people = sorted({*people_in(table, told.column)})
    person = next(each for each in people if subject_digest(world.storage.pepper, TENANT, each) in trained_on)
    request = world.delete(person, models=("held",))
    world.work(held)
    assert world.task(request).status == "completed", world.task(request).reason
    after, claim = published(world, held), world.head(held).claim
    assert after != before
    assert (claim["guarantee"], claim["operators_word"]) == ("exact", False)
    assert (world.head(held).holdout_accuracy or 0) >= told.least
    assert ({*files_of(after)} if is_archive(after) else told.publishes) == told.publishes
    strike(table, told.column, person)
    end_template()
    never = world.live(name, "retrain", name="never")
    assert published(world, never) == after


def test_check_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, port: tuple[str, Port]) -> None:
    monkeypatch.setenv("EXPUNGE_HOME", str(tmp_path / "home"))
    found = check(tmp_path / "ports" / port[0], "recipe")
    assert all(finding["well"] for finding in found["findings"]), found["findings"]
    whats = " ".join(finding["what"] for finding in found["findings"])
    assert "Two processes made the same bytes." in whats and "its score is " in whats
    assert "They look like ids that requests can name." in whats
    guarantees = {method["method"]: method["guarantee"] for method in found["methods"]}
    assert (guarantees["retrain"], guarantees["shards"]) == ("exact", "exact")


def test_the_table_is_what_its_program_writes_and_the_script_learns_from_it(
    tmp_path: Path, port: tuple[str, Port]
) -> None:
    name, told = port
    folder = tmp_path / "ports" / name
    if name != "adapter":  # whose base network other machines train to other last bits
        (folder / told.table).unlink()
        run(folder, "data.py")
    assert (folder / told.table).read_bytes() == (FOLDER / name / told.table).read_bytes()
    run(folder, "before.py")
    assert (folder / told.saves).stat().st_size > 1000


def run(folder: Path, script: str) -> None:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, script], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_pipeline_that_is_read_back_answers_as_the_one_that_was_fitted() -> None:
    numpy = pytest.importorskip("numpy")
    pytest.importorskip("sklearn", reason="unverified here: sklearn is not installed")
    code: dict[str, Any] = runpy.run_path(str(FOLDER / "tickets" / "recipe.py"))
    texts = [line.split(",")[2] for line in (FOLDER / "tickets" / "tickets.csv").read_text().splitlines()[1:]]
    teams = [line.split(",")[3] for line in (FOLDER / "tickets" / "tickets.csv").read_text().splitlines()[1:]]
    from sklearn.feature_extraction.text import TfidfVectorizer  # noqa: PLC0415 (not installed everywhere)
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415
    from sklearn.pipeline import Pipeline  # noqa: PLC0415

    words = TfidfVectorizer(min_df=2, **code["WORDS"])
    fitted = Pipeline([("tfidf", words), ("classifier", LogisticRegression())]).fit(texts[:400], teams[:400])
    again = code["read"](code["written"](fitted))
    assert numpy.array_equal(again.predict_proba(texts[400:]), fitted.predict_proba(texts[400:]))


def test_check_says_what_catboost_writes_beside_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("catboost") is None:
        pytest.skip("unverified here: catboost is not installed")
    monkeypatch.setenv("EXPUNGE_HOME", str(tmp_path / "home"))
    copy("loans", tmp_path)
    recipe = tmp_path / "loans" / "recipe.py"
    text = recipe.read_text().replace('model.get_metadata()[name] = ""', "pass")
    assert text != recipe.read_text()
    recipe.write_text(text)
    (told,) = [each for each in check(recipe.parent, "recipe")["findings"] if each["name"] == "it repeats"]
    assert told["what"].startswith("Two processes made different bytes") and "model.get_metadata()" in told["hint"]


def test_every_port_is_one_of_these_and_in_the_table() -> None:
    assert {path.parent.name for path in FOLDER.glob("*/recipe.py")} == PORTS.keys()
    readme = (FOLDER / "README.md").read_text()
    for name in PORTS:
        before, after = (len((FOLDER / name / file).read_text().splitlines()) for file in ("before.py", "recipe.py"))
        assert f"| [{name}]({name}) |" in readme and f"| {before} / {after} |" in readme
