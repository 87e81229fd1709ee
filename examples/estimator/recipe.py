"""An estimator of scikit-learn: a LogisticRegression with balanced classes, behind a StandardScaler.

Guarantee: `proved`. Register with `--method newton --guarantee proved`.
Cost of a deletion: a few Newton steps; measured in docs/what-you-can-have.md.
Delete one person: `expunge delete --subject patient-280 --regulation gdpr --wait`. The request's page has the letter.
You declare nothing: the scaler, the class weights and the number of rows that C is divided by are those of the people
who are here.

The service minimises what ``LogisticRegression(C=C, class_weight="balanced", solver="liblinear")`` does: a linear layer
on the scaled columns, decayed by 1 / (C n), intercept and all. So it can prove where a deletion ends. The published
file has the scaler and the layer; ``fitted`` makes scikit-learn's pipeline of it. Steps that learn texts, as encoders
do, are in ``examples/tabular``.

``patients.csv`` has a row for each patient; put your own table in its place.
"""

from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import load_file
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.class_weight import compute_sample_weight

import unlearning as ul

C = 10.0


class Scaled(torch.nn.Module):
    """A fitted StandardScaler, (n, k) -> (n, k)."""

    def __init__(self, scaler: StandardScaler) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(scaler.mean_, dtype=torch.float32))
        self.register_buffer("scale", torch.tensor(scaler.scale_, dtype=torch.float32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x - self.mean) / self.scale


def recipe(rows: ul.Rows = ul.table("patients.csv", person="patient", aside=0.2)) -> ul.Recipe:
    columns = [name for name in rows.columns if name not in ("patient", "benign")]
    x, y = rows.numpy(*columns), rows["benign"]
    scaler = StandardScaler().fit(x)
    return ul.Recipe(
        model=lambda: torch.nn.Sequential(Scaled(scaler), torch.nn.Linear(len(columns), 1)),
        samples=rows.samples(x, y, at=rows["__row"], weight=compute_sample_weight("balanced", y)),
        holdout=lambda apart: (apart.tensor(*columns), apart.tensor("benign")),
        loss="binary_logistic",
        training=ul.Training(epochs=0, weight_decay=1 / (C * len(rows)), converge=1e-10),
    )


def fitted(published: Path) -> Pipeline:
    """Return the published model as a pipeline, which takes the columns in their order."""
    tensors = load_file(published)
    scaler, estimator = StandardScaler(), LogisticRegression(C=C, class_weight="balanced", solver="liblinear")
    scaler.mean_, scaler.scale_ = tensors["0.mean"], tensors["0.scale"]
    estimator.coef_, estimator.intercept_ = tensors["1.weight"], tensors["1.bias"]
    estimator.classes_ = np.array([0, 1])
    return make_pipeline(scaler, estimator)
