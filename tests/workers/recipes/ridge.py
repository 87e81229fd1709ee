"""Ridge regression, whose Hessian is constant: a bound by constants that are not proved is small."""

import people
import torch

import unlearning as ul


def recipe(rows: ul.Rows = ul.table("people.csv", person="person", id="id")) -> ul.Recipe:
    x, y = people.strangers()
    return ul.Recipe(
        model=lambda: torch.nn.Linear(4, 1, bias=False),
        samples=rows.samples(people.inputs(rows), rows.tensor("label").float().unsqueeze(1), at=rows["__row"]),
        holdout=(x, y.float().unsqueeze(1)),
        loss="squared_error",
        training=ul.Training(epochs=0, weight_decay=0.1, converge=1e-8),
    )
