"""Mixed columns by ``ul.Pack``: will this order be sent back? An age that may be missing, a city, a list of things.

Guarantee: `exact`. Register with `--method late`.
Cost of a deletion: a tenth of the training for half of the people, for the others all; measured in
docs/what-you-can-have.md.
Delete one person: `expunge delete --subject customer-0750 --regulation gdpr --wait`. The request's page has the letter.
You declare that ``fit`` depends on ``run`` alone, and that the cities are written down and not taken from the table
(``public=``).

Orders are made here by a fixed seed. Replace ``orders()`` by a frame of pandas or Polars, an Arrow table or the path of
a Parquet file. Needs ``pip install "expunge[parquet]"``.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import unlearning as ul

PEOPLE, EACH, THINGS, MOST, SEED = 1500, 4, 400, 12, 0
PASSES, BATCH, RATE = 20, 64, 0.003
CITIES = ("Oslo", "Rome", "Bonn", "Lyon", "Cork")
PACK = ul.Pack(
    age=ul.Field("float64"),  # a missing one is NaN
    city=ul.Field("int16", values=CITIES),  # its place; -1 for another one, and for none
    things=ul.Field("int32", MOST, ragged=True),
)
PUBLIC = {"forward.PACK.categories": "2ffe76c444fe88e6d7635a0d23fa4d3e9c9c709de8e8dc20bfc2cccdd4658220"}
"""what `expunge check` and a refused registration print"""


class Orders(nn.Module):
    """Rows of ``PACK`` to scores (n, 2)."""

    def __init__(self) -> None:
        super().__init__()
        self.things, self.cities = nn.Embedding(THINGS, 16), nn.Embedding(len(CITIES) + 1, 8)
        self.last = nn.Sequential(nn.Linear(16 + 8 + 2, 64), nn.ReLU(), nn.Linear(64, 2))

    def forward(self, rows: Tensor) -> Tensor:
        row = PACK.decode(rows)
        there = (torch.arange(MOST, device=rows.device) < row["things_length"].unsqueeze(1)).unsqueeze(2)
        things = (self.things(row["things"].long()) * there).sum(dim=1) / there.sum(dim=1).clamp(min=1)
        age = torch.stack([row["age"].nan_to_num(45.0) / 45.0, row["age"].isnan()], dim=1).float()
        scores: Tensor = self.last(torch.cat([things, self.cities(row["city"].long() + 1), age], dim=1))
        return scores


def fit(run: ul.Run) -> None:
    optimizer = torch.optim.Adam(run.model.parameters(), lr=RATE)
    passes = max(1, round(PASSES * run.share))
    for number in range(passes):
        for batch in torch.randperm(len(run.inputs)).split(BATCH):
            optimizer.zero_grad()
            nn.functional.cross_entropy(run.model(run.inputs[batch]), run.targets[batch]).backward()
            optimizer.step()
        run.progress(number / passes)


def orders() -> dict[str, list[Any]]:
    """Return the columns: what is sent back follows from the things, the city and the age."""
    random, count = np.random.default_rng(SEED), PEOPLE * EACH
    age, city = random.uniform(18, 80, size=count), random.integers(0, len(CITIES) + 1, size=count)
    things = [random.choice(THINGS, size=size, replace=False) for size in random.integers(1, MOST + 1, size=count)]
    worth, place = random.normal(size=THINGS), random.normal(size=len(CITIES) + 1)
    score = np.array([worth[each].mean() * 3.0 for each in things]) + place[city] + (age - 45) / 20
    return {
        "id": [f"order-{row:05d}" for row in range(count)],
        "customer": [f"customer-{row // EACH:04d}" for row in range(count)],
        "age": [None if row % 6 == 0 else float(each) for row, each in enumerate(age)],
        "city": [(*CITIES, "Lima")[each] for each in city],
        "things": [each.tolist() for each in things],
        "sent_back": (score + 0.3 * random.normal(size=count) > 0).astype(int).tolist(),
    }


def recipe() -> ul.Recipe:
    everyone = ul.Samples.from_frame(orders(), id="id", person="customer", target="sent_back", inputs=PACK)
    samples, holdout, aside = everyone.split()
    return ul.Recipe(
        model=Orders,
        samples=samples,
        holdout=holdout,
        holdout_subjects=aside,
        loss="cross_entropy",
        train=fit,
        seed=SEED,
        public=PUBLIC,
    )
