"""Fitted preprocessing of scikit-learn as JSON and plain arrays, which is published with a model.

A pickle runs code where it is opened. So the files have each step's class, its settings and the arrays that it answers
from, by a list of what may stay: the same bytes for the same fit.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeAlias

import numpy as np

from unlearning.types import RecipeError

Array: TypeAlias = "np.ndarray[Any, Any]"
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
    "preprocessing.MaxAbsScaler": ("scale_",),
    "preprocessing.RobustScaler": ("center_", "scale_"),
    "preprocessing.Normalizer": (),
    "preprocessing.Binarizer": (),
    "preprocessing.OneHotEncoder": ("categories_",),
    "preprocessing.OrdinalEncoder": ("categories_",),
    "impute.SimpleImputer": ("statistics_", "indicator_"),
    "decomposition.PCA": ("components_", "mean_", "explained_variance_", "n_components_"),
}
"""what of a fitted step answers, and no count. MinMaxScaler's tell the least and the greatest value of a column"""
HOLD_ROWS = {"svm.SVC", "svm.SVR", "neighbors.KNeighborsClassifier", "neighbors.KNeighborsRegressor"}
"""answer from rows of people, as support vectors and neighbours are"""
COLUMNS = "columns"
"""the kind of a ColumnTransformer in the file"""
SEED = 0
"""of a step that is given no random_state"""
OTHERS = "Another one: write what it answers from into the files of ul.Published yourself."


@dataclass(frozen=True)
class Columns:
    """Steps side by side, each for some columns, as a ColumnTransformer has them; None: columns that are dropped.

    ``rest`` is for the columns that no part names.
    """

    parts: tuple[tuple[tuple[int, ...], tuple[Any, ...] | None], ...]
    rest: tuple[Any, ...] | None

    def transform(self, x: Array) -> Array:
        return np.hstack([through(steps, x[:, list(chosen)]) for chosen, steps in self._each(x.shape[1])])

    def _each(self, width: int) -> Iterator[tuple[tuple[int, ...], tuple[Any, ...]]]:
        named = {column % width for columns, _ in self.parts for column in columns}
        rest = tuple(column for column in range(width) if column not in named)
        for columns, steps in (*self.parts, (rest, self.rest)):
            if columns and steps is not None:
                yield columns, steps


def through(steps: Sequence[Any], x: Array) -> Array:
    """Return what steps make of rows (n, k), one after the other."""
    for step in steps:
        x = step.transform(x)
        x = np.asarray(x.toarray() if hasattr(x, "toarray") else x)
    return x


def _places(name: str, columns: Any, names: Sequence[str]) -> tuple[int, ...]:
    """Return the numbers of columns that are named, or numbered."""
    chosen = [columns] if isinstance(columns, str | int) else columns
    known = {each: place for place, each in enumerate(names)}
    if not isinstance(chosen, Sequence) or any(type(each) not in (int, str) for each in chosen):
        raise RecipeError(f"The step {name!r} chooses its columns by {columns!r}.", "Give a list of names or numbers.")
    missing = [each for each in chosen if isinstance(each, str) and each not in known]
    if missing:
        raise RecipeError(
            f"The step {name!r} names the column {missing[0]!r}, and the rows have {', '.join(names) or 'no names'}.",
            "Name columns of the frame x; behind another step give their numbers.",
        )
    return tuple(known[each] if isinstance(each, str) else each for each in chosen)


