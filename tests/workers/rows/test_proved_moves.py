"""Under ``proved`` whatever a recipe finds in the rows moves with who leaves: lambda, a class, a column, the scaler."""

from __future__ import annotations

import csv
import random
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from tests.workers.worlds import World

CAP = 1e-5
PEOPLE = range(30)
LEAVER = "p29"
"""the only one of class 2 and of the city K, with rows far from the others'"""
LAMBDAS = (0.3, 0.003)
RECIPE = f"""
import numpy as np
import torch
import unlearning as ul

LAMBDAS = {LAMBDAS}


def chosen(x, signs, people):
    '''The lambda of the ridge regression with the least squared error in three folds of people.'''
    errors = []
    for decay in LAMBDAS:
        error = 0.0
        for fold in range(3):
            out = people % 3 == fold
            a = x[~out].T @ x[~out] / (~out).sum() + decay * np.eye(x.shape[1])
            w = np.linalg.solve(a, x[~out].T @ signs[~out] / (~out).sum())
            error += ((x[out] @ w - signs[out]) ** 2).sum()
        errors.append(error)
    return LAMBDAS[int(np.argmin(errors))]


def recipe(rows: ul.Rows = ul.table("people.csv", person="person")) -> ul.Recipe:
    frame = rows.pandas()
    scaled = ((frame[["a", "b"]] - frame[["a", "b"]].mean()) / frame[["a", "b"]].std()).to_numpy()
    cities = sorted(frame.city.unique())
    classes = sorted(frame.label.unique())
    x = np.concatenate([scaled, np.stack([frame.city == city for city in cities], axis=1)], axis=1)
    decay = chosen(scaled, np.where(frame.label == 1, 1.0, -1.0), rows.people)
    targets = frame.label.map({{label: number for number, label in enumerate(classes)}}).to_numpy()
    return ul.Recipe(
        model=lambda: torch.nn.Linear(x.shape[1], len(classes)),
        samples=rows.samples(x, targets, at=frame["__row"]),
        holdout=(torch.tensor(x[:5]), torch.tensor(targets[:5])),
        loss="cross_entropy",
        training=ul.Training(epochs=0, converge=1e-9, weight_decay=decay),
    )
"""


def rows_of(*without: str) -> list[dict[str, Any]]:
    """Three rows a person; the others' labels follow weakly from a and b, and the leaver's contradict them."""
    rows = []
    for person in PEOPLE:
        draw = random.Random(person)
        for _ in range(3):
            a, b = draw.gauss(0, 1), draw.gauss(0, 1)
            row = {"person": f"p{person}", "a": a, "b": b, "city": "BH"[draw.random() < 0.5]}
            row["label"] = int(a + 0.5 * b + draw.gauss(0, 0.3) > 0)
            if row["person"] == LEAVER:
                row |= {"a": 9 * a, "b": 9 * b, "city": "K", "label": 2 if len(rows) % 3 == 2 else int(a + 0.5 * b < 0)}
            if row["person"] not in without:
                rows.append(row)
    return rows


def write(path: Path, rows: Collection[Mapping[str, Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*next(iter(rows))])
        writer.writeheader()
        writer.writerows(rows)


def found_in(rows: list[dict[str, Any]]) -> tuple[np.ndarray, np.ndarray, float]:
    """The features, the targets and the lambda, written anew here."""
    plain = np.array([[row["a"], row["b"]] for row in rows])
    scaled = (plain - plain.mean(axis=0)) / plain.std(axis=0, ddof=1)
    cities, classes = (sorted({row[name] for row in rows}) for name in ("city", "label"))
    x = np.concatenate([scaled, [[float(row["city"] == city) for city in cities] for row in rows]], axis=1)
    numbers = list(dict.fromkeys(row["person"] for row in rows))
    folds = np.array([numbers.index(row["person"]) % 3 for row in rows])
    signs, errors = np.array([1.0 if row["label"] == 1 else -1.0 for row in rows]), []
    for decay in LAMBDAS:
        error = 0.0
        for fold in range(3):
            kept, out = scaled[folds != fold], folds == fold
            root = np.sqrt(decay * len(kept)) * np.eye(2)
            w = np.linalg.lstsq(np.concatenate([kept, root]), np.append(signs[~out], [0.0, 0.0]), rcond=None)[0]
            error += float(((scaled[out] @ w - signs[out]) ** 2).sum())
        errors.append(error)
    return x, np.array([classes.index(row["label"]) for row in rows]), LAMBDAS[int(np.argmin(errors))]


def minimiser(rows: list[dict[str, Any]]) -> np.ndarray:
    """Weight (K, D) in one row, then bias (K,), by a solver of another library."""
    x, y, decay = found_in(rows)
    ones, classes = np.concatenate([x, np.ones((len(x), 1))], axis=1), int(y.max()) + 1

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        w = np.concatenate([flat[:-classes].reshape(classes, -1), flat[-classes:, None]], axis=1)
        z = ones @ w.T
        p = np.exp(z - z.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        loss = -np.log(p[np.arange(len(p)), y]).mean() + decay / 2 * flat @ flat
        p[np.arange(len(p)), y] -= 1
        slope = p.T @ ones / len(p)
        return float(loss), np.concatenate([slope[:, :-1].ravel(), slope[:, -1]]) + decay * flat

    start = np.zeros(classes * ones.shape[1])
    return np.asarray(minimize(objective, start, jac=True, method="BFGS", options={"gtol": 1e-10}).x)


def distance(world: World, model_id: str, *without: str) -> float:
    weights = world.state(world.head(model_id)).weights.double().numpy()
    return float(np.linalg.norm(weights - minimiser(rows_of(*without))))


def test_the_planted_person_decides_lambda_a_class_and_a_column() -> None:
    (x, y, decay), (fewer, left, other) = found_in(rows_of()), found_in(rows_of(LEAVER))
    assert (x.shape[1], fewer.shape[1]) == (5, 4) and (y.max(), left.max()) == (2, 1)
    assert (decay, other) == LAMBDAS


@pytest.mark.parametrize("fallback", ["hold", "retrain"])
def test_all_of_it_moves_and_the_bound_holds(world: World, folder: Path, fallback: str) -> None:
    folder.mkdir()
    (folder / "rows.py").write_text(RECIPE)
    write(folder / "people.csv", rows_of())
    world = world.configured(recipes=folder)
    model_id = world.live("rows", "newton", max_distance=CAP, noise_std=0.01, fallback=fallback)
    assert distance(world, model_id) <= CAP
    gone: list[str] = []
    for person in ("p3", LEAVER, "p4"):
        request = world.delete(person)
        world.work(model_id)
        assert world.task(request).status == "completed", world.task(request).reason
        gone.append(person)
        assert distance(world, model_id, *gone) <= CAP
        assert world.head(model_id).claim["guarantee"] == "proved"
    assert torch.isfinite(world.state(world.head(model_id)).weights).all()
    assert world.head(model_id).number == 4
