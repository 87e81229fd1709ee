"""Estimators of scikit-learn as bytes: fitted inside ``train``, steps and all, and published as JSON and plain arrays.

A pickle runs code where it is opened. So the file has each step's class, its settings and the arrays that it answers
from, by a list of what may stay: a zip file of one JSON text and ``.npy`` arrays, the same bytes for the same fit.
"""

from __future__ import annotations

import copy
import io
import json
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unlearning.recipe import Run
from unlearning.types import RecipeError

_LINEAR, _CLASSES = ("coef_", "intercept_"), ("coef_", "intercept_", "classes_")
ANSWERS: dict[str, tuple[str, ...]] = {
    "linear_model.LogisticRegression": _CLASSES,
    "linear_model.SGDClassifier": _CLASSES,
    "svm.LinearSVC": _CLASSES,
    **{
        f"linear_model.{name}": _LINEAR for name in ("Ridge", "Lasso", "ElasticNet", "LinearRegression", "SGDRegressor")
    },
    "naive_bayes.GaussianNB": ("theta_", "var_", "class_prior_", "classes_"),
    "naive_bayes.MultinomialNB": ("feature_log_prob_", "class_log_prior_", "classes_"),
    "naive_bayes.BernoulliNB": ("feature_log_prob_", "class_log_prior_", "classes_"),
    "preprocessing.StandardScaler": ("mean_", "scale_", "var_"),
    "preprocessing.MinMaxScaler": ("min_", "scale_"),
    "preprocessing.Normalizer": (),
    "decomposition.PCA": ("components_", "mean_", "explained_variance_", "n_components_"),
}
"""what of a fitted step answers, and no count. MinMaxScaler's tell the least and the greatest value of a column"""
MOMENT = (1980, 1, 1, 0, 0, 0)
"""of each part of the file"""
ABSENT = -1e9
"""the score of a class that no person who is left has"""


def require_known(name: str, step: Any) -> None:
    """Raise RecipeError where a step cannot be written as arrays, or where it draws without a seed."""
    kind = kind_of(step)
    if kind not in ANSWERS:
        hint = "SVC and neighbours would publish rows of people; forests and boosting are ul.trees.sklearn(grid, ...)."
        raise RecipeError(f"The step {name!r} ({kind}) is not known as plain arrays.", f"{hint} Known: {_known()}.")
    settings = step.get_params(deep=False)
    if "random_state" in settings and not isinstance(settings["random_state"], int):
        what = f"The step {name!r} has random_state={settings['random_state']!r}: two trainings may differ."
        raise RecipeError(what, "Give a whole number.")
    try:
        json.dumps(settings)
    except TypeError:
        raise RecipeError(f"The settings of {name!r} are no plain values.", "Give numbers and texts.") from None


@dataclass(frozen=True)
class Fit:
    """The ``train`` of steps that are not fitted yet."""

    steps: tuple[Any, ...]

    def __call__(self, run: Run) -> bytes:
        x, y = run.inputs.cpu().numpy(), run.targets.cpu().numpy()
        fitted = [copy.deepcopy(step) for step in self.steps]
        for step in fitted[:-1]:
            x = step.fit_transform(x)
        weight = None if run.weights is None else run.weights.cpu().numpy()
        fitted[-1].fit(x, y if y.ndim == 1 or y.shape[1] > 1 else y[:, 0], sample_weight=weight)
        return written(fitted)


@dataclass(frozen=True)
class Answer:
    """The ``predict`` of a file that ``written`` made: scores (n, classes), or numbers (n, 1) where there is none."""

    classes: int | None

    def __call__(self, data: bytes, inputs: Tensor) -> Tensor:
        *steps, last = read(data)
        x = inputs.cpu().numpy()
        for step in steps:
            x = step.transform(x)
        if self.classes is None:
            return torch.from_numpy(np.asarray(last.predict(x), dtype=np.float64).reshape(len(x), -1))
        scores = last.decision_function(x) if hasattr(last, "decision_function") else last.predict_log_proba(x)
        if scores.ndim == 1:
            scores = np.stack([-scores / 2.0, scores / 2.0], axis=1)
        found = np.full((len(x), self.classes), ABSENT)
        found[:, last.classes_.astype(int)] = scores
        return torch.from_numpy(found)


def written(steps: Sequence[Any]) -> bytes:
    """Return fitted steps as a file: the same bytes for the same numbers."""
    arrays: list[np.ndarray[Any, Any]] = []
    told = []
    for step in steps:
        kind, held = kind_of(step), {}
        for name in ANSWERS[kind]:
            held[name] = len(arrays)
            arrays.append(np.ascontiguousarray(getattr(step, name)))
        told.append({"kind": kind, "settings": step.get_params(deep=False), "arrays": held})
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as file:
        file.writestr(zipfile.ZipInfo("steps.json", MOMENT), json.dumps(told, sort_keys=True))
        for place, array in enumerate(arrays):
            part = io.BytesIO()
            np.save(part, array, allow_pickle=False)
            file.writestr(zipfile.ZipInfo(f"{place}.npy", MOMENT), part.getvalue())
    return out.getvalue()


def read(data: bytes) -> list[Any]:
    """Return the steps of a file that ``written`` made. Raises RecipeError where a class is not on the list."""
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        told = json.loads(file.read("steps.json"))
        steps = []
        for each in told:
            if each["kind"] not in ANSWERS:
                raise RecipeError(f"The file holds a {each['kind']!r}.", f"Known: {_known()}.")
            module, name = each["kind"].split(".")
            step = getattr(import_module(f"sklearn.{module}"), name)(**each["settings"])
            for attribute, place in each["arrays"].items():
                array = np.load(io.BytesIO(file.read(f"{place}.npy")), allow_pickle=False)
                setattr(step, attribute, array if array.ndim else array.item())
            steps.append(step)
    return steps


def kind_of(step: Any) -> str:
    """Return a step's class as ``ANSWERS`` names it."""
    package, _, rest = type(step).__module__.partition(".")
    return f"{rest.partition('.')[0]}.{type(step).__name__}" if package == "sklearn" else type(step).__name__


def _known() -> str:
    return ", ".join(sorted(name.partition(".")[2] for name in ANSWERS))
