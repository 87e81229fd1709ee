"""LightGBM and XGBoost: their own model files, scrubbed, and merged from several members."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unlearning.artefact import Artefact
from unlearning.bins import Grid
from unlearning.recipe import Run
from unlearning.types import RecipeError

LIGHTGBM_OPTIONS = frozenset(
    [
        "alpha",
        "bagging_fraction",
        "bagging_freq",
        "cat_l2",
        "cat_smooth",
        "extra_trees",
        "fair_c",
        "feature_fraction",
        "feature_fraction_bynode",
        "interaction_constraints",
        "lambda_l1",
        "lambda_l2",
        "learning_rate",
        "max_cat_threshold",
        "max_cat_to_onehot",
        "max_delta_step",
        "max_depth",
        "min_data_in_leaf",
        "min_data_per_group",
        "min_gain_to_split",
        "min_sum_hessian_in_leaf",
        "monotone_constraints",
        "num_leaves",
        "path_smooth",
        "poisson_max_delta_step",
        "scale_pos_weight",
        "tweedie_variance_power",
    ]
)
XGBOOST_OPTIONS = frozenset(
    [
        "alpha",
        "colsample_bylevel",
        "colsample_bynode",
        "colsample_bytree",
        "eta",
        "gamma",
        "grow_policy",
        "huber_slope",
        "interaction_constraints",
        "lambda",
        "learning_rate",
        "max_delta_step",
        "max_depth",
        "max_leaves",
        "min_child_weight",
        "monotone_constraints",
        "quantile_alpha",
        "reg_alpha",
        "reg_lambda",
        "scale_pos_weight",
        "subsample",
        "tweedie_variance_power",
    ]
)
LIGHTGBM_HEADER = ("version", "num_class", "num_tree_per_iteration", "label_index", "max_feature_idx", "objective")
LIGHTGBM_TREE = (
    "num_leaves",
    "num_cat",
    "split_feature",
    "threshold",
    "decision_type",
    "left_child",
    "right_child",
    "leaf_value",
    "cat_boundaries",
    "cat_threshold",
    "is_linear",
    "shrinkage",
)
"""what of a tree answers; left out are gains, and counts, weights and values of nodes"""
XGBOOST_TREE = (
    "categories",
    "categories_nodes",
    "categories_segments",
    "categories_sizes",
    "default_left",
    "id",
    "left_children",
    "parents",
    "right_children",
    "split_conditions",
    "split_indices",
    "split_type",
    "tree_param",
)
XGBOOST_ZEROS = ("base_weights", "loss_changes", "sum_hessian")
"""what XGBoost must find in a tree, and what no answer needs"""
XGBOOST = ("xgboost-cpu", "xgboost")
"""its packages, one of which is installed"""
GREATEST = 1.7976931348623157e308
STOPPING = "early_stopping"


def lightgbm(
    grid: Grid, *, rounds: int = 400, objective: str | None = None, classes: int = 1, **options: Any
) -> tuple[Artefact, LightGBM]:
    """Return the model and the training of a LightGBM booster; its raw scores are (n,), of several classes (n, K).

    Args:
        grid: where trees may split.
        rounds: how many trees, for each class.
        objective: ``binary`` (with the loss ``binary_logistic``), ``multiclass`` (``cross_entropy``), ``regression``
            (``squared_error``), or another of the library's. Left out, it is ``multiclass`` where there are classes.
        classes: K, for ``multiclass``.
        options: of the library, by their first names; those that read other people's rows are refused.

    Raises:
        RecipeError: an option that is not allowed.
    """
    _require(options, LIGHTGBM_OPTIONS, "lightgbm")
    fixed = _objective(objective or ("multiclass" if classes > 1 else "binary"), classes)
    train = LightGBM(grid, rounds, {**options, **fixed})
    return Artefact(_ask_lightgbm, _merge_lightgbm, "lightgbm.txt", ("lightgbm",), threads=1, clean=True), train


def xgboost(
    grid: Grid, *, rounds: int = 400, objective: str | None = None, classes: int = 1, **options: Any
) -> tuple[Artefact, XGBoost]:
    """Return the model and the training of an XGBoost booster, as ``lightgbm`` does; a grid without categories.

    Raises:
        RecipeError: an option that is not allowed, or a category.
    """
    _require(options, XGBOOST_OPTIONS, "xgboost")
    if grid.categories:
        name = grid.names[grid.categories[0]]
        raise RecipeError(f"{name!r} is a category.", "Use lightgbm, or give xgboost a column for each of its values.")
    fixed = _objective(objective or ("multi:softprob" if classes > 1 else "binary:logistic"), classes)
    train = XGBoost(grid, rounds, {**options, **fixed})
    return Artefact(_ask_xgboost, _merge_xgboost, "xgboost.json", XGBOOST, threads=1, clean=True), train


def _objective(objective: str, classes: int) -> dict[str, Any]:
    return {"objective": objective, **({"num_class": classes} if classes > 1 else {})}


def _require(options: Mapping[str, Any], allowed: frozenset[str], library: str) -> None:
    for name in sorted(options.keys() - allowed):
        stopping = STOPPING in name
        fix = (
            "It would look at rows of people that this training is not handed. Choose rounds; or write a train that "
            "stops by run.validation."
            if stopping
            else f"The options are: {', '.join(sorted(allowed))}."
        )
        raise RecipeError(f"{library} has no option {name!r} here.", fix)


@dataclass(frozen=True)
class LightGBM:
    """Trains on the bins of the grid, and writes the grid's own edges into the model."""

    grid: Grid
    rounds: int
    options: Mapping[str, Any]

    def __call__(self, run: Run) -> bytes:
        library: Any = import_module("lightgbm")
        settings = {
            **self.options,
            "num_threads": 1,
            "deterministic": True,
            "force_row_wise": True,
            "seed": run.seed,
            "verbose": -1,
            "max_bin": self.grid.most + 1,
            "min_data_in_bin": 1,
            "bin_construct_sample_cnt": max(1, len(run.inputs)),
        }
        named, categories = list(self.grid.names), self.grid.categories
        bins, labels = self.grid.bins(run.inputs), run.targets.cpu().numpy()
        data = library.Dataset(
            bins, labels, weight=weights_of(run), feature_name=named, categorical_feature=categories, params=settings
        )
        booster = library.train(settings, data, self.rounds)
        return scrubbed(booster.model_to_string(), self.grid).encode()


