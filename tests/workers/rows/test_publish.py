"""Fitted preprocessing that is published with a model: its bytes come from the rows of those who stay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from tests.workers.rows.data import EVERYBODY, forget, lay_out, published, rows_of, trained_on
from tests.workers.worlds import World
from unlearning.fitted import fitted_from_files, through
from unlearning.formats import files_of

RECIPE = """
import numpy as np
import torch
import unlearning as ul
from sklearn.compose import ColumnTransformer
from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import OneHotEncoder, StandardScaler


def recipe(rows: ul.Rows = ul.table("people.csv", person="person", aside=0.2)) -> ul.Recipe:
    frame = rows.pandas()
    columns = ColumnTransformer(
        [("numbers", StandardScaler(), ["x", "y"]), ("word", OneHotEncoder(handle_unknown="ignore"), ["word"])],
        sparse_threshold=0.0,
    ).fit(frame[["x", "y", "word"]])

    def features(some):
        return torch.tensor(np.asarray(columns.transform(some[["x", "y", "word"]]), dtype=np.float32))

    def labels(some):
        return torch.tensor((some.x > 3).to_numpy(dtype="int64"))

    return ul.Recipe(
        model=lambda: torch.nn.Linear(13, 2),
        samples=rows.samples(features(frame), labels(frame), at=frame["__row"]),
        holdout=lambda aside: (features(aside.pandas()), labels(aside.pandas())),
        loss="cross_entropy",
        training=ul.Training(epochs=0, converge=1e-8, weight_decay=0.05),
        publish={PUBLISH},
    )
"""
COLUMNS = RECIPE.replace("{PUBLISH}", '{"columns": columns, "names": {"columns": ["x", "y", "word"]}}')
BY_NEWTON = {"max_distance": 1e-5, "noise_std": 0.01}


@pytest.mark.parametrize(("method", "policy"), [("retrain", {}), ("newton", BY_NEWTON)])
def test_a_transformer_follows_from_those_who_stay(
    world: World, folder: Path, method: str, policy: dict[str, Any]
) -> None:
    lay_out(folder, recipe=COLUMNS)
    world = world.configured(recipes=folder)
    held = world.live("rows", method, name="held", **policy)
    before = files_of(published(world, held))
    people = trained_on(world)
    leaving = people[0]
    forget(world, held, leaving)
    after = files_of(published(world, held))
    assert set(after) == {"model.safetensors", "names.json", "columns/steps.json", *NUMBERED}
    assert any(after[name] != before[name] for name in NUMBERED), "a mean moved"
    assert (world.generation(held).manifest or {})["suffix"] == "zip"

    rows = [row for row in rows_of(people) if row["person"] != f"p{leaving}"]
    cells = np.array([[row["x"], row["y"], row["word"]] for row in rows], dtype=object)
    steps = fitted_from_files(after, "columns")
    wanted = [StandardScaler().fit_transform(cells[:, :2].astype(float))]
    wanted += [OneHotEncoder(sparse_output=False).fit_transform(cells[:, 2:])]
    assert np.allclose(through(steps, cells).astype(float), np.hstack(wanted))
    assert load(after["model.safetensors"])["weight"].shape == (2, 13)

    lay_out(folder, (person for person in EVERYBODY if person != leaving), COLUMNS)
    never = files_of(published(world, world.live("rows", method, name="never", **policy)))
    same = set(after) if method == "retrain" else set(after) - {"model.safetensors"}
    assert {name: never[name] for name in same} == {name: after[name] for name in same}


NUMBERED = {f"columns/{number}.npy" for number in range(4)}
"""mean, scale and variance of the numbers, and the words"""


@pytest.mark.parametrize(
    ("published", "words"),
    [
        ("StandardScaler()", "cannot be written as arrays"),
        ("KNeighborsClassifier(1).fit(frame[['x']], frame.word)", "holds rows of people"),
        ("{1.5: float('nan')}", "values that JSON has not"),
        ("lambda: None", "publish gives 'columns' a function. Known:"),
    ],
)
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_what_cannot_be_published_safely_is_refused(world: World, folder: Path, published: str, words: str) -> None:
    lay_out(folder, recipe=RECIPE.replace("{PUBLISH}", f"{{'columns': {published}}}"))
    world = world.configured(recipes=folder)
    model_id = world.register("rows", "newton", **BY_NEWTON)
    world.work(model_id)
    assert words in (world.model(model_id).reason or "")
