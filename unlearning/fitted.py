"""Estimators of scikit-learn as bytes: fitted inside ``train``, steps and all, and published as JSON and plain arrays.

A pickle runs code where it is opened. So the file has each step's class, its settings and the arrays that it answers
from, by a list of what may stay: a zip file of one JSON text and ``.npy`` arrays, the same bytes for the same fit.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from unlearning.recipe import Run
from unlearning.types import RecipeError

Array: TypeAlias = "np.ndarray[Any, Any]"
_LINEAR, _CLASSES = ("coef_", "intercept_"), ("coef_", "intercept_", "classes_")
_MACHINE = ("support_vectors_", "_dual_coef_", "_intercept_", "_n_support", "_gamma", "_probA", "_probB")
ANSWERS: dict[str, tuple[str, ...]] = {
    "linear_model.LogisticRegression": _CLASSES,
    "linear_model.SGDClassifier": _CLASSES,
    "svm.LinearSVC": _CLASSES,
    "svm.SVC": (*_MACHINE, "classes_"),
    "svm.SVR": _MACHINE,
    "neighbors.KNeighborsClassifier": ("_fit_X", "_y", "classes_"),
    "neighbors.KNeighborsRegressor": ("_fit_X", "_y"),
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
MAY_MISS = {"impute.SimpleImputer", "preprocessing.OneHotEncoder", "preprocessing.OrdinalEncoder"}
"""take NaN for a value that is not known"""
COLUMNS = "columns"
"""the kind of a ColumnTransformer in the file"""
MOMENT = (1980, 1, 1, 0, 0, 0)
"""of each part of the file"""
ABSENT = -1e9
"""the score of a class that no person who is left has"""
LEAST = 1e-15
"""the least probability of an answer: its logarithm is finite"""
SEED = 0
"""of a step that is given no random_state"""
OTHERS = (
    "Forests and boosting are ul.trees.sklearn(grid, ...); for another one give ul.Recipe(model=ul.Artefact(...), "
    "train=...), a training of your own that returns a safe file."
)


@dataclass(frozen=True)
class Columns:
    """Steps side by side, each for some columns, as a ColumnTransformer has them; None: columns that are dropped.

    ``rest`` is for the columns that no part names.
    """

    parts: tuple[tuple[tuple[int, ...], tuple[Any, ...] | None], ...]
    rest: tuple[Any, ...] | None

    def fit_transform(self, x: Array) -> Array:
        return np.hstack([through(steps, x[:, list(chosen)], fit=True) for chosen, steps in self._each(x.shape[1])])

    def transform(self, x: Array) -> Array:
        return np.hstack([through(steps, x[:, list(chosen)]) for chosen, steps in self._each(x.shape[1])])

    def _each(self, width: int) -> Iterator[tuple[tuple[int, ...], tuple[Any, ...]]]:
        named = {column % width for columns, _ in self.parts for column in columns}
        rest = tuple(column for column in range(width) if column not in named)
        for columns, steps in (*self.parts, (rest, self.rest)):
            if columns and steps is not None:
                yield columns, steps


def through(steps: Sequence[Any], x: Array, *, fit: bool = False) -> Array:
    """Return what steps make of rows (n, k), one after the other."""
    for step in steps:
        x = step.fit_transform(x) if fit else step.transform(x)
        x = np.asarray(x.toarray() if hasattr(x, "toarray") else x)
    return x


def planned(name: str, step: Any, names: Sequence[str] = ()) -> tuple[Any, ...]:
    """Return the steps that a step consists of, as new ones: what a step was fitted on before is gone.

    ``names`` are those of the columns that the step is given.

    Raises:
        RecipeError: a step cannot be written as arrays, or draws from a generator that it is given.
    """
    if isinstance(step, str):  # "passthrough"
        return ()
    if hasattr(step, "steps"):
        found: list[Any] = []
        for place, (inner, part) in enumerate(step.steps):
            found += planned(f"{name}/{inner}".lstrip("/"), part, names if not place else ())
        return tuple(found)
    if kind_of(step) == "compose.ColumnTransformer":
        if step.transformer_weights is not None:
            raise RecipeError(f"The step {name!r} has transformer_weights.", "Leave them out.")
        parts = tuple(
            (_places(f"{name}/{inner}", columns, names), None if part == "drop" else planned(f"{name}/{inner}", part))
            for inner, part, columns in step.transformers
        )
        rest = None if step.remainder == "drop" else planned(f"{name}/remainder", step.remainder)
        return (Columns(parts, rest),)
    _require_known(name, step)
    new = import_module("sklearn.base").clone(step)
    if new.get_params(deep=False).get("random_state", SEED) is None:
        new.set_params(random_state=SEED)
    return (new,)


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
        raise RecipeError(what, f"Leave {setting} out, or compute it in a training of your own: {OTHERS}")
    try:
        json.dumps(_plain(settings))
    except TypeError:
        raise RecipeError(f"The settings of {name!r} are no plain values.", "Give numbers and texts.") from None


def all_of(steps: Sequence[Any]) -> Iterator[Any]:
    """Yield the steps, and in place of ``Columns`` the steps within."""
    for step in steps:
        if isinstance(step, Columns):
            for within in (*(within for _, within in step.parts), step.rest):
                yield from all_of(within or ())
        else:
            yield step


def vocabulary(steps: Sequence[Any]) -> Tensor | None:
    """Return the categories that steps are given, as the bytes of a JSON text; None: they learn all of them.

    Code cannot tell whether they were written down or taken from the people in the table: so they are a part of the
    recipe, as those of a ``Pack`` are.
    """
    given = [step.categories for step in all_of(steps) if not isinstance(getattr(step, "categories", "auto"), str)]
    return torch.frombuffer(bytearray(json.dumps(given).encode()), dtype=torch.uint8) if given else None


@dataclass(frozen=True)
class Fit:
    """The ``train`` of steps that are not fitted yet; ``categories`` is their ``vocabulary``."""

    steps: tuple[Any, ...]
    categories: Tensor | None = None

    def __call__(self, run: Run) -> bytes:
        x, y = run.inputs.cpu().numpy(), run.targets.cpu().numpy()
        *steps, last = _anew(self.steps)
        weight = {} if run.weights is None else {"sample_weight": np.ascontiguousarray(run.weights.cpu())}
        last.fit(through(steps, x, fit=True), y if y.ndim == 1 or y.shape[1] > 1 else y[:, 0], **weight)
        return written([*steps, last])


def _anew(steps: Sequence[Any]) -> tuple[Any, ...]:
    clone = import_module("sklearn.base").clone
    return tuple(
        Columns(
            tuple((columns, None if within is None else _anew(within)) for columns, within in step.parts),
            None if step.rest is None else _anew(step.rest),
        )
        if isinstance(step, Columns)
        else clone(step)
        for step in steps
    )


@dataclass(frozen=True)
class Answer:
    """The ``predict`` of a file that ``written`` made: scores (n, classes), or numbers (n, 1) where there is none."""

    classes: int | None

    def __call__(self, data: bytes, inputs: Tensor) -> Tensor:
        *steps, last = read(data)
        x = through(steps, inputs.cpu().numpy())
        if self.classes is None:
            return torch.from_numpy(np.asarray(last.predict(x), dtype=np.float64).reshape(len(x), -1))
        if hasattr(last, "decision_function"):
            scores = last.decision_function(x)
        else:
            scores = np.log(np.clip(last.predict_proba(x), LEAST, None))
        if scores.ndim == 1:
            scores = np.stack([-scores / 2.0, scores / 2.0], axis=1)
        found = np.full((len(x), self.classes), ABSENT)
        found[:, last.classes_.astype(int)] = scores
        return torch.from_numpy(found)


def written(steps: Sequence[Any]) -> bytes:
    """Return fitted steps as a file: the same bytes for the same numbers."""
    arrays: list[Array] = []
    told = _told(steps, arrays)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as file:
        file.writestr(zipfile.ZipInfo("steps.json", MOMENT), json.dumps(told, sort_keys=True))
        for place, array in enumerate(arrays):
            part = io.BytesIO()
            np.save(part, array, allow_pickle=False)
            file.writestr(zipfile.ZipInfo(f"{place}.npy", MOMENT), part.getvalue())
    return out.getvalue()


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


def read(data: bytes) -> list[Any]:
    """Return the steps of a file that ``written`` made. Raises RecipeError where a class is not on the list."""
    with zipfile.ZipFile(io.BytesIO(data)) as file:

        def array(place: Any) -> Any:
            if place is None or isinstance(place, list):
                return None if place is None else [array(each) for each in place]
            found = np.load(io.BytesIO(file.read(f"{int(place)}.npy")), allow_pickle=False)
            return found if found.ndim else found.item()

        return list(_steps(json.loads(file.read("steps.json")), array))


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


def _machine(step: Any) -> None:
    step.support_ = np.arange(len(step.support_vectors_), dtype=np.int32)
    step.shape_fit_, step._sparse = step.support_vectors_.shape, False


def _neighbours(step: Any) -> None:
    step.fit(step._fit_X, step.classes_[step._y] if hasattr(step, "classes_") else step._y)


def _encoder(step: Any) -> None:
    """Fit on a row of known categories, which gives what the class keeps beside them."""
    given, step.categories = step.categories, step.categories_
    step.fit([[known[0] for known in step.categories_]])
    step.categories = given


def _imputer(step: Any) -> None:
    """Fit on a row of the statistics, each of which is its own mean, and on one that has what is told to be missing."""
    marker, told = step.missing_values, step.indicator_
    known = np.where(np.isnan(step.statistics_), marker, step.statistics_)
    missing = known.copy()
    missing[[] if told is None else told] = marker
    step.fit(np.stack([known, missing]))


_COMPLETED: dict[str, Callable[[Any], None]] = {
    **dict.fromkeys(("svm.SVC", "svm.SVR"), _machine),
    **dict.fromkeys(("neighbors.KNeighborsClassifier", "neighbors.KNeighborsRegressor"), _neighbours),
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
