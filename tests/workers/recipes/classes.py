"""Nine people of one class and three of another, three samples each: updates are proved."""

import numpy as np
import people
import torch

import unlearning as ul


def recipe(rows: ul.Rows = ul.table("people.csv", person="person", id="id")) -> ul.Recipe:
    targets = torch.from_numpy(~np.isin(rows["person"], ["p0", "p1", "p2"])).long()
    x, y = people.strangers()
    return ul.Recipe(
        model=lambda: torch.nn.Linear(4, 2, bias=False),
        samples=rows.samples(people.inputs(rows) + 2.0 * targets.unsqueeze(1), targets, at=rows["__row"]),
        holdout=(x + 2.0 * y.unsqueeze(1), y),
        loss="cross_entropy",
        training=ul.Training(epochs=5, learning_rate=0.5, weight_decay=0.1, converge=1e-8),
    )
