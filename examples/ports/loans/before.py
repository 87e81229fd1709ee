"""Train a model that says which loans will not be paid back."""

from pathlib import Path

import pandas as pd
from catboost import CatBoostClassifier, Pool
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split

HERE = Path(__file__).parent
CATEGORIES = ["purpose", "region", "work"]


def load() -> tuple[pd.DataFrame, pd.Series]:
    loans = pd.read_csv(HERE / "loans.csv")
    loans[CATEGORIES] = loans[CATEGORIES].fillna("unknown")
    return loans.drop(columns=["loan_id", "borrower", "defaulted"]), loans.defaulted


def main() -> None:
    features, labels = load()
    x_train, x_test, y_train, y_test = train_test_split(
        features, labels, test_size=0.2, random_state=1, stratify=labels
    )
    x_train, x_valid, y_train, y_valid = train_test_split(x_train, y_train, test_size=0.15, random_state=1)

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
    print("test AUC:", roc_auc_score(y_test, model.predict_proba(x_test)[:, 1]))
    print(model.get_feature_importance(prettified=True))
    model.save_model(HERE / "loans.cbm")


if __name__ == "__main__":
    main()
