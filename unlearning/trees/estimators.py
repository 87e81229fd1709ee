"""Trees of scikit-learn, as one array of nodes: ``numpy.load`` reads it, and no code is in it."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unlearning.artefact import Artefact
from unlearning.bins import Array, Grid
from unlearning.recipe import Run
from unlearning.trees.boosted import weights_of
from unlearning.types import RecipeError

AT_ONCE = 2**18
"""samples times trees that are walked at once: their places stay in a processor's cache"""
LEAST = 1e-15
"""the least probability that a forest's answer has: its logarithm is finite"""
FORESTS = ("RandomForestClassifier", "RandomForestRegressor", "ExtraTreesClassifier", "ExtraTreesRegressor")
BOOSTED = ("HistGradientBoostingClassifier", "HistGradientBoostingRegressor")
FEWER = "Take a forest. Where there are shards, use fewer."


def sklearn(grid: Grid, estimator: Any, *, classes: int = 1) -> tuple[Artefact, Estimator]:
    """Return the model and the training of a HistGradientBoosting, a random forest or extremely random trees.

    The file holds one row for each node: ``root``, ``feature`` (-1: a leaf), ``threshold`` (left where x <= it),
    ``left``, ``right``, ``missing_left``, ``value`` (K,). The answer is the sum of the leaves' values: of boosting the
    raw score, of a forest the mean.

    Args:
        grid: where trees may split; without categories.
        estimator: one that is not fitted; its ``random_state`` is a number, or left out, which is 0.
        classes: K, of a classifier. A booster of two classes answers with one score (the loss ``binary_logistic``), all
            other classifiers with K logarithms or scores (``cross_entropy``).

    Raises:
        RecipeError: another estimator, a ``random_state`` that is no number, a category, too many bins.
    """
    kind = type(estimator).__name__
    if kind not in (*FORESTS, *BOOSTED):
        raise RecipeError(f"The estimator is a {kind}.", f"Use one of {', '.join((*FORESTS, *BOOSTED))}.")
    seed = 0 if estimator.random_state is None else estimator.random_state
    if not isinstance(seed, int):
        raise RecipeError(f"{kind} has random_state={estimator.random_state!r}.", "Give a whole number.")
    if grid.categories:
        raise RecipeError(f"{grid.names[grid.categories[0]]!r} is a category.", "Use ul.trees.lightgbm.")
    if kind in BOOSTED and grid.most > estimator.max_bins:
        raise RecipeError(f"The grid has {grid.most} bins, and max_bins is {estimator.max_bins}.", "Write fewer edges.")
    classifier = kind.endswith("Classifier")
    if classifier == (classes < 2):
        raise RecipeError(f"{kind} has {classes} classes.", "Give classes of a classifier, and of no other.")
    ask: Callable[[bytes, Tensor], Tensor] = partial(_ask, logarithm=classifier and kind in FORESTS)
    train = Estimator(grid, kind, {**estimator.get_params(deep=False), "random_state": seed}, classes)
    return Artefact(ask, _merge, "trees.npy", ("scikit-learn", "numpy"), threads=1, clean=True), train


@dataclass(frozen=True)
class Estimator:
    """Fits a new estimator of this kind on the bins of the grid, and writes the nodes with the grid's own edges."""

    grid: Grid
    kind: str
    options: dict[str, Any]
    classes: int

    def __call__(self, run: Run) -> bytes:
        if self.kind in BOOSTED and len(run.inputs) < 2:
            raise RecipeError("One of the trainings has a single sample.", FEWER)
        ensemble: Any = import_module("sklearn.ensemble")
        one_thread = {"n_jobs": 1} if "n_jobs" in self.options else {}
        estimator = getattr(ensemble, self.kind)(**{**self.options, **one_thread, "verbose": 0})
        with import_module("threadpoolctl").threadpool_limits(1):
            estimator.fit(self.grid.bins(run.inputs), run.targets.cpu().numpy(), sample_weight=weights_of(run))
        parts = _boosted(estimator, self.classes) if self.kind in BOOSTED else _forest(estimator, self.classes)
        return _packed(np.concatenate(list(_placed(_with_edges(each, self.grid) for each in parts))))


def _kind(width: int) -> np.dtype[Any]:
    return np.dtype(
        [
            ("root", "?"),
            ("missing_left", "?"),
            ("feature", "<i4"),
            ("left", "<i4"),
            ("right", "<i4"),
            ("threshold", "<f8"),
            ("value", "<f8", (width,)),
        ]
    )


