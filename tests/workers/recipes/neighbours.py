"""An encoder beside a scaler, then nearest neighbours, all fitted inside the training."""

from sklearn.compose import ColumnTransformer
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import unlearning as ul
from tests.workers import meanwhile


def recipe() -> ul.Recipe:
    meanwhile.happen()
    ids, people, x, y = meanwhile.people(40)
    columns = ColumnTransformer(
        [("city", OneHotEncoder(handle_unknown="ignore"), [0])], remainder=StandardScaler(), sparse_threshold=0.0
    )
    estimator = make_pipeline(columns, KNeighborsClassifier(3))
    return ul.sklearn(estimator, x.round(), y, people, classes=(0, 1), ids=ids, exact=True, publish_rows=True)
