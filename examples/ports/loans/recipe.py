"""A model that says which loans will not be paid back: CatBoost with categories and early stopping."""

from pathlib import Path

import pandas as pd
from catboost import CatBoostClassifier, Pool
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split

import unlearning as ul

CATEGORIES = ["purpose", "region", "work"]


def load(rows: ul.Rows) -> tuple[pd.DataFrame, pd.Series]:
    loans = rows.pandas()
    loans[CATEGORIES] = loans[CATEGORIES].fillna("unknown")
    return loans.drop(columns=["loan_id", "borrower", "defaulted"]), loans.defaulted


def recipe(rows: ul.Rows = ul.table("loans.csv", person="borrower", id="loan_id", aside=0.2)) -> ul.Published:
    features, labels = load(rows)
    x_train, x_valid, y_train, y_valid = train_test_split(features, labels, test_size=0.15, random_state=1)

    model = CatBoostClassifier(
        iterations=300,
        learning_rate=0.05,
        depth=5,
        eval_metric="AUC",
        random_seed=1,
        verbose=50,
    )
    model.fit(
        Pool(x_train, y_train, cat_features=CATEGORIES),
        eval_set=Pool(x_valid, y_valid, cat_features=CATEGORIES),
        early_stopping_rounds=30,
        use_best_model=True,
    )

    def score(apart: ul.Rows) -> float:
        x_test, y_test = load(apart)
        return roc_auc_score(y_test, model.predict_proba(x_test)[:, 1])

    # CatBoost writes the time and a random name into its file.
    for name in ("train_finish_time", "model_guid"):
        model.get_metadata()[name] = ""
    model.save_model("loans.cbm")
    return ul.Published({"loans.cbm": Path("loans.cbm").read_bytes()}, score=score)
