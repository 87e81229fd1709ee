"""A recommender with a row of numbers for each person: what will this customer think of this film?

Guarantee: `exact`. Register with `--method late`.
Cost of a deletion: a tenth of the alternations for half of the people, for the others all; measured in
docs/what-you-can-have.md.
Delete one person: `expunge delete --subject person-0600 --regulation gdpr --wait`. The request's page has the letter.
You declare that ``fit`` depends on ``run`` alone.

A table of ``len(people)`` rows would change its shape when an erased person's ratings go, and every later request
would wait. Here samples carry a keyed number of their person, and ``run.index`` gives rows by the rank of the number
among the people who are trained on. The published file says which number has which row: an application computes the
number of its user with the same key, and asks. A person without a row gets the last one, all zeros: the mean opinion.

Ratings are made here by a fixed seed. Replace ``ratings()``, and read the key from a file of yours.
"""

import numpy as np
import torch
from torch import Tensor, nn

import unlearning as ul

PEOPLE, FILMS, EACH, SEED = 1200, 150, 25, 0
RANK, ALTERNATIONS, DECAY = 6, 15, 3.0
ROOM = 2000
"""people who will fit: a constant, well beyond those of today"""
KEY = b"replace me by 32 secret bytes"


class Rated(nn.Module):
    """(n, 2) int64, a person's number and a film, to ratings (n, 1)."""

    def __init__(self) -> None:
        super().__init__()
        self.index = ul.Index(ROOM)
        self.people, self.films = nn.Embedding(self.index.rows, RANK), nn.Embedding(FILMS, RANK)
        self.mean = nn.Parameter(torch.zeros(FILMS))
        nn.init.zeros_(self.people.weight)

    def forward(self, asked: Tensor) -> Tensor:
        person, film = self.people(self.index(asked[:, 0])), self.films(asked[:, 1])
        return (self.mean[asked[:, 1]] + (person * film).sum(dim=1)).unsqueeze(1)


def solved(rows: Tensor, count: int, factors: Tensor, ratings: Tensor) -> Tensor:
    """Return factors (count, k) of the rows (n,) that fit the ratings (n,) with the other side's factors (n, k)."""
    rank = factors.shape[1]
    systems = (DECAY * torch.eye(rank)).repeat(count, 1, 1)
    systems.index_add_(0, rows, factors.unsqueeze(2) * factors.unsqueeze(1))
    sides = torch.zeros(count, rank).index_add_(0, rows, factors * ratings.unsqueeze(1))
    return torch.linalg.solve(systems, sides)


def fit(run: ul.Run) -> None:
    """Solve people from films and films from people, in turns."""
    model, films = run.model, run.inputs[:, 1]
    rows, alternations = run.index(run.inputs[:, 0]), max(1, round(ALTERNATIONS * run.share))
    with torch.no_grad():
        many = torch.bincount(films, minlength=FILMS)
        model.mean.copy_(torch.bincount(films, run.targets[:, 0], minlength=FILMS) / (many + DECAY))
        rest = run.targets[:, 0] - model.mean[films]
        for number in range(alternations):
            people = solved(rows, ROOM, model.films.weight[films], rest)
            model.films.weight.copy_(solved(films, FILMS, people[rows], rest))
            run.progress(number / alternations)
        model.people.weight[:ROOM] = solved(rows, ROOM, model.films.weight[films], rest)


def ratings() -> tuple[list[str], Tensor, Tensor]:
    """Return each rating's person, film (n,) and value (n,): people like some kinds of films more than others."""
    random = np.random.default_rng(SEED)
    tastes, films = random.normal(size=(PEOPLE, 4)), random.normal(size=(FILMS, 4))
    seen = np.stack([random.choice(FILMS, size=EACH, replace=False) for _ in range(PEOPLE)])
    values = (tastes[:, None, :] * films[seen]).sum(axis=2) + 0.5 * random.normal(size=seen.shape)
    names = [f"person-{number:04d}" for number in range(PEOPLE) for _ in range(EACH)]
    return names, torch.tensor(seen).flatten(), torch.tensor(values, dtype=torch.float32).flatten()


def recipe() -> ul.Recipe:
    names, films, values = ratings()
    asked = torch.stack([ul.person_numbers(names, KEY), films], dim=1)
    # Each person's last rating is kept aside, although the person is trained on: a person without a row has no taste.
    # So the holdout names nobody; erase a deleted person's last rating with the others.
    last = torch.arange(len(names)) % EACH == EACH - 1
    kept = [place for place, aside in enumerate(last.tolist()) if not aside]
    return ul.Recipe(
        model=Rated,
        samples=ul.Samples(
            ids=[f"{names[place]} {films[place]}" for place in kept],
            subjects=[names[place] for place in kept],
            inputs=asked[kept],
            targets=values[kept].unsqueeze(1),
        ),
        holdout=(asked[last], values[last].unsqueeze(1)),
        loss="squared_error",
        train=fit,
        seed=SEED,
    )
