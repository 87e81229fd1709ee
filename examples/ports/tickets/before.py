"""Train a classifier that sends a support ticket to the right team."""

import argparse
from pathlib import Path

import joblib
import pandas as pd
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import classification_report
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import Pipeline

HERE = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default=HERE / "tickets.csv")
    parser.add_argument("--out", default=HERE / "tickets.joblib")
    args = parser.parse_args()

    tickets = pd.read_csv(args.data)
    train, test = train_test_split(tickets, test_size=0.2, random_state=0, stratify=tickets.team)

    pipeline = Pipeline(
        [
            ("tfidf", TfidfVectorizer(ngram_range=(1, 2), min_df=2, sublinear_tf=True)),
            ("classifier", LogisticRegression(max_iter=1000, class_weight="balanced")),
        ]
    )
    search = GridSearchCV(pipeline, {"classifier__C": [0.01, 0.1, 1, 10]}, cv=5, scoring="f1_macro")
    search.fit(train.text, train.team)

    print("best C:", search.best_params_["classifier__C"])
    print(classification_report(test.team, search.predict(test.text)))
    joblib.dump(search.best_estimator_, args.out)


if __name__ == "__main__":
    main()
