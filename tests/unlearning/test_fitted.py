"""Estimators that are fitted inside the training: bytes that equal a fresh process's, and answers of the library."""

from __future__ import annotations

import subprocess
import sys
from hashlib import sha256
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA
from sklearn.ensemble import RandomForestClassifier
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.impute import KNNImputer, SimpleImputer
from sklearn.linear_model import ElasticNet, Lasso, LogisticRegression, SGDClassifier, SGDRegressor
from sklearn.naive_bayes import BernoulliNB, GaussianNB
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    MaxAbsScaler,
    MinMaxScaler,
    OneHotEncoder,
    OrdinalEncoder,
    RobustScaler,
    StandardScaler,
)
from sklearn.svm import SVC, SVR, LinearSVC

import unlearning as ul
from tests.unlearning.test_estimators import HEAVY, PEOPLE, SCORES, THREE, TWO, N, X
from unlearning.artefact import bytes_of
from unlearning.fitted import read, written
from unlearning.methods.retrain import Retrain
from unlearning.model.parts import parts_of
from unlearning.model.problem import Problem
from unlearning.model.training import train
from unlearning.types import ForgetSet

PATCHY = X.copy()
"""numbers with missing values, and two columns of categories, of which one person has the last one alone"""
PATCHY[:, 0] = np.where(np.arange(N) % 7 == 0, np.nan, PATCHY[:, 0])
PATCHY[:, 3], PATCHY[:, 4] = np.arange(N) % 4, np.where(np.arange(N) % 11 == 0, np.nan, np.arange(N) % 3)
PATCHY[28:32, 3] = 9.0
NUMBERS = make_pipeline(SimpleImputer(strategy="median", add_indicator=True), RobustScaler())
MIXED = ColumnTransformer(
    [
        ("numbers", NUMBERS, [0, 1]),
        ("city", OneHotEncoder(handle_unknown="ignore"), [3]),
        ("gone", "drop", [2]),
        ("size", OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1, encoded_missing_value=-2), [-1]),
    ],
    remainder="passthrough",
    sparse_threshold=0.0,
)
ENCODED = make_pipeline(OneHotEncoder(handle_unknown="ignore", sparse_output=False), BernoulliNB())
TABLES = {"mixed columns": PATCHY, "mixed, neighbours": PATCHY, "categories": PATCHY[:, 3:], "imputed": PATCHY[:, :3]}
CASES: dict[str, tuple[Any, np.ndarray[Any, Any], Any]] = {
    "l1": (LogisticRegression(l1_ratio=1.0, solver="saga", C=0.5, max_iter=300, random_state=0), TWO, None),
    "balanced": (LogisticRegression(class_weight="balanced", random_state=0), THREE, HEAVY),
    "sgd": (SGDClassifier(random_state=3), THREE, None),
    "svc behind a scaler": (make_pipeline(StandardScaler(), LinearSVC(random_state=0)), TWO, HEAVY),
    "bayes": (GaussianNB(), THREE, None),
    "bernoulli": (make_pipeline(MinMaxScaler(), BernoulliNB(binarize=0.5)), TWO, None),
    "pca": (make_pipeline(StandardScaler(), PCA(3, random_state=0), LogisticRegression(random_state=0)), THREE, None),
    "elastic net": (ElasticNet(alpha=0.05, random_state=0), SCORES[:, 0], None),
    "lasso": (Lasso(alpha=0.05, random_state=0), SCORES[:, 0], HEAVY),
    "sgd numbers": (SGDRegressor(random_state=0), SCORES[:, 0], None),
    "mixed columns": (make_pipeline(MIXED, LogisticRegression(random_state=0, max_iter=500)), THREE, HEAVY),
    "mixed, neighbours": (make_pipeline(MIXED, MaxAbsScaler(), KNeighborsClassifier(9)), TWO, None),
    "categories": (ENCODED, TWO, None),
    "imputed": (make_pipeline(SimpleImputer(), StandardScaler(with_std=False), SVR()), SCORES[:, 0], None),
    "machine": (SVC(random_state=0), TWO, HEAVY),
    "machines": (make_pipeline(StandardScaler(), SVC(kernel="poly", break_ties=True, random_state=0)), THREE, None),
    "neighbours": (KNeighborsClassifier(5, weights="distance"), THREE, None),
    "neighbours' numbers": (KNeighborsRegressor(4), SCORES[:, 0], None),
}
HELD = np.array([ul.held_out(person) for person in PEOPLE])


def recipe(case: str) -> ul.Recipe:
    estimator, y, weight = CASES[case]
    classes = sorted(set(y.tolist())) if y.dtype.kind == "i" else None
    x = TABLES.get(case, X)
    return ul.sklearn(estimator, x, y, PEOPLE, classes=classes, weight=weight, exact=True, publish_rows=True)


