"""scikit-learn's estimators as recipes: each is compared with the library's own fit without the person."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA
from sklearn.ensemble import RandomForestClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import ElasticNet, LogisticRegression, Ridge, RidgeClassifier, SGDClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    MinMaxScaler,
    Normalizer,
    OneHotEncoder,
    OrdinalEncoder,
    StandardScaler,
)
from sklearn.svm import SVC, LinearSVC

import unlearning as ul
from unlearning.bounds.minimiser import Minimiser
from unlearning.methods.newton import Newton
from unlearning.model.problem import Problem
from unlearning.model.training import train
from unlearning.types import ForgetSet

DRAW = np.random.default_rng(0)
N, K = 600, 5
X = DRAW.normal(size=(N, K))
SCORES = X @ DRAW.normal(size=(K, 3)) + DRAW.normal(size=(N, 3)) + 0.3
TWO, THREE = (SCORES[:, 0] > 0).astype(int), SCORES.argmax(axis=1)
PEOPLE = [f"p{place // 4}" for place in range(N)]
HEAVY = DRAW.uniform(0.2, 3.0, size=N)
MEANS = X.mean(axis=0)
BY_CLASS = {0: 1.0, 1: 2.5, 2: 0.5}
CASES: dict[str, tuple[Any, np.ndarray[Any, Any], Any]] = {
    "logistic": (LogisticRegression(C=0.7), TWO, None),
    "logistic, class weights": (LogisticRegression(class_weight=BY_CLASS), TWO, None),
    "liblinear": (LogisticRegression(solver="liblinear", intercept_scaling=2.0), TWO, None),
    "softmax": (LogisticRegression(), THREE, None),
    "softmax, weights": (LogisticRegression(class_weight=BY_CLASS, fit_intercept=False), THREE, HEAVY),
    "ridge": (Ridge(alpha=3.0), SCORES[:, 0], None),
    "ridge, weights": (Ridge(fit_intercept=False), SCORES[:, 0], HEAVY),
    "ridge classes": (RidgeClassifier(class_weight=BY_CLASS), TWO, HEAVY),
    "ridge, three classes": (RidgeClassifier(), THREE, None),
    "svc": (LinearSVC(class_weight=BY_CLASS), TWO, None),
    "svc, three classes, weights": (LinearSVC(C=0.5), THREE, HEAVY),
}


def fitted(estimator: Any, x: Any, y: Any, weight: Any) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The library's coefficients and intercepts, at a tolerance at which its own stopping does not show."""
    exact = {"tol": 1e-10, "max_iter": 100_000} if not isinstance(estimator, Ridge | RidgeClassifier) else {}
    theirs = clone(estimator).set_params(**exact).fit(x, y, sample_weight=weight)
    return np.atleast_2d(theirs.coef_), np.atleast_1d(theirs.intercept_)


@pytest.mark.parametrize("case", CASES)
def test_a_deletion_ends_at_the_librarys_own_fit_without_the_person(case: str) -> None:
    """The count of rows stays in the denominator: C means the same before and after."""
    estimator, y, weight = CASES[case]
    held = [ul.held_out(person) for person in PEOPLE]
    rows, classes = N - sum(held), None if isinstance(estimator, Ridge) else sorted(set(y.tolist()))
    recipe = ul.sklearn(estimator, X, y, PEOPLE, rows=rows, classes=classes, weight=weight)
    problem, examples = Problem(recipe).double(), recipe.samples.examples()
    gone = examples.positions[examples.people.where(lambda person: person == "p7")]
    assert len(gone) == 4
    learned = train(problem, examples)
    bound = Minimiser(rows)
    retain = examples.without(gone)
    forget = ForgetSet(frozenset({"p7"}), tuple(gone.tolist()))
    state = Newton().prepare(problem, examples, learned)
    left = Newton().forget(problem, state, forget, retain, None)  # type: ignore[arg-type]
    w = bound.refine(problem, left.state.weights, retain, 1e-7)
    stay = [place for place in range(N) if not held[place] and PEOPLE[place] != "p7"]
    coef, intercept = fitted(estimator, X[stay], y[stay], None if weight is None else weight[stay])
    ours = problem.tensors(w)
    matrix = next(iter(ours.values())).numpy()[-len(coef) :]
    constant = estimator.get_params()["fit_intercept"]
    scale = 1.0 if not constant else problem.module[0].value  # type: ignore[operator, union-attr, index]
    assert np.allclose(matrix[:, :K], coef, atol=2e-5)
    if constant:
        assert np.allclose(scale * matrix[:, K], intercept, atol=1e-4)
    full, _ = fitted(
        estimator,
        X[[not each for each in held]],
        y[[not each for each in held]],
        weight if weight is None else weight[[not each for each in held]],
    )
    assert np.abs(full - coef).max() > 1e-4, "the person is seen in the weights"


