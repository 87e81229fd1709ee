"""The examples that get their rows: one person deleted, and a registration in whose file that person never was."""

from __future__ import annotations

import csv
import importlib.util
import json
import re
import runpy
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load
from torch import Tensor

from benchmarks.example_recipes import FOLDER, PROVED
from benchmarks.example_recipes import METHODS as MEASURED
from expunge_service.infra.pseudonyms import subject_digest
from expunge_service.infra.tables import Membership
from expunge_workers.check.checks import check
from expunge_workers.runtime import recipes
from expunge_workers.runtime.worlds import template
from tests.workers.rows.data import published
from tests.workers.worlds import TENANT, World
from unlearning.formats import files_of

TABLES = {
    "digits": ("digits/digits.parquet", "person"),
    "trees": ("trees/patients.csv", "patient"),
    "tabular": ("tabular/customers.csv", "customer"),
    "estimator": ("estimator/patients.csv", "patient"),
    "scattering": ("scattering/digits.parquet", "person"),
    "batchnorm": ("batchnorm/digits.parquet", "person"),
    "mixed": ("mixed/orders.parquet", "customer"),
    "recommender": ("recommender/used.parquet", "person"),
    "embeddings": ("embeddings/ratings.parquet", "person"),
    "text": ("text/messages.csv", "writer"),
    "text/adapters": ("text/messages.csv", "writer"),
}
"""each example's table and its column of people"""
LEAST = {
    "digits": 0.92,
    "trees": 0.8,
    "tabular": 0.8,
    "estimator": 0.92,
    "scattering": 0.94,
    "batchnorm": 0.95,
    "mixed": 0.85,
    "recommender": 0.03,
    "embeddings": 0.85,
    "text": 0.6,
    "text/adapters": 0.55,
}
"""the score, with room for who is kept apart, which is drawn anew: accuracy, of shards the mean of their members'; of
the recommender one item of 200, of the embeddings R2"""
LIBRARIES = {"trees": ("lightgbm",), "estimator": ("sklearn",)}
"""what an example needs beside what every installation has"""
REPEATING = ("mixed", "recommender", "text", "digits", "scattering", "tabular")
EXAMPLES = [pytest.param(name, id=name.replace("/", "-")) for name in TABLES]
METHODS = MEASURED | {"digits": "newton"}
HEADS = (*PROVED, "digits")
EXACT = {name: "retrain" if name in HEADS else METHODS[name] for name in TABLES}
"""the method by which each is byte for byte what it would be on a file without the person"""
GUARANTEES = {name: "proved" if name in HEADS else "exact" for name in TABLES}
INDEXES = {"index_faiss", "index_hnswlib"}
"""trained by tests/workers/rows/test_index_examples.py"""
CAP = 1e-5
"""the greatest distance that a policy has where none is named"""


def require_libraries(name: str) -> None:
    for library in LIBRARIES.get(name, ()):
        if importlib.util.find_spec(library) is None:
            pytest.skip(f"unverified here: {library} is not installed")


@pytest.fixture
def examples(tmp_path: Path) -> Path:
    """A copy of the examples."""
    folder = tmp_path / "examples"
    shutil.copytree(FOLDER, folder, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def read(table: Path) -> list[dict[str, Any]]:
    if table.suffix == ".csv":
        with table.open(newline="") as file:
            return list(csv.DictReader(file))
    return importlib.import_module("pyarrow.parquet").read_table(table).to_pylist()  # type: ignore[no-any-return]


def strike(table: Path, keep: Callable[[dict[str, Any]], bool]) -> None:
    """Write a table anew without some of its rows."""
    rows = read(table)
    if table.suffix == ".csv":
        with table.open("w", newline="") as file:
            writer = csv.DictWriter(file, [*rows[0]])
            writer.writeheader()
            writer.writerows(filter(keep, rows))
        return
    parquet = importlib.import_module("pyarrow.parquet")
    whole = parquet.read_table(table)
    parquet.write_table(whole.filter([keep(row) for row in rows]), table)


def end_template() -> None:
    """End what forks worlds, so that the next model is trained by processes which never ran beside the person's."""
    running = template()
    running.kill()
    running.process.wait()


def people_trained_on(world: World, table: Path, column: str) -> list[str]:
    """Return the people of a table, sorted, without those kept apart."""
    digests = {row.subject_digest for row in world.rows_of(Membership)}
    people = sorted({row[column] for row in read(table)})
    return [person for person in people if subject_digest(world.storage.pepper, TENANT, person) in digests]


# each method, a public file and a head; the others repeat it with other libraries
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, id=name.replace("/", "-"), marks=pytest.mark.drill if name in REPEATING else ())
        for name in TABLES
    ],
)
def test_a_version_after_a_deletion_is_that_of_a_file_without_the_person(
    world: World, examples: Path, name: str
) -> None:
    require_libraries(name)
    file, column = TABLES[name]
    world = world.configured(recipes=examples)
    held = world.live(name, EXACT[name], name="held")
    before = published(world, held)
    person = people_trained_on(world, examples / file, column)[0]
    request = world.delete(person, models=("held",))
    world.work(held)
    assert world.task(request).status == "completed", world.task(request).reason
    after, claim = published(world, held), world.head(held).claim
    assert after != before
    assert (claim["method"], claim["guarantee"], claim["operators_word"]) == (EXACT[name], "exact", False)
    assert (world.head(held).holdout_accuracy or 0) >= LEAST[name]
    strike(examples / file, lambda row: row[column] != person)
    end_template()
    never = world.live(name, EXACT[name], name="never")
    assert published(world, never) == after


