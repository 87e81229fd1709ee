"""Four features, two classes, 60 samples of 20 people: softmax regression, decayed everywhere. Prepares in a blink."""

import torch

import unlearning as ul


def samples(rows: ul.Rows) -> ul.Samples:
    """The rows as samples of two classes."""
    return rows.samples(rows.tensor("a", "b", "c", "d").float(), rows["label"], at=rows["__row"])


def holdout() -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs (40, 4) and classes (40,) of nobody."""
    inputs = torch.randn(40, 4, generator=torch.Generator().manual_seed(2))
    return inputs, (inputs[:, 0] > 0).long()


def recipe(rows: ul.Rows = ul.table("tiny.csv", person="person", id="id")) -> ul.Recipe:
    return ul.Recipe(
        model=lambda: torch.nn.Linear(4, 2, bias=False),
        samples=samples(rows),
        holdout=holdout(),
        loss="cross_entropy",
        training=ul.Training(epochs=10, learning_rate=0.5, weight_decay=0.1, converge=1e-8),
    )
