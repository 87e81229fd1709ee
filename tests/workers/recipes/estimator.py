"""A LogisticRegression of scikit-learn with a weight for each row, which newton proves."""

import torch
from sklearn.linear_model import LogisticRegression

import unlearning as ul
from tests.workers import meanwhile


def recipe() -> ul.Recipe:
    meanwhile.happen()
    ids, people, x, y = meanwhile.people(40)
    weight = torch.tensor([meanwhile.WEIGHT.get(name, 1.0 + int(name[1:]) % 3) for name in ids])
    return ul.sklearn(LogisticRegression(C=2.0), x, y, people, rows=90, classes=(0, 1), ids=ids, weight=weight)