@pytest.mark.parametrize("name", HEADS)
def test_a_deletion_is_proved_beside_a_file_without_the_person(world: World, examples: Path, name: str) -> None:
    """Each of two versions lies within the greatest distance of the minimiser on the rows of those who stay."""
    require_libraries(name)
    file, column = TABLES[name]
    world = world.configured(recipes=examples)
    held = world.live(name, METHODS[name], name="held", guarantee="proved")
    before = weights_of(world, held)
    person = people_trained_on(world, examples / file, column)[0]
    request = world.delete(person, models=("held",))
    world.work(held)
    assert world.task(request).status == "completed", world.task(request).reason
    claim = world.head(held).claim
    assert (claim["method"], claim["guarantee"], claim["operators_word"]) == (METHODS[name], "proved", False)
    assert 0 < claim["max_distance"] <= CAP
    assert (world.head(held).holdout_accuracy or 0) >= LEAST[name]
    strike(examples / file, lambda row: row[column] != person)
    end_template()
    never = world.live(name, METHODS[name], name="never", guarantee="proved")
    minimiser = weights_of(world, never)
    assert float((weights_of(world, held) - minimiser).norm()) <= 2 * CAP < float((before - minimiser).norm())
    constants = [
        {key: value for key, value in load(published(world, model)).items() if not key.endswith(("weight", "bias"))}
        for model in (held, never)
    ]
    assert constants[0].keys() == constants[1].keys()
    assert all(bool((constants[0][key] == constants[1][key]).all()) for key in constants[0])


def weights_of(world: World, model_id: str) -> Tensor:
    return world.state(world.head(model_id)).weights.double()


def test_the_estimator_ends_where_scikit_learn_does(world: World, examples: Path, tmp_path: Path) -> None:
    require_libraries("estimator")
    linear_model = importlib.import_module("sklearn.linear_model")
    file, column = TABLES["estimator"]
    world = world.configured(recipes=examples)
    held = world.live("estimator", "newton", guarantee="proved")
    leaving, *staying = people_trained_on(world, examples / file, column)
    request = world.delete(leaving)
    world.work(held)
    assert world.task(request).status == "completed", world.task(request).reason
    rows = [row for row in read(examples / file) if row[column] in staying]
    x = np.array([[float(row[name]) for name in row if name not in (column, "benign")] for row in rows])
    y = np.array([int(row["benign"]) for row in rows])
    scaled = (x - x.mean(axis=0)) / x.std(axis=0)
    fit = linear_model.LogisticRegression(
        C=10.0, class_weight="balanced", solver="liblinear", tol=1e-10, max_iter=10_000
    ).fit(scaled, y)
    wanted = torch.from_numpy(np.append(fit.coef_[0], fit.intercept_))
    assert float((weights_of(world, held) - wanted).norm()) <= 1e-4
    checkpoint = tmp_path / "model.safetensors"
    checkpoint.write_bytes(published(world, held))
    pipeline = runpy.run_path(str(recipes.find(examples, "estimator")))["fitted"](checkpoint)
    assert (pipeline.predict(x) == fit.predict(scaled)).mean() >= 0.98


