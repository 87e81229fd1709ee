"""The check's own recipe: softmax regression on a table of some thousand people. A deletion takes a blink."""

import torch

import unlearning as ul


def recipe(rows: ul.Rows = ul.table("clinic.csv", person="person", id="id")) -> ul.Recipe:
    unseen = torch.randn(200, 4, generator=torch.Generator().manual_seed(2))
    return ul.Recipe(
        model=lambda: torch.nn.Linear(4, 2, bias=False),
        samples=rows.samples(rows.tensor("a", "b", "c", "d").float(), rows["label"], at=rows["__row"]),
        holdout=(unseen, (unseen[:, 0] > 0).long()),
        loss="cross_entropy",
        training=ul.Training(epochs=10, learning_rate=0.5, weight_decay=0.1, converge=1e-8),
    )