def weights_of(run: Run) -> np.ndarray[Any, Any] | None:
    """Return the weight of each sample, (n,), where the recipe's samples have one."""
    return None if run.weights is None else run.weights.cpu().numpy()


def scrubbed(text: str, grid: Grid) -> str:
    """Return a LightGBM model with the fields that answer alone, its thresholds taken from bins to the grid's edges."""
    header, *trees = text.partition("end of trees")[0].split("\nTree=")
    known = dict(line.partition("=")[::2] for line in header.splitlines())
    kept = {name: known[name] for name in LIGHTGBM_HEADER if name in known}
    kept["feature_names"] = " ".join(grid.names)
    kept["feature_infos"] = " ".join(_span(each) for each in grid.edges)
    return _written(kept, [_tree(each, grid) for each in trees])


def _span(edges: Tensor | int) -> str:
    if isinstance(edges, int):
        return ":".join(map(str, range(edges)))
    return f"[{float(edges[0])!r}:{float(edges[-1])!r}]"


def _tree(text: str, grid: Grid) -> dict[str, str]:
    found = dict(line.partition("=")[::2] for line in text.splitlines()[1:] if line)
    kept = {name: found[name] for name in LIGHTGBM_TREE if name in found}
    if "threshold" in kept:
        splits = zip(
            kept["split_feature"].split(), kept["decision_type"].split(), kept["threshold"].split(), strict=True
        )
        kept["threshold"] = " ".join(_edge(grid, int(feature), int(kind), value) for feature, kind, value in splits)
    return kept


def _edge(grid: Grid, feature: int, kind: int, value: str) -> str:
    """Return a threshold in the column's own units. Of a category (kind is odd) it is a place in ``cat_threshold``."""
    edges = grid.edges[feature]
    if kind & 1 or isinstance(edges, int):
        return value
    place = math.floor(min(float(value), len(edges)))  # infinite where what is missing is split off
    return repr(float(edges[place]) if place < len(edges) else GREATEST)


def _written(header: Mapping[str, str], trees: Sequence[Mapping[str, str]]) -> str:
    """Return the text of a model: header, the size of each tree, trees."""
    bodies = [_lines({"Tree": str(place), **tree}) + "\n\n" for place, tree in enumerate(trees)]
    sizes = " ".join(str(len(each)) for each in bodies)
    return f"tree\n{_lines({**header, 'tree_sizes': sizes})}\n{''.join(bodies)}end of trees\n"


def _lines(fields: Mapping[str, str]) -> str:
    return "".join(f"{name}={value}\n" for name, value in fields.items())