@pytest.mark.parametrize("case", CASES)
def test_a_deletion_is_the_librarys_own_fit_without_the_person(case: str) -> None:
    problem, examples = Problem(recipe(case)), recipe(case).samples.examples()
    gone = examples.positions[examples.people.where(lambda person: person == "p7")]
    kept, forget = examples.without(gone), ForgetSet(frozenset({"p7"}), tuple(gone.tolist()))
    state = Retrain().prepare(problem, examples, train(problem, examples))
    left = Retrain().forget(problem, state, forget, kept, torch.Generator()).state.weights
    assert torch.equal(left, train(problem, kept).weights) and not torch.equal(left, state.weights)
    (estimator, y, weight), x = CASES[case], TABLES.get(case, X)
    stay = ~HELD & (np.array(PEOPLE) != "p7")
    theirs = clone(estimator)
    last = f"{theirs.steps[-1][0]}__sample_weight" if hasattr(theirs, "steps") else "sample_weight"
    theirs.fit(x[stay], y[stay], **({} if weight is None else {last: weight[stay]}))
    outputs = problem.outputs(left, torch.from_numpy(x[HELD])).numpy()
    if y.dtype.kind == "i":
        assert np.array_equal(outputs.argmax(axis=1), theirs.predict(x[HELD]))
    else:
        assert np.array_equal(outputs[:, 0], theirs.predict(x[HELD]))
    assert written(read(bytes_of(left))) == bytes_of(left)


@pytest.mark.parametrize("case", ["pca", "machines", "mixed, neighbours"])
def test_another_process_makes_the_same_bytes(case: str) -> None:
    mine = bytes_of(train(Problem(recipe(case)), recipe(case).samples.examples()).weights)
    code = (
        "from hashlib import sha256; from tests.unlearning import test_fitted as t\n"
        "from unlearning.artefact import bytes_of\n"
        "from unlearning.model.problem import Problem; from unlearning.model.training import train\n"
        f"r = t.recipe({case!r}); print(sha256(bytes_of(train(Problem(r), r.samples.examples()).weights)).hexdigest())"
    )
    told = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert told.stdout.split()[-1] == sha256(mine).hexdigest()


@pytest.mark.parametrize(
    ("estimator", "message"),
    [
        (SGDClassifier(random_state=np.random.RandomState(0)), "'estimator' has random_state=RandomState"),
        (SVC(random_state=0), r"SVC answers from rows of people.*publish_rows=True.*LinearSVC"),
        (make_pipeline(StandardScaler(), SVR()), "SVR answers from rows of people"),
        (KNeighborsClassifier(), "KNeighborsClassifier answers from rows"),
        (SVC(kernel="precomputed", random_state=0), "kernel='precomputed'"),
        (SVC(decision_function_shape="ovo", random_state=0), "decision_function_shape='ovo'"),
        (RandomForestClassifier(random_state=0), "ul.trees.sklearn"),
        (make_pipeline(OneHotEncoder(min_frequency=5), GaussianNB()), "'onehotencoder' has min_frequency=5"),
        (make_pipeline(KNNImputer(), GaussianNB()), "KNNImputer.*ul.Artefact"),
        (make_pipeline(CountVectorizer(vocabulary=["a"]), GaussianNB()), "CountVectorizer"),
        (make_pipeline(FunctionTransformer(StandardScaler().fit(X).transform), GaussianNB()), "FunctionTransformer"),
        (make_pipeline(ColumnTransformer([("a", StandardScaler(), ["age"])]), GaussianNB()), "names the column 'age'"),
        (make_pipeline(ColumnTransformer([("a", StandardScaler(), slice(2))]), GaussianNB()), "by slice"),
        (make_pipeline(StandardScaler()), "answers no question"),
    ],
)
def test_what_cannot_be_repeated_or_would_publish_people_is_refused(estimator: Any, message: str) -> None:
    with pytest.raises(ul.RecipeError, match=message):
        ul.sklearn(estimator, X, TWO, PEOPLE, classes=(0, 1), exact=True)


def test_classes_are_constants_and_one_that_is_gone_is_never_the_answer() -> None:
    with pytest.raises(ul.RecipeError, match=r"classes=\(0, 1\)"):
        ul.sklearn(GaussianNB(), X, TWO, PEOPLE, exact=True)
    written_out = ul.sklearn(GaussianNB(), X, TWO, PEOPLE, classes=(0, 1, 2), exact=True)
    problem = Problem(written_out)
    outputs = problem.outputs(train(problem, written_out.samples.examples()).weights, torch.from_numpy(X))
    assert outputs.shape == (N, 3) and bool((outputs.argmax(dim=1) < 2).all())


def weights_of(given: ul.Recipe) -> torch.Tensor:
    return train(Problem(given), given.samples.examples()).weights


