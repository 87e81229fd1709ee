"""Estimators of scikit-learn as recipes: those that minimise a strongly convex objective, so that newton proves.

The library's objectives are sums over rows, a recipe's is their mean plus ``(lambda/2) ||w||^2``:

* LogisticRegression: ``C sum l_i + ||w||^2 / 2``, so lambda is 1 / (C rows);
* Ridge, RidgeClassifier: ``sum (y_i - f_i)^2 + alpha ||w||^2``, so lambda is alpha / rows;
* LinearSVC: ``C sum max(0, 1 - s_i f_i)^2 + ||w||^2 / 2``, so lambda is 1 / (2 C rows).

``rows`` is a constant of the recipe: a count of the table would change with each deletion, and lambda with it.
scikit-learn itself is not needed: an estimator's class and ``get_params()`` say everything.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from unlearning.artefact import Artefact
from unlearning.features.constant_column import ConstantColumn
from unlearning.fitted import (
    ANSWERS,
    HOLD_ROWS,
    MAY_MISS,
    Answer,
    Fit,
    all_of,
    kind_of,
    planned,
    vocabulary,
)
from unlearning.reach import numbers_in
from unlearning.recipe import Recipe, Samples, people_of
from unlearning.settings import Training
from unlearning.types import RecipeError

FREE = 16.0
"""the constant column of an intercept that the library does not decay: it is decayed 256 times less than a weight"""
PRECISION = 1e-6
"""of the weights after a training: the gradient's norm over lambda"""
FITTED_ON_NOTHING = {"Normalizer", "Binarizer", "PolynomialFeatures", "FunctionTransformer", "HashingVectorizer"}
GIVEN_CATEGORIES = {"OneHotEncoder", "OrdinalEncoder"}
KNOWN = "LogisticRegression with an l2 penalty, Ridge, RidgeClassifier, and LinearSVC with squared_hinge"
OTHERWISE = "Give exact=True: all of it is fitted inside the training, which is exact by retrain."


@dataclass(frozen=True)
class Form:
    """An estimator as a linear head: ``decay`` times rows is lambda; ``constant`` is the intercept's column."""

    loss: str
    decay: float
    constant: float | None


def sklearn(
    estimator: Any,
    x: Any,
    y: Any,
    subjects: Sequence[str | Sequence[str]],
    *,
    rows: int | None = None,
    classes: Sequence[Any] | None = None,
    ids: Sequence[str] | None = None,
    weight: Any = None,
    exact: bool = False,
    publish_rows: bool = False,
    public: Mapping[str, str] | None = None,
) -> Recipe:
    """Return the recipe of an estimator that is not fitted yet; register it by newton with the guarantee proved.

    With ``exact`` the estimator and all steps are fitted inside the training; register it by retrain. Then ``rows`` is
    not needed, any of ``unlearning.fitted.ANSWERS`` will do, and the published file is JSON and arrays.

    A share of the people is the holdout, by a hash of their ids. ``class_weight={...}`` becomes a weight of each row.
    The published ``weight`` (K, k + 1) is ``coef_``, and its last column times the constant ``intercept_``.

    Args:
        estimator: one of ``KNOWN``, or a Pipeline of it behind steps that are not fitted.
        x: (n, k) numbers: an array, a tensor or a data frame; for a pipeline what its first step takes.
        y: (n,) classes, or numbers for Ridge.
        subjects: the person of each row.
        rows: how many rows C or alpha is meant for: a constant, not a count.
        classes: every class that there is, in the order of the outputs: constants too.
        ids: of the rows; left out: the subject and a number that counts the rows of the subject.
        weight: (n,) sample weights of 0 or more, given as data.
        publish_rows: whether the published file may hold rows of people, as support vectors and neighbours are; asked
            for SVC, SVR and nearest neighbours, which are ``exact`` alone.
        public: as of ``Recipe``: with ``exact``, the digest of categories that are given; a refusal prints the line.

    Raises:
        RecipeError: another estimator, a setting that breaks the proof, or a step that is fitted on all rows.
    """
    if exact:
        made = _exact(estimator, x, y, subjects, classes=classes, ids=ids, weight=weight, publish_rows=publish_rows)
        return replace(made, public=dict(public or {}))
    *steps, (_, last) = getattr(estimator, "steps", [("estimator", estimator)])
    for name, step in steps:
        x = x if isinstance(step, str) else _transformed(name, step, x)  # "passthrough"
    settings = last.get_params()
    form = _form(last, settings)
    classifies = form.loss != "squared_error" or type(last).__name__ == "RidgeClassifier"
    labels = np.asarray(y)
    _require_constants(len(x), rows, classes, _found(y) if classifies else None)
    heavy = None if weight is None else np.asarray(weight, dtype=np.float64)
    outputs, targets = _targets(last, labels, classes)
    if settings.get("class_weight") is not None:
        heavy = _by_class(last, settings["class_weight"], labels, outputs, heavy)
    decay = form.decay / cast(int, rows)
    inputs = _numbers(x)
    told = None if heavy is None else torch.tensor(heavy)
    samples = Samples(ids or _ids(subjects), subjects, inputs, targets, weight=told)
    kept, holdout, aside = samples.split()
    return Recipe(
        model=partial(_head, inputs.shape[1], outputs, form.constant),
        samples=kept,
        holdout=holdout,
        holdout_subjects=aside,
        loss=form.loss if outputs > 1 or form.loss != "cross_entropy" else "binary_logistic",
        metric="accuracy" if classifies else "r2",
        public=dict(public or {}),
        training=Training(epochs=0, weight_decay=decay, converge=PRECISION * decay),
    )