@pytest.mark.parametrize(
    ("estimator", "message"),
    [
        (LogisticRegression(class_weight="balanced"), "balanced.*counts everyone"),
        (make_pipeline(StandardScaler(), LogisticRegression()), "step 'standardscaler'.*fitted on all rows"),
        (make_pipeline(Normalizer(), PCA(2), Ridge()), "step 'pca'"),
        (make_pipeline(MinMaxScaler(), LinearSVC()), "step 'minmaxscaler'"),
        (
            make_pipeline(ColumnTransformer([("city", OneHotEncoder(), [0])]), LogisticRegression()),
            "step 'columntransformer/city'",
        ),
        (
            make_pipeline(SimpleImputer(), LogisticRegression()),
            r"step 'simpleimputer' \(SimpleImputer\) is fitted on all",
        ),
        (make_pipeline(OrdinalEncoder(), Ridge()), "step 'ordinalencoder'"),
        (SVC(), "SVC is not known to be strongly convex.*exact=True"),
        (make_pipeline(FunctionTransformer(lambda x: x - x.mean(axis=0)), LogisticRegression()), "when other rows are"),
        (
            make_pipeline(FunctionTransformer(StandardScaler().fit(X).transform), LogisticRegression()),
            "step 'functiontransformer'.*__self__.*numbers that may be of all rows",
        ),
        (make_pipeline(FunctionTransformer(lambda x: x - MEANS), Ridge()), "MEANS.*of all rows"),
        (LogisticRegression(l1_ratio=1.0), "l1_ratio=1.0"),
        (LinearSVC(loss="hinge"), "loss='hinge'"),
        (Ridge(alpha=0.0), "no penalty"),
        (Ridge(positive=True), "positive=True"),
        (ElasticNet(), "ElasticNet is not known"),
        (SGDClassifier(), "SGDClassifier is not known"),
        (RandomForestClassifier(), "exact by retrain"),
    ],
)
def test_what_breaks_the_proof_is_named(estimator: Any, message: str) -> None:
    with pytest.raises(ul.RecipeError, match=message):
        ul.sklearn(estimator, X, TWO, PEOPLE, rows=N, classes=(0, 1))


def test_steps_that_are_fitted_on_nothing_are_applied() -> None:
    cities = np.where(X[:, :1] > 0, "Oslo", "Rome")
    encoder = OneHotEncoder(categories=[["Oslo", "Rome", "Bonn"]], handle_unknown="ignore")
    recipe = ul.sklearn(make_pipeline(encoder, LogisticRegression()), cities, TWO, PEOPLE, rows=N, classes=(0, 1))
    inputs = recipe.samples.tensors()[0]
    assert inputs.shape[1] == 3 and set(inputs.unique().tolist()) == {0.0, 1.0}


WRITTEN = [0.5, 1.5, 2.5, 3.5, 4.5]


def test_numbers_that_a_step_has_written_out_are_code() -> None:
    step = FunctionTransformer(lambda x: x / WRITTEN)
    recipe = ul.sklearn(make_pipeline(step, Ridge()), X, SCORES[:, 0], PEOPLE, rows=N)
    rows = {tuple(row) for row in (X / WRITTEN).tolist()}
    assert {tuple(row) for row in recipe.samples.tensors()[0].tolist()} <= rows


def test_counts_of_the_table_are_refused_with_the_constants_to_paste() -> None:
    with pytest.raises(ul.RecipeError, match=r"Give rows=600, classes=\(0, 1\)"):
        ul.sklearn(LogisticRegression(), X, TWO, PEOPLE)
    with pytest.raises(ul.RecipeError, match="1 classes of y are not among"):
        ul.sklearn(LogisticRegression(), X, THREE, PEOPLE, rows=N, classes=(0, 1))


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("missing", [None, float("nan"), pd.NA])
@pytest.mark.parametrize("kind", [list, pd.Series])
def test_a_row_without_a_class_is_named(kind: Any, missing: Any, exact: bool) -> None:
    if kind is list and missing is pd.NA:
        missing = None
    y = kind([*["yes", "no"] * 3, missing, "no"])
    with pytest.raises(ul.RecipeError, match=r"1 rows of y have no class .* the first at index 6"):
        ul.sklearn(LogisticRegression(), X[:8], y, PEOPLE[:8], rows=8, classes=("no", "yes"), exact=exact)


def test_a_class_weight_of_many_classes_is_refused_for_an_svc() -> None:
    with pytest.raises(ul.RecipeError, match="only where it is the positive one"):
        ul.sklearn(LinearSVC(class_weight=BY_CLASS), X, THREE, PEOPLE, rows=N, classes=(0, 1, 2))


def test_ids_and_settings_stay_when_another_persons_rows_are_erased() -> None:
    assert not ul.held_out(PEOPLE[-1])
    whole = ul.sklearn(LogisticRegression(), X, TWO, PEOPLE, rows=N, classes=(0, 1))
    less = ul.sklearn(LogisticRegression(), X[:-4], TWO[:-4], PEOPLE[:-4], rows=N, classes=(0, 1))
    assert set(less.samples.ids) < set(whole.samples.ids)
    assert less.training == whole.training
