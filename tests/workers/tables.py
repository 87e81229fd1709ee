"""A table that grows under one recipe: rows in a CSV file beside it, as in the guide."""

from __future__ import annotations

import csv
import random
from dataclasses import dataclass, field
from pathlib import Path

from tests.workers.worlds import World

RECIPE = """import torch
import unlearning as ul


def recipe(rows: ul.Rows = ul.table("people.csv", person="person", id="id")) -> ul.Recipe:
    inputs = torch.cat([rows.tensor("a", "b").float(), torch.ones(len(rows), 1)], dim=1)
    return ul.Recipe(
        model=lambda: torch.nn.Linear(3, 2, bias=False),
        samples=rows.samples(inputs, rows["label"], at=rows["__row"]),
        holdout=(torch.tensor([[1.0, 0.0, 1.0], [-1.0, 0.0, 1.0]]), torch.tensor([1, 0])),
        loss="cross_entropy",
        training=ul.Training(epochs=5, learning_rate=0.5, weight_decay=0.1, converge=1e-8),
    )
"""


@dataclass
class Table:
    """Rows of people, in the file ``people.csv`` of a recipes folder. ``rows``: (id, person) -> (label, a, b)."""

    folder: Path
    rows: dict[tuple[str, str], tuple[int, float, float]] = field(default_factory=dict)
    people: int = 0
    drawn: random.Random = field(default_factory=lambda: random.Random(7))

    def grow(self, people: int, each: int = 3) -> list[str]:
        """Add new people with so many rows each; return their names."""
        names = [f"p{number}" for number in range(self.people, self.people + people)]
        self.people += people
        for name in names:
            self.add(name, each)
        return names

    def add(self, person: str, count: int) -> None:
        """Add rows of one person."""
        for _ in range(count):
            label = self.drawn.randrange(2)
            features = (self.drawn.gauss(2.0 * label - 1.0, 1.0), self.drawn.gauss(0.0, 1.0))
            self.rows[f"r{len(self.rows)}-{self.drawn.getrandbits(32)}", person] = (label, *features)

    def drop(self, person: str) -> None:
        """Remove a person's rows."""
        self.rows = {key: value for key, value in self.rows.items() if key[1] != person}

    def write(self) -> None:
        """Write the rows in an order that no earlier one agrees with."""
        order = list(self.rows.items())
        self.drawn.shuffle(order)
        with (self.folder / "people.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(("id", "person", "label", "a", "b"))
            writer.writerows((*key, *value) for key, value in order)


def table_of(world: World, folder: Path, people: int) -> tuple[World, Table]:
    """Return the world with a recipe ``people`` that reads a table of so many people, and the table."""
    folder.mkdir()
    (folder / "people.py").write_text(RECIPE)
    table = Table(folder)
    table.grow(people)
    table.write()
    return world.configured(recipes=folder), table