def test_a_category_goes_with_the_last_person_who_has_it(world: World, examples: Path) -> None:
    """The weights get another shape, so the judge begins anew, and proves what it reaches."""
    require_libraries("tabular")
    file, column = TABLES["tabular"]
    world = world.configured(recipes=examples)
    world.live("tabular", "newton", name="first")
    people = people_trained_on(world, examples / file, column)
    last = next(row[column] for row in read(examples / file) if row["payment"] == "voucher" and row[column] in people)
    strike(examples / file, lambda row: row["payment"] != "voucher" or row[column] == last)
    held = world.live("tabular", "newton", name="held", guarantee="proved")
    assert "payment_voucher" in columns_of(world, held)
    request = world.delete(last, models=("held",))
    world.work(held)
    assert world.task(request).status == "completed", world.task(request).reason
    assert world.head(held).claim["guarantee"] == "proved"
    assert "payment_voucher" not in columns_of(world, held)


def columns_of(world: World, model_id: str) -> list[str]:
    columns: list[str] = json.loads(bytes(load(published(world, model_id))["0.columns"].tolist()))
    return columns


def test_the_columns_of_the_table_are_in_the_published_file(world: World, examples: Path) -> None:
    require_libraries("tabular")
    world = world.configured(recipes=examples)
    model_id = world.live("tabular", "newton", guarantee="proved")
    columns, tensors = columns_of(world, model_id), load(published(world, model_id))
    assert columns[:3] == ["age", "months", "bill"] and {"no_age", "plan_basic", "payment_voucher"} <= {*columns}
    assert tensors["1.weight"].shape == (2, 64 + len(columns) - 3)


@pytest.mark.parametrize("name", EXAMPLES)
def test_check_passes(examples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    require_libraries(name)
    monkeypatch.setenv("EXPUNGE_HOME", str(tmp_path / "home"))
    path = recipes.find(examples, name)
    found = check(path.parent, path.stem)
    assert all(finding["well"] for finding in found["findings"]), found["findings"]
    assert "Two processes made the same bytes." in {finding["what"] for finding in found["findings"]}
    guarantees = {method["method"]: method["guarantee"] for method in found["methods"]}
    assert guarantees[METHODS[name]] == GUARANTEES[name]


def test_the_adapters_certificate_names_the_frozen_transformer(world: World, examples: Path) -> None:
    require_libraries("text/adapters")
    world = world.configured(recipes=examples)
    model_id = world.live("text/adapters", "shards", options={"shards": 2})
    (file,) = world.head(model_id).claim["world"]["public_files"]
    assert file["name"] == "frozen.safetensors"
    members = {name.rpartition("/")[2] for name in files_of(published(world, model_id))}
    assert members == {"adapters.safetensors", "topics.json"}


def test_no_row_of_a_person_is_in_the_recommenders_file(world: World, examples: Path) -> None:
    require_libraries("recommender")
    model_id = world.configured(recipes=examples).live("recommender", "late")
    tables = load(published(world, model_id))
    assert tables.keys() == {"items", "factors"} and len(tables["items"]) <= 200
    assert tables["factors"].shape == (len(tables["items"]), 12)


def test_every_example_is_one_of_these() -> None:
    assert TABLES.keys() == METHODS.keys()
    names = {name.partition("/")[0] for name in TABLES} | INDEXES
    assert {path.parent.name for path in FOLDER.glob("*/recipe.py")} == names


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_says_its_guarantee_its_cost_and_whom_to_delete(name: str) -> None:
    require_libraries(name)
    header = recipes.find(FOLDER, name).read_text().split('"""')[1]
    file, column = TABLES[name]
    assert f"Guarantee: `{GUARANTEES[name]}`." in header
    assert re.search(rf"`--method {METHODS[name]}[ `]", header)
    assert re.search(r"^Cost of a deletion: ", header, re.M) and "You declare" in header
    person = re.search(r"^Delete one person: `expunge delete --subject (\S+) --regulation gdpr --wait`", header, re.M)
    assert person and person[1] in {row[column] for row in read(FOLDER / file)}


@pytest.mark.parametrize("folder", sorted({Path(file).parent.name for file, _ in TABLES.values()}))
def test_the_data_are_what_the_script_beside_them_writes(examples: Path, folder: str) -> None:
    require_libraries("estimator")  # whose scikit-learn every table of people is made of
    place = examples / folder
    for data in (file for file in place.iterdir() if file.suffix != ".py"):
        data.unlink()
    sys.path.insert(0, str(place))
    try:
        runpy.run_path(str(place / "data.py"), run_name="__main__")
    finally:
        sys.path.remove(str(place))
        sys.modules.pop("adapters", None)
    for data in (file for file in (FOLDER / folder).iterdir() if file.is_file() and file.suffix != ".py"):
        if data.suffix == ".parquet":  # another version of pyarrow may write the same table otherwise
            assert read(place / data.name) == read(data)
        else:
            assert (place / data.name).read_bytes() == data.read_bytes()