def _exact(
    estimator: Any,
    x: Any,
    y: Any,
    subjects: Sequence[str | Sequence[str]],
    *,
    classes: Sequence[Any] | None,
    ids: Sequence[str] | None,
    weight: Any,
    publish_rows: bool,
) -> Recipe:
    name = "" if hasattr(estimator, "steps") else "estimator"  # a pipeline's steps have names of their own
    steps = planned(name, estimator, [str(each) for each in getattr(x, "columns", ())])
    kind = kind_of(steps[-1]) if steps else "no step"
    if not hasattr(steps[-1] if steps else None, "predict"):
        raise RecipeError(f"The last step is {kind}, which answers no question.", "End with an estimator.")
    if kind in HOLD_ROWS and not publish_rows:
        raise RecipeError(
            f"{kind.partition('.')[2]} answers from rows of people, so that the published file holds them. A deletion "
            "takes away the person's rows.",
            "Give publish_rows=True where readers of the model may see them; LinearSVC and ul.trees hold none.",
        )
    if weight is not None and kind.startswith("neighbors."):
        raise RecipeError(f"{kind.partition('.')[2]} takes no weight of a row.", "Leave weight out.")
    labels, classifies = np.asarray(y), "classes_" in ANSWERS[kind]
    _require_constants(len(labels), len(labels), classes, _found(y) if classifies else None)
    if classes is None:
        targets = torch.from_numpy(labels.astype(np.float64).reshape(len(labels), -1))
    else:
        targets = _numbered(labels, classes)
        _number_weights(steps[-1], classes)
    heavy = None if weight is None else torch.as_tensor(np.asarray(weight, dtype=np.float64))
    missing = any(kind_of(step) in MAY_MISS for step in all_of(steps))
    samples = Samples(ids or _ids(subjects), subjects, _numbers(x), targets, missing=missing, weight=heavy)
    samples, holdout, aside = samples.split()
    answer, libraries = Answer(None if classes is None else len(classes)), ("scikit-learn", "numpy", "scipy")
    return Recipe(
        model=Artefact(answer, suffix="sklearn.zip", libraries=libraries, rows=kind in HOLD_ROWS),
        train=Fit(steps, vocabulary(steps)),
        samples=samples,
        holdout=holdout,
        holdout_subjects=aside,
        loss="squared_error" if classes is None else "cross_entropy",
    )


def _number_weights(last: Any, classes: Sequence[Any]) -> None:
    """Give class weights to the numbers of the classes, which are the labels inside the training."""
    given = getattr(last, "class_weight", None)
    if isinstance(given, dict):
        place = {value: number for number, value in enumerate(classes)}
        unknown = [value for value in given if value not in place]
        if unknown:
            raise RecipeError(f"class_weight names {unknown[0]!r}, which is no class.", "Name classes of classes=.")
        last.class_weight = {place[value]: weight for value, weight in given.items()}