def test_a_random_state_that_is_left_out_is_a_fixed_one() -> None:
    """scikit-learn's estimators have none unless it is given, and most of them draw nothing."""
    found = [weights_of(ul.sklearn(SGDClassifier(**seed), X, TWO, PEOPLE, classes=(0, 1), exact=True))
             for seed in ({}, {}, {"random_state": 0})]  # fmt: skip
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


def test_what_an_estimator_was_fitted_on_before_is_gone() -> None:
    """A warm start from everyone, and a scaler that was fitted on everyone, would outlive every deletion."""
    known = {"classes": (0, 1), "exact": True}
    new = make_pipeline(StandardScaler(), SGDClassifier(warm_start=True, random_state=0))
    old = clone(new).fit(X * 3.0 + 1.0, 1 - TWO)
    fresh, given = (ul.sklearn(each, X, TWO, PEOPLE, **known) for each in (new, old))
    assert torch.equal(weights_of(fresh), weights_of(given)) and not parts_of(given)


def test_a_vocabulary_that_is_given_is_a_part_to_declare_and_one_that_is_learnt_goes_with_the_person() -> None:
    x, known = PATCHY[:, 3:4], {"classes": (0, 1), "exact": True}
    fixed = OneHotEncoder(categories=[[0, 1, 2, 3, 9]], handle_unknown="ignore")
    given = ul.sklearn(make_pipeline(fixed, BernoulliNB()), x, TWO, PEOPLE, **known)
    (part,) = parts_of(given)
    assert (part.name, part.public) == ("train.categories", False)
    told = {"train.categories": part.digest}
    declared = ul.sklearn(make_pipeline(fixed, BernoulliNB()), x, TWO, PEOPLE, **known, public=told)
    assert [part.public for part in parts_of(declared)] == [True]
    learnt = ul.sklearn(make_pipeline(OneHotEncoder(handle_unknown="ignore"), BernoulliNB()), x, TWO, PEOPLE, **known)
    without = learnt.samples.take(
        torch.tensor([subject != ("p7",) for subject in learnt.samples.people]).nonzero()[:, 0]
    )
    all_of_them, left = (
        read(bytes_of(train(Problem(learnt), each.examples()).weights))[0].categories_[0].tolist()
        for each in (learnt.samples, without)
    )
    assert (all_of_them, left) == ([0, 1, 2, 3, 9], [0, 1, 2, 3])


def test_rows_of_people_are_in_the_file_of_neighbours_and_a_deleted_persons_are_not() -> None:
    given = recipe("neighbours")
    mine = torch.tensor([subject == ("p7",) for subject in given.samples.people])
    rows = given.samples.tensors()[0][mine].numpy()
    assert isinstance(given.model, ul.Artefact) and given.model.rows and len(rows) == 4
    left = train(Problem(given), given.samples.take((~mine).nonzero()[:, 0]).examples()).weights
    assert all(row.tobytes() in bytes_of(weights_of(given)) for row in rows)
    assert not any(row.tobytes() in bytes_of(left) for row in rows)


def test_columns_of_a_frame_go_by_name_and_texts_are_refused() -> None:
    frame = pd.DataFrame({"age": X[:, 0], "height": X[:, 1], "city": np.arange(N) % 3})
    estimator = make_pipeline(ColumnTransformer([("a", StandardScaler(), ["height"])], remainder="drop"), GaussianNB())
    mine = ul.sklearn(estimator, frame, TWO, PEOPLE, classes=(0, 1), exact=True)
    assert read(bytes_of(weights_of(mine)))[0].parts[0][0] == (1,)
    with pytest.raises(ul.RecipeError, match=r"'Oslo'.*\.map"):
        ul.sklearn(estimator, frame.assign(city="Oslo"), TWO, PEOPLE, classes=(0, 1), exact=True)


def test_class_weights_go_by_the_names_of_the_classes() -> None:
    named = np.where(TWO == 1, "ill", "well")
    one = ul.sklearn(
        LogisticRegression(class_weight={"ill": 5.0}, random_state=0),
        X,
        named,
        PEOPLE,
        classes=("well", "ill"),
        exact=True,
    )
    two = ul.sklearn(
        LogisticRegression(class_weight={1: 5.0}, random_state=0), X, TWO, PEOPLE, classes=(0, 1), exact=True
    )
    assert np.array_equal(*(read(bytes_of(weights_of(each)))[0].coef_ for each in (one, two)))
    with pytest.raises(ul.RecipeError, match="names 'sick', which is no class"):
        estimator = LogisticRegression(class_weight={"sick": 5.0}, random_state=0)
        ul.sklearn(estimator, X, named, PEOPLE, classes=("well", "ill"), exact=True)


def test_neighbours_take_no_weight() -> None:
    with pytest.raises(ul.RecipeError, match="KNeighborsClassifier takes no weight"):
        ul.sklearn(KNeighborsClassifier(), X, TWO, PEOPLE, classes=(0, 1), weight=HEAVY, exact=True, publish_rows=True)
