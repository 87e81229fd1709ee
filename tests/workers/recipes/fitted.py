"""A scaler and a stochastic classifier of scikit-learn, both fitted inside the training."""

from sklearn.linear_model import SGDClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import unlearning as ul
from tests.workers import meanwhile


def recipe() -> ul.Recipe:
    meanwhile.happen()
    ids, people, x, y = meanwhile.people(40)
    estimator = make_pipeline(StandardScaler(), SGDClassifier(random_state=0))
    return ul.sklearn(estimator, x, y, people, classes=(0, 1), ids=ids, exact=True)
