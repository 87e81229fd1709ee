"""Estimators that are fitted inside the training: bytes that equal a fresh process's, and answers of the library."""

from __future__ import annotations

import subprocess
import sys
from hashlib import sha256
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import ElasticNet, Lasso, LogisticRegression, SGDClassifier, SGDRegressor
from sklearn.naive_bayes import BernoulliNB, GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, OneHotEncoder, StandardScaler
from sklearn.svm import SVC, LinearSVC

import unlearning as ul
from tests.unlearning.test_estimators import HEAVY, PEOPLE, SCORES, THREE, TWO, N, X
from unlearning.artefact import bytes_of
from unlearning.fitted import read, written
from unlearning.methods.retrain import Retrain
from unlearning.model.problem import Problem
from unlearning.model.training import train
from unlearning.types import ForgetSet

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
}
HELD = np.array([ul.held_out(person) for person in PEOPLE])


def recipe(case: str) -> ul.Recipe:
    estimator, y, weight = CASES[case]
    classes = sorted(set(y.tolist())) if y.dtype.kind == "i" else None
    return ul.sklearn(estimator, X, y, PEOPLE, classes=classes, weight=weight, exact=True)


@pytest.mark.parametrize("case", CASES)
def test_a_deletion_is_the_librarys_own_fit_without_the_person(case: str) -> None:
    problem, examples = Problem(recipe(case)), recipe(case).samples.examples()
    gone = examples.positions[examples.people.where(lambda person: person == "p7")]
    kept, forget = examples.without(gone), ForgetSet(frozenset({"p7"}), tuple(gone.tolist()))
    state = Retrain().prepare(problem, examples, train(problem, examples))
    left = Retrain().forget(problem, state, forget, kept, torch.Generator()).state.weights
    assert torch.equal(left, train(problem, kept).weights) and not torch.equal(left, state.weights)
    estimator, y, weight = CASES[case]
    stay = ~HELD & (np.array(PEOPLE) != "p7")
    theirs = clone(estimator)
    last = f"{theirs.steps[-1][0]}__sample_weight" if hasattr(theirs, "steps") else "sample_weight"
    theirs.fit(X[stay], y[stay], **({} if weight is None else {last: weight[stay]}))
    outputs = problem.outputs(left, torch.from_numpy(X[HELD])).numpy()
    if y.dtype.kind == "i":
        assert np.array_equal(outputs.argmax(axis=1), theirs.predict(X[HELD]))
    else:
        assert np.array_equal(outputs[:, 0], theirs.predict(X[HELD]))
    assert written(read(bytes_of(left))) == bytes_of(left)


def test_another_process_makes_the_same_bytes() -> None:
    mine = bytes_of(train(Problem(recipe("pca")), recipe("pca").samples.examples()).weights)
    code = (
        "from hashlib import sha256; from tests.unlearning import test_fitted as t\n"
        "from unlearning.artefact import bytes_of\n"
        "from unlearning.model.problem import Problem; from unlearning.model.training import train\n"
        "r = t.recipe('pca'); print(sha256(bytes_of(train(Problem(r), r.samples.examples()).weights)).hexdigest())"
    )
    told = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert told.stdout.split()[-1] == sha256(mine).hexdigest()


@pytest.mark.parametrize(
    ("estimator", "message"),
    [
        (SGDClassifier(), "'estimator' has random_state=None"),
        (make_pipeline(PCA(2), GaussianNB()), "'pca' has random_state=None"),
        (SVC(), "SVC and neighbours would publish rows"),
        (KNeighborsClassifier(), "rows of people"),
        (RandomForestClassifier(random_state=0), "ul.trees.sklearn"),
        (make_pipeline(OneHotEncoder(), GaussianNB()), "'onehotencoder'"),
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