def _head(features: int, outputs: int, constant: float | None) -> nn.Module:
    if constant is None:
        return nn.Linear(features, outputs, bias=False)
    return nn.Sequential(ConstantColumn(constant), nn.Linear(features + 1, outputs, bias=False))


def _form(estimator: Any, settings: dict[str, Any]) -> Form:
    """Return the estimator's form. Raises RecipeError where its objective is not known to be strongly convex."""
    name = type(estimator).__name__ if type(estimator).__module__.startswith("sklearn.") else "another library's model"
    decays = name == "LinearSVC" or settings.get("solver") == "liblinear"
    constant = (float(settings["intercept_scaling"]) if decays else FREE) if settings.get("fit_intercept") else None
    match name:
        case "LogisticRegression":
            _require(name, settings, penalty=("l2", "deprecated"), l1_ratio=(0, None))
            form = Form("cross_entropy", 1.0 / settings["C"], constant)
        case "LinearSVC":
            _require(name, settings, penalty=("l2",), loss=("squared_hinge",), multi_class=("ovr",))
            form = Form("squared_hinge", 0.5 / settings["C"], constant)
        case "Ridge" | "RidgeClassifier":
            _require(name, settings, positive=(False,))
            if np.ndim(settings["alpha"]):
                raise RecipeError(f"{name} has an alpha for each target.", "Give one number.")
            form = Form("squared_error", float(settings["alpha"]), constant)
        case _:
            raise RecipeError(f"{name} is not known to be strongly convex: known are {KNOWN}.", OTHERWISE)
    if not form.decay > 0.0:
        raise RecipeError(
            f"{name} has no penalty: its minimiser is not unique.", "Give a finite C, or an alpha above 0."
        )
    return form


def _require(name: str, settings: dict[str, Any], **allowed: tuple[Any, ...]) -> None:
    for setting, values in allowed.items():
        value = settings.get(setting, values[0])
        if value not in values:
            what = f"{name}({setting}={value!r}) is not known to be strongly convex and smooth."
            raise RecipeError(what, f"Set {setting}={values[0]!r}. {OTHERWISE}")


def _found(y: Any) -> list[Any]:
    """Return the different classes of y, sorted. Raises RecipeError where a row has none."""
    each_of = y if isinstance(y, list | tuple) else np.asarray(y).reshape(-1).tolist()  # an array of texts writes "nan"
    empty = y.isna() if hasattr(y, "isna") else [each is None or str(each) == "nan" != each for each in each_of]
    rows = np.flatnonzero(np.asarray(empty))
    if len(rows):
        raise RecipeError(
            f"{len(rows)} rows of y have no class (None or NaN), the first at index {rows[0]}.",
            "Leave these rows out of x, y and subjects, or name a class for them, as y.fillna('unknown') does.",
        )
    found: list[Any] = np.unique(np.asarray(y)).tolist()
    return found


def _require_constants(count: int, rows: int | None, classes: Sequence[Any] | None, found: list[Any] | None) -> None:
    missing = {}
    if rows is None:
        missing["rows"] = str(count)
    if found is not None and classes is None:
        missing["classes"] = repr(tuple(found))
    if missing:
        raise RecipeError(
            f"{' and '.join(missing)} must be constants of the recipe: counted from the table, they change when a "
            "person leaves.",
            f"Give {', '.join(f'{name}={value}' for name, value in missing.items())}.",
        )


def _targets(estimator: Any, y: np.ndarray[Any, Any], classes: Sequence[Any] | None) -> tuple[int, Tensor]:
    """Return the number of outputs, and the targets as the loss takes them."""
    if classes is None:
        values = torch.from_numpy(y.astype(np.float64))
        return (1 if values.dim() == 1 else values.shape[1]), values
    numbers, count = _numbered(y, classes), len(classes)
    if type(estimator).__name__ == "RidgeClassifier":  # two classes have two outputs, each the other's negative
        return count, 2.0 * nn.functional.one_hot(numbers, count).double() - 1.0
    return (count, numbers) if count > 2 else (1, numbers.double())