def _merge_lightgbm(members: Sequence[bytes]) -> bytes:
    """Return one model of the members' trees one after the other, with leaves divided by the number of members."""
    header: dict[str, str] = {}
    trees: list[dict[str, str]] = []
    for member in members:
        first, *bodies = member.decode().partition("end of trees")[0].split("\nTree=")
        header = dict(line.partition("=")[::2] for line in first.splitlines()[1:])
        for body in bodies:
            tree = dict(line.partition("=")[::2] for line in body.splitlines()[1:] if line)
            tree["leaf_value"] = " ".join(repr(float(each) / len(members)) for each in tree["leaf_value"].split())
            trees.append(tree)
    return _written({name: value for name, value in header.items() if name != "tree_sizes"}, trees).encode()


def _ask_lightgbm(data: bytes, x: Tensor) -> Tensor:
    library: Any = import_module("lightgbm")
    booster = library.Booster(model_str=data.decode())
    found = booster.predict(x.detach().cpu().numpy().astype(np.float64), raw_score=True, num_threads=1)
    return torch.from_numpy(np.asarray(found, dtype=np.float64))


@dataclass(frozen=True)
class XGBoost:
    """Trains on the bins of the grid, and writes the grid's own edges into the model."""

    grid: Grid
    rounds: int
    options: Mapping[str, Any]

    def __call__(self, run: Run) -> bytes:
        library: Any = import_module("xgboost")
        logistic = ":logistic" in str(self.options["objective"])
        settings = {
            **self.options,
            "nthread": 1,
            "tree_method": "hist",
            "seed": run.seed,
            "max_bin": self.grid.most + 1,
            "base_score": 0.5 if logistic else 0.0,  # the same in each member, so that their scores add up
            "verbosity": 0,
        }
        bins, labels = self.grid.bins(run.inputs, np.float32), run.targets.cpu().numpy()
        named, weights = list(self.grid.names), weights_of(run)
        data = library.DMatrix(bins, labels, weight=weights, feature_names=named, nthread=1)
        booster = library.train(settings, data, self.rounds)
        return scrubbed_json(json.loads(bytes(booster.save_raw("json"))), self.grid)


def scrubbed_json(model: dict[str, Any], grid: Grid) -> bytes:
    """Return an XGBoost model with the fields that answer alone, its thresholds taken to the grid's edges, float32."""
    learner = model["learner"]
    forest = learner["gradient_booster"]["model"]
    above = [
        np.nextafter(each.numpy().astype(np.float32), np.float32(np.inf))
        for each in grid.edges
        if not isinstance(each, int)
    ]
    for tree in forest["trees"]:
        for name in set(tree) - {*XGBOOST_TREE, *XGBOOST_ZEROS}:
            del tree[name]
        for name in XGBOOST_ZEROS:
            tree[name] = [0.0] * len(tree["left_children"])
        splits = zip(tree["split_indices"], tree["left_children"], tree["split_conditions"], strict=True)
        # XGBoost asks for x < t: bins below t are those of x <= edges[ceil(t) - 1], so x < the next number above it
        tree["split_conditions"] = [
            value if left < 0 else _above(above[feature], math.ceil(value) - 1) for feature, left, value in splits
        ]
    learner["attributes"] = {}
    return json.dumps(model, separators=(",", ":")).encode()


def _above(edges: np.ndarray[Any, Any], place: int) -> float:
    return float(edges[place]) if place < len(edges) else float(np.finfo(np.float32).max)


def _merge_xgboost(members: Sequence[bytes]) -> bytes:
    """Return one model of the members' trees one after the other, with leaves divided by the number of members."""
    models = [json.loads(each) for each in members]
    whole = models[0]["learner"]["gradient_booster"]["model"]
    trees: list[dict[str, Any]] = []
    info: list[int] = []
    starts = [0]
    for model in models:
        forest = model["learner"]["gradient_booster"]["model"]
        starts += [len(trees) + each for each in forest["iteration_indptr"][1:]]
        info += forest["tree_info"]
        for tree in forest["trees"]:
            nodes = zip(tree["left_children"], tree["split_conditions"], strict=True)
            tree["split_conditions"] = [
                float(np.float32(value / len(members))) if left < 0 else value for left, value in nodes
            ]
            trees.append({**tree, "id": len(trees)})
    whole |= {"trees": trees, "tree_info": info, "iteration_indptr": starts}
    whole["gbtree_model_param"]["num_trees"] = str(len(trees))
    return json.dumps(models[0], separators=(",", ":")).encode()


def _ask_xgboost(data: bytes, x: Tensor) -> Tensor:
    library: Any = import_module("xgboost")
    booster = library.Booster({"nthread": 1})
    booster.load_model(bytearray(data))
    names = booster.feature_names
    given = library.DMatrix(x.detach().cpu().numpy().astype(np.float32), feature_names=names, nthread=1)
    return torch.from_numpy(np.asarray(booster.predict(given, output_margin=True), dtype=np.float64))
