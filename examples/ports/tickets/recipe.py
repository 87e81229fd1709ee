"""A classifier that sends a support ticket to the right team: TF-IDF and a logistic regression, C by a grid."""

import json

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline

import unlearning as ul

WORDS = {"ngram_range": (1, 2), "sublinear_tf": True}


def recipe(rows: ul.Rows = ul.table("tickets.csv", person="customer", id="ticket", aside=0.2)) -> ul.Published:
    train = rows.pandas()
    pipeline = Pipeline(
        [
            ("tfidf", TfidfVectorizer(min_df=2, **WORDS)),
            ("classifier", LogisticRegression(max_iter=1000, class_weight="balanced")),
        ]
    )
    search = GridSearchCV(pipeline, {"classifier__C": [0.01, 0.1, 1, 10]}, cv=5, scoring="f1_macro")
    search.fit(train.text, train.team)
    model = written(search.best_estimator_)
    return ul.Published(
        {"model.json": model},
        score=lambda test: f1_score(test["team"], read(model).predict(test["text"]), average="macro"),
    )


def written(pipeline: Pipeline) -> str:
    """What the fitted pipeline answers from, in place of joblib.dump."""
    words, classifier = pipeline["tfidf"], pipeline["classifier"]
    return json.dumps(
        {
            "vocabulary": words.vocabulary_,
            "idf": words.idf_.tolist(),
            "coefficients": classifier.coef_.tolist(),
            "intercepts": classifier.intercept_.tolist(),
            "teams": classifier.classes_.tolist(),
        }
    )


def read(model: str | bytes) -> Pipeline:
    """The pipeline of a published file, as the application opens it in place of joblib.load."""
    saved = json.loads(model)
    words, classifier = TfidfVectorizer(vocabulary=saved["vocabulary"], **WORDS), LogisticRegression()
    words.idf_ = np.array(saved["idf"])
    classifier.coef_, classifier.intercept_ = np.array(saved["coefficients"]), np.array(saved["intercepts"])
    classifier.classes_ = np.array(saved["teams"])
    return Pipeline([("tfidf", words), ("classifier", classifier)])