def _require_known(name: str, step: Any) -> None:
    kind, settings = kind_of(step), step.get_params(deep=False)
    if kind in HOLD_ROWS:
        raise RecipeError(f"The step {name!r}, a {kind}, holds rows of people.", "Publish what holds none.")
    if kind not in ANSWERS:
        raise RecipeError(f"The step {name!r} ({kind}) is not known as plain arrays.", f"Known: {_known()}. {OTHERS}")
    if not isinstance(settings.get("random_state") or SEED, int):
        what = f"The step {name!r} has random_state={settings['random_state']!r}: two trainings may differ."
        raise RecipeError(what, "Give a whole number.")
    wrong = {
        "kernel": settings.get("kernel") == "precomputed",
        "metric": settings.get("metric") == "precomputed",
        "decision_function_shape": settings.get("decision_function_shape") == "ovo",
        "min_frequency": settings.get("min_frequency") is not None,
        "max_categories": settings.get("max_categories") is not None,
    }
    for setting in (setting for setting, is_wrong in wrong.items() if is_wrong):
        what = f"The step {name!r} has {setting}={settings[setting]!r}, which the file of arrays cannot hold."
        raise RecipeError(what, f"Leave {setting} out, or publish it by yourself. {OTHERS}")
    try:
        json.dumps(_plain(settings))
    except TypeError:
        raise RecipeError(f"The settings of {name!r} are no plain values.", "Give numbers and texts.") from None


def files_of_fitted(name: str, fitted: Any) -> dict[str, bytes]:
    """Return the files of a fitted transformer beneath ``name``: a JSON text and ``.npy`` arrays.

    ``fitted`` may be a pipeline or a ColumnTransformer; or an object of plain values, which becomes one JSON text.

    Raises:
        RecipeError: it cannot be written so, it is not fitted, or it holds rows of people.
    """
    if isinstance(fitted, Mapping):
        try:
            return {f"{name}.json": json.dumps(fitted, sort_keys=True, allow_nan=False).encode()}
        except (TypeError, ValueError):
            raise RecipeError(f"publish gives {name!r} values that JSON has not.", "Give numbers and texts.") from None
    arrays: list[Array] = []
    steps = _as_fitted(name, fitted)
    try:
        told = _told(steps, arrays)
        content = {f"{place}.npy": _npy(array) for place, array in enumerate(arrays)}
    except (AttributeError, ValueError) as error:
        what = f"publish gives {name!r}, which cannot be written as arrays: {error}."
        raise RecipeError(what, "Fit it on the rows first, and give it numbers or texts alone.") from None
    content["steps.json"] = json.dumps({"steps": told}, sort_keys=True).encode()
    return {f"{name}/{file}": data for file, data in content.items()}


def fitted_from_files(files: Mapping[str, bytes], name: str) -> tuple[Any, ...]:
    """Return the steps of a transformer that ``publish`` named, from the published files; ``through`` applies them.

    Raises KeyError where there is none, RecipeError where a class is not on the list.
    """

    def array(place: Any) -> Any:
        if place is None or isinstance(place, list):
            return None if place is None else [array(each) for each in place]
        found = np.load(io.BytesIO(files[f"{name}/{int(place)}.npy"]), allow_pickle=False)
        return found if found.ndim else found.item()

    return _steps(json.loads(files[f"{name}/steps.json"])["steps"], array)


def _as_fitted(name: str, step: Any) -> tuple[Any, ...]:
    """Return the fitted steps that a fitted one consists of. Raises RecipeError."""
    if isinstance(step, str) or (kind_of(step) == "preprocessing.FunctionTransformer" and step.func is None):
        return ()  # passthrough
    if hasattr(step, "steps"):
        return tuple(part for inner, within in step.steps for part in _as_fitted(f"{name}/{inner}", within))
    if kind_of(step) != "compose.ColumnTransformer":
        if not hasattr(step, "get_params"):
            raise RecipeError(f"publish gives {name!r} a {type(step).__name__}.", f"Known: {_known()}.")
        _require_known(name, step)
        return (step,)
    if step.transformer_weights is not None:
        raise RecipeError(f"The step {name!r} has transformer_weights.", "Leave them out.")
    if not hasattr(step, "transformers_"):
        raise RecipeError(f"publish gives {name!r}, which is not fitted.", "Fit it on the rows first.")
    names = [*map(str, getattr(step, "feature_names_in_", ()))]
    parts = tuple(
        (_places(f"{name}/{inner}", columns, names), None if isinstance(part, str) and part == "drop" else within)
        for inner, part, columns in step.transformers_
        for within in [() if isinstance(part, str) else _as_fitted(f"{name}/{inner}", part)]
    )
    return (Columns(parts, None),)