def _boosted(estimator: Any, classes: int) -> Iterator[Array]:
    """Yield the nodes of each tree, and before them the first guess, as a tree of one leaf."""
    width = estimator.n_trees_per_iteration_
    if classes > 1 and len(estimator.classes_) != classes:
        what = f"The samples of one training have {len(estimator.classes_)} of {classes} classes."
        raise RecipeError(what, FEWER)
    first = _empty(1, width)
    first["value"][0] = estimator._baseline_prediction.reshape(-1)
    yield first
    for at_once in estimator._predictors:
        for column, predictor in enumerate(at_once):
            nodes, found = predictor.nodes, _empty(len(predictor.nodes), width)
            inner = nodes["is_leaf"] == 0
            found["feature"][inner] = nodes["feature_idx"][inner]
            found["threshold"][inner] = nodes["num_threshold"][inner]
            found["missing_left"][inner] = nodes["missing_go_to_left"][inner]
            found["left"][inner], found["right"][inner] = nodes["left"][inner], nodes["right"][inner]
            found["value"][~inner, column] = nodes["value"][~inner]
            yield found


def _forest(estimator: Any, classes: int) -> Iterator[Array]:
    """Yield the nodes of each tree; a leaf has its share of the mean."""
    for each in estimator.estimators_:
        tree = each.tree_
        # (nodes, targets, 1) of a regression, (nodes, 1, classes) of one classification
        answers = tree.value[:, :, 0] if classes < 2 else _columns(tree.value[:, 0, :], estimator, classes)
        values = answers / len(estimator.estimators_)
        found, inner = _empty(tree.node_count, values.shape[1]), tree.children_left >= 0
        found["feature"][inner] = tree.feature[inner]
        found["threshold"][inner] = tree.threshold[inner]
        found["missing_left"][inner] = tree.missing_go_to_left[inner]
        found["left"][inner], found["right"][inner] = tree.children_left[inner], tree.children_right[inner]
        found["value"][~inner] = values[~inner]
        yield found


def _columns(values: Array, estimator: Any, classes: int) -> Array:
    """Return values (m, classes found) as (m, K): a class that the samples lack has probability 0."""
    whole = np.zeros((len(values), classes))
    whole[:, np.asarray(estimator.classes_, dtype=np.int64)] = values
    return whole


def _empty(count: int, width: int) -> Array:
    nodes = np.zeros(count, dtype=_kind(width))
    nodes["feature"] = -1
    nodes["root"][0] = True
    return nodes


def _with_edges(nodes: Array, grid: Grid) -> Array:
    """Take thresholds from bins to the grid's edges; one above all bins splits off what is missing."""
    for feature, edges in enumerate(grid.edges):
        here = nodes["feature"] == feature
        if isinstance(edges, int) or not here.any():
            continue
        table = np.append(edges.numpy(), np.inf)
        nodes["threshold"][here] = table[np.floor(nodes["threshold"][here].clip(max=len(edges))).astype(np.int64)]
    return nodes


def _placed(parts: Iterator[Array] | Sequence[Array]) -> Iterator[Array]:
    """Yield arrays of nodes, with children counted from the first node of all."""
    start = 0
    for nodes in parts:
        inner = nodes["feature"] >= 0
        nodes["left"][inner] += start
        nodes["right"][inner] += start
        start += len(nodes)
        yield nodes


def _merge(members: Sequence[bytes]) -> bytes:
    """Return the nodes of all members, with leaves divided by the number of members."""
    parts = [_read(each) for each in members]
    for nodes in parts:
        nodes["value"] /= len(parts)
    return _packed(np.concatenate(list(_placed(parts))))


def _packed(nodes: Array) -> bytes:
    file = io.BytesIO()
    np.save(file, nodes, allow_pickle=False)
    return file.getvalue()


def _read(data: bytes) -> Array:
    found: Array = np.load(io.BytesIO(data), allow_pickle=False)
    return found


def _ask(data: bytes, x: Tensor, *, logarithm: bool) -> Tensor:
    nodes, values = _read(data), x.detach().cpu().numpy().astype(np.float64)
    roots = np.flatnonzero(nodes["root"])
    size = max(1, AT_ONCE // len(roots))
    parts = [_walk(nodes, roots, values[start : start + size]) for start in range(0, len(values), size)]
    found = torch.from_numpy(np.concatenate(parts))
    if logarithm:
        return found.clamp(min=LEAST).log()
    return found.squeeze(1) if found.shape[1] == 1 else found


def _walk(nodes: Array, roots: Array, x: Array) -> Array:
    """Return the sum of the leaves' values, (n, K), that inputs (n, columns) end in."""
    inner = nodes["feature"] >= 0
    left, right = (np.where(inner, nodes[side], np.arange(len(nodes))) for side in ("left", "right"))
    children = np.stack([right, left], axis=1).ravel()  # a leaf leads to itself
    feature, threshold, missing = (nodes[name].copy() for name in ("feature", "threshold", "missing_left"))
    at, rows = np.broadcast_to(roots, (len(x), len(roots))), np.arange(len(x))[:, None]
    while inner[at].any():
        values = x[rows, feature[at]]  # of a leaf the last column, which decides nothing
        goes_left = (values <= threshold[at]) | (np.isnan(values) & missing[at])
        at = children[2 * at + goes_left]
    total: Array = nodes["value"][at].sum(axis=1)
    return total
