"""A table with categories, missing values and many rows a person: will this customer leave?

Guarantee: `proved`. Register with `--method newton --guarantee proved`.
Cost of a deletion: a few Newton steps on the head; measured in docs/what-you-can-have.md. Where a category goes with
its last person, the model gets another shape and is trained again.
Delete one person: `expunge delete --subject customer-189 --regulation gdpr --wait`. The request's page has the letter.
You declare nothing: means, deviations and the list of categories are those of the people who are here.

The published file has all that an answer needs: the head, means and deviations, and the names of the columns as JSON in
``0.columns``. ``inputs_of`` makes the same columns of a frame of new rows.

``customers.csv`` has a row for each contract; put your own table in its place.
"""

import json

import pandas
import torch

import unlearning as ul
from unlearning.features import RandomFourier

NUMBERS, CATEGORIES = ["age", "months", "bill"], ["plan", "payment"]
FEATURES, LENGTH = 64, 1.5


class Scaled(torch.nn.Module):
    """Columns (n, k), numbers first -> random Fourier features of the scaled numbers, and the others as they are."""

    def __init__(self, numbers: pandas.DataFrame, columns: list[str]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(numbers.mean().to_numpy(dtype="float32")))
        self.register_buffer("deviation", torch.tensor(numbers.std().to_numpy(dtype="float32")))
        self.register_buffer("columns", torch.tensor([*json.dumps(columns).encode()], dtype=torch.uint8))
        self.fourier = RandomFourier(len(NUMBERS), FEATURES, LENGTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scaled = (x[:, : len(NUMBERS)] - self.mean) / self.deviation
        return torch.cat([self.fourier(scaled), x[:, len(NUMBERS) :]], dim=1)


def inputs_of(frame: pandas.DataFrame, means: pandas.Series, columns: list[str] | None = None) -> pandas.DataFrame:
    """Return the numbers, 1 where one was missing, and 1 for each category of a row. A new category has no column."""
    numbers, missing = frame[NUMBERS], frame[NUMBERS].isna().add_prefix("no_")
    inputs = numbers.fillna(means).join([missing, pandas.get_dummies(frame[CATEGORIES])]).astype(float)
    return inputs if columns is None else inputs.reindex(columns=columns, fill_value=0.0)


def recipe(rows: ul.Rows = ul.table("customers.csv", person="customer", id="contract", aside=0.2)) -> ul.Recipe:
    table = rows.pandas()
    means = table[NUMBERS].mean()
    inputs = inputs_of(table, means)
    columns = [*inputs.columns]

    def holdout(apart: ul.Rows) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.tensor(inputs_of(apart.pandas(), means, columns).to_numpy()), apart.tensor("left")

    return ul.Recipe(
        model=lambda: torch.nn.Sequential(
            Scaled(table[NUMBERS], columns), torch.nn.Linear(FEATURES + len(columns) - len(NUMBERS), 2)
        ),
        samples=rows.samples(inputs, table["left"], at=table["__row"]),
        holdout=holdout,
        loss="cross_entropy",
        training=ul.Training(epochs=0, weight_decay=1e-3, converge=1e-10),
    )