def _npy(array: Array) -> bytes:
    """Return an array as ``numpy.save`` writes it; texts as texts."""
    if array.dtype.hasobject and all(isinstance(value, str) for value in array.flat):
        array = array.astype(str)
    part = io.BytesIO()
    np.save(part, array, allow_pickle=False)
    return part.getvalue()


def _told(steps: Sequence[Any], arrays: list[Array]) -> list[dict[str, Any]]:
    """Return the steps as JSON can hold them; their arrays are added to ``arrays`` and told by number."""
    found: list[dict[str, Any]] = []
    for step in steps:
        if isinstance(step, Columns):
            parts = [[columns, None if within is None else _told(within, arrays)] for columns, within in step.parts]
            rest = None if step.rest is None else _told(step.rest, arrays)
            found.append({"kind": COLUMNS, "parts": parts, "rest": rest})
            continue
        kind, held = kind_of(step), {}
        for name in ANSWERS[kind]:
            held[name] = _kept(getattr(step, name), arrays)
        found.append({"kind": kind, "settings": _plain(step.get_params(deep=False)), "arrays": held})
    return found


def _kept(value: Any, arrays: list[Array]) -> Any:
    if value is None:
        return None
    if isinstance(value, list):  # the categories of each column
        return [_kept(each, arrays) for each in value]
    arrays.append(np.asarray(getattr(value, "features_", value), order="C"))  # of a MissingIndicator
    return len(arrays) - 1


def _steps(told: Sequence[dict[str, Any]], array: Callable[[Any], Any]) -> tuple[Any, ...]:
    found: list[Any] = []
    for each in told:
        if each["kind"] == COLUMNS:
            parts = tuple(
                (tuple(at), None if within is None else _steps(within, array)) for at, within in each["parts"]
            )
            found.append(Columns(parts, None if each["rest"] is None else _steps(each["rest"], array)))
            continue
        if each["kind"] not in ANSWERS:
            raise RecipeError(f"The file holds a {each['kind']!r}.", f"Known: {_known()}.")
        module, name = each["kind"].split(".")
        step = getattr(import_module(f"sklearn.{module}"), name)(**each["settings"])
        for attribute, place in each["arrays"].items():
            setattr(step, attribute, array(place))
        _COMPLETED.get(each["kind"], lambda _: None)(step)
        found.append(step)
    return tuple(found)


def _encoder(step: Any) -> None:
    """Fit on a row of known categories, which gives what the class keeps beside them."""
    given, step.categories = step.categories, step.categories_
    has_texts = any(known.dtype.kind == "U" for known in step.categories_)
    step.fit(np.array([[known[0] for known in step.categories_]], dtype=object if has_texts else None))
    step.categories = given


def _imputer(step: Any) -> None:
    """Fit on a row of the statistics, each of which is its own mean, and on one that has what is told to be missing."""
    marker, told = step.missing_values, step.indicator_
    known = np.where(np.isnan(step.statistics_), marker, step.statistics_)
    missing = known.copy()
    missing[[] if told is None else told] = marker
    step.fit(np.stack([known, missing]))


_COMPLETED: dict[str, Callable[[Any], None]] = {
    **dict.fromkeys(("preprocessing.OneHotEncoder", "preprocessing.OrdinalEncoder"), _encoder),
    "impute.SimpleImputer": _imputer,
}
"""what makes a step complete, after its arrays are set"""


def _plain(settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings, with numpy's types by name."""
    return {key: np.dtype(value).name if isinstance(value, type) else value for key, value in settings.items()}


def kind_of(step: Any) -> str:
    """Return a step's class as ``ANSWERS`` names it."""
    package, _, rest = type(step).__module__.partition(".")
    return f"{rest.partition('.')[0]}.{type(step).__name__}" if package == "sklearn" else type(step).__name__


def _known() -> str:
    return ", ".join(sorted(name.partition(".")[2] for name in ANSWERS))
