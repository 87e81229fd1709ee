"""An estimator of scikit-learn: a LogisticRegression with class weights, behind a step that is fitted on nothing.

Guarantee: `proved`. Register with `--method newton --guarantee proved`, and with `--set reference=fixed-denominator`
where C shall mean the same before and after a deletion.
Cost of a deletion: a few Newton steps; measured in docs/what-you-can-have.md.
Delete one person: `expunge delete --subject patient-280 --regulation gdpr --wait`. The request's page has the letter.
You declare nothing: the classes, the count of rows that C is meant for and the class weights are constants.
A StandardScaler in place of the logarithm would be refused by its name: it is fitted on all rows.

The data are the tumours that come with scikit-learn, one of each person. Replace the first two lines of ``recipe``.
"""

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import unlearning as ul

MALIGNANT, BENIGN = 0, 1


def recipe() -> ul.Recipe:
    x, y = load_breast_cancer(return_X_y=True)
    patients = [f"patient-{number:03d}" for number in range(len(x))]
    estimator = make_pipeline(
        FunctionTransformer(np.log1p),
        LogisticRegression(C=10.0, class_weight={MALIGNANT: 2.0, BENIGN: 1.0}),
    )
    return ul.sklearn(estimator, x, y, patients, rows=450, classes=(MALIGNANT, BENIGN))