def _numbered(y: np.ndarray[Any, Any], classes: Sequence[Any]) -> Tensor:
    """Return the number of each row's class (n,) int64."""
    place = {value: number for number, value in enumerate(classes)}
    unknown = {value for value in y.tolist() if value not in place}
    if unknown or len(place) < 2:
        what = f"{len(unknown)} classes of y are not among the {len(place)} of classes."
        raise RecipeError(what, "Name every class there is, two at least.")
    return torch.tensor([place[value] for value in y.tolist()])


def _by_class(
    estimator: Any, given: Any, y: np.ndarray[Any, Any], outputs: int, weight: np.ndarray[Any, Any] | None
) -> np.ndarray[Any, Any]:
    name = type(estimator).__name__
    if not isinstance(given, dict):
        raise RecipeError(
            f"{name}(class_weight={given!r}) counts everyone: each weight changes when a person leaves.",
            "Give numbers that you choose: class_weight={0: 1.0, 1: 3.0}.",
        )
    if name == "LinearSVC" and outputs > 1:
        what = "LinearSVC with more than two classes weighs a class only where it is the positive one."
        raise RecipeError(what, "Give weight=, one number for each row.")
    theirs = np.array([float(given.get(value, 1.0)) for value in y.tolist()])
    return theirs if weight is None else theirs * weight


def _transformed(name: str, step: Any, x: Any) -> Any:
    """Return what a step makes of the rows. Raises RecipeError, with its name, where it learns from them."""
    for path, part in _parts(name, step):
        kind, settings = type(part).__name__, part.get_params(deep=False)
        given = kind in GIVEN_CATEGORIES and not isinstance(settings["categories"], str)
        frequent = settings.get("min_frequency") is not None or settings.get("max_categories") is not None
        if kind not in FITTED_ON_NOTHING and not (given and not frequent):
            raise RecipeError(
                f"The step {path!r} ({kind}) is fitted on all rows: each row then carries every other person.",
                f"Use constants that you know, as in a FunctionTransformer or categories=[...]. {OTHERWISE}",
            )
        for number, found in numbers_in(path, [settings.get("func"), settings.get("kw_args")], {}):
            raise RecipeError(
                f"The step {path!r} ({kind}) refers to {number!r}, {found.numel()} numbers that may be of all rows.",
                "Write them as a list into the recipe's function, or give a step that learns them, and exact=True.",
            )
    whole = copy.deepcopy(step).fit_transform(x)
    half = copy.deepcopy(step).fit_transform(x[::2])
    whole, half = (each.toarray() if hasattr(each, "toarray") else np.asarray(each) for each in (whole, half))
    if not np.array_equal(whole[::2], half, equal_nan=whole.dtype.kind == "f"):
        what = f"The step {name!r} ({type(step).__name__}) gives a row other numbers when other rows are missing."
        raise RecipeError(what, "Let it look at one row at a time.")
    return whole


def _parts(name: str, step: Any) -> Iterator[tuple[str, Any]]:
    """Yield the steps that a step consists of, each with its path."""
    within = [*getattr(step, "steps", ()), *getattr(step, "transformer_list", ()), *getattr(step, "transformers", ())]
    for inner, part, *_ in within:
        if not isinstance(part, str):  # "passthrough" and "drop"
            yield from _parts(f"{name}/{inner}", part)
    if not within and not isinstance(step, str):
        yield name, step


def _numbers(x: Any) -> Tensor:
    values = np.asarray(x.toarray() if hasattr(x, "toarray") else x)
    try:
        return torch.tensor(values if values.dtype == np.float32 else values.astype(np.float64))
    except (TypeError, ValueError) as error:
        raise RecipeError(
            f"x holds what is no number: {error}.",
            "Number texts by a list that you choose: x['city'].map({'Oslo': 0, 'Rome': 1}).",
        ) from None


def _ids(subjects: Sequence[str | Sequence[str]]) -> list[str]:
    """Return an id for each row that does not change when another person's rows are erased."""
    seen: dict[str, int] = {}
    found = []
    for people in people_of(subjects):
        name = "+".join(people)
        seen[name] = seen.get(name, 0) + 1
        found.append(f"{name} {seen[name]}")
    return found
