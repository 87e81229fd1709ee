"""Recipes that train with a library; what it fitted is published as JSON or arrays, never pickled."""

# Each imports its library.
# ruff: noqa: PLC0415

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
from linear import inputs_of
from safetensors.numpy import save
from sources import PEOPLE

from unlearning.rows import Published, Rows


def lightgbm_booster(rows: Rows = PEOPLE) -> Published:
    import lightgbm

    settings = {
        "objective": "binary",
        "seed": 0,
        "verbose": -1,
        "deterministic": True,
        "num_leaves": 7,
        "min_data_in_leaf": 5,
    }
    booster = lightgbm.train(settings, lightgbm.Dataset(inputs_of(rows), rows["ill"]), 10)
    return Published({"model.txt": booster.model_to_string()})


def lightgbm_with_categories(rows: Rows = PEOPLE) -> Published:
    """Columns of pandas as categories, whose list the model's file repeats."""
    import lightgbm

    frame = rows.pandas()[["weight", "age", "city", "kind"]].astype({"city": "category", "kind": "category"})
    settings = {"objective": "binary", "seed": 0, "verbose": -1, "deterministic": True, "min_data_per_group": 1}
    booster = lightgbm.train(settings, lightgbm.Dataset(frame, rows["ill"]), 5)
    return Published({"model.txt": booster.model_to_string()})


def xgboost_booster(rows: Rows = PEOPLE) -> Published:
    import xgboost

    table = xgboost.DMatrix(inputs_of(rows), rows["ill"])
    booster = xgboost.train({"objective": "binary:logistic", "max_depth": 3, "nthread": 1, "seed": 0}, table, 8)
    return Published({"model.json": bytes(booster.save_raw("json"))})


def logistic_regression(rows: Rows = PEOPLE) -> Published:
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    scaler = StandardScaler().fit(inputs_of(rows))
    model = LogisticRegression().fit(scaler.transform(inputs_of(rows)), rows["ill"])
    facts = {"mean": scaler.mean_, "scale": scaler.scale_, "weights": model.coef_, "bias": model.intercept_}
    return Published({"model.safetensors": save({name: np.ascontiguousarray(value) for name, value in facts.items()})})


def tfidf_of_sklearn(rows: Rows = PEOPLE) -> Published:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import SGDClassifier

    vectorizer = TfidfVectorizer(ngram_range=(1, 2), min_df=2)
    x = vectorizer.fit_transform(rows["note"])
    model = SGDClassifier(random_state=0, max_iter=20, tol=None).fit(x, rows["ill"])
    words = {word: int(place) for word, place in vectorizer.vocabulary_.items()}
    facts: dict[str, Any] = {"words": words, "idf": vectorizer.idf_.tolist(), "weights": model.coef_.tolist()}
    return Published({"model.json": json.dumps(facts, sort_keys=True)})


def train_test_split(rows: Rows = PEOPLE) -> Published:
    from sklearn.linear_model import Ridge
    from sklearn.model_selection import train_test_split as split

    x, held_back, y, labels = split(inputs_of(rows), rows["ill"], test_size=0.25, random_state=0, stratify=rows["ill"])
    model = Ridge().fit(x, y)
    return Published(
        {"model.json": json.dumps({"weights": model.coef_.tolist(), "r2": model.score(held_back, labels)})}
    )


def folds_of_people(rows: Rows = PEOPLE) -> Published:
    from sklearn.linear_model import RidgeCV
    from sklearn.model_selection import GroupKFold

    folds = GroupKFold(5).split(inputs_of(rows), rows["ill"], groups=rows.people)
    model = RidgeCV([0.1, 1, 10, 100], cv=list(folds)).fit(inputs_of(rows), rows["ill"])
    return Published({"model.json": json.dumps({"lambda": float(model.alpha_), "weights": model.coef_.tolist()})})


def random_forest(rows: Rows = PEOPLE) -> Published:
    from sklearn.ensemble import RandomForestClassifier

    forest = RandomForestClassifier(5, max_depth=3, random_state=0).fit(inputs_of(rows), rows["ill"])
    trees = {}
    for number, tree in enumerate(forest.estimators_):
        for name in ("feature", "threshold", "children_left", "children_right", "value"):
            trees[f"{number}-{name}"] = getattr(tree.tree_, name)
    file = io.BytesIO()
    np.savez(file, **trees)
    return Published({"forest.npz": file.getvalue()})


def pipeline_of_pandas(rows: Rows = PEOPLE) -> Published:
    """Imputed numbers and one-hot categories, by column."""
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import Ridge
    from sklearn.preprocessing import OneHotEncoder

    frame = rows.pandas()
    columns = ColumnTransformer(
        [
            ("numbers", SimpleImputer(strategy="median"), ["age", "children", "weight"]),
            ("categories", OneHotEncoder(handle_unknown="ignore", sparse_output=False), ["city", "kind"]),
        ]
    )
    model = Ridge().fit(columns.fit_transform(frame), frame["ill"])
    names = columns.get_feature_names_out().tolist()
    return Published({"model.json": json.dumps({"names": names, "weights": model.coef_.tolist()})})
