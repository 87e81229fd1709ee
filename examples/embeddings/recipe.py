"""A recommender with a row of numbers for each person: what will this customer think of this film?

Guarantee: `exact`. Register with `--method retrain`.
Cost of a deletion: a training, a tenth of a second here; measured in docs/what-you-can-have.md.
Delete one person: `expunge delete --subject person-0600 --regulation gdpr --wait`. The request's page has the letter.
You declare nothing: the table of people is as long as there are people.

The published file says whose each row is by a keyed number: an application computes the number of its user with the
same key (``ul.person_numbers``), and finds it in ``people``. Somebody without a row gets the mean opinion, or one that
``solved`` computes from some ratings; so the people kept apart are scored, by their last rating.

``ratings.parquet`` has 25 ratings of each person. Replace the key.
"""

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

import unlearning as ul

RANK, ALTERNATIONS, DECAY = 6, 15, 3.0
KEY = b"replace me by 32 secret bytes"


def solved(rows: Tensor, count: int, factors: Tensor, ratings: Tensor) -> Tensor:
    """Return factors (count, k) of the rows (n,) that fit the ratings (n,) with the other side's factors (n, k)."""
    rank = factors.shape[1]
    systems = (DECAY * torch.eye(rank)).repeat(count, 1, 1)
    systems.index_add_(0, rows, factors.unsqueeze(2) * factors.unsqueeze(1))
    sides = torch.zeros(count, rank).index_add_(0, rows, factors * ratings.unsqueeze(1))
    return torch.linalg.solve(systems, sides).contiguous()


def recipe(rows: ul.Rows = ul.table("ratings.parquet", person="person", aside=0.2)) -> ul.Published:
    numbers, person = ul.person_numbers(rows["person"], KEY).unique(return_inverse=True)
    titles, film = rows.tensor("film").long().unique(return_inverse=True)
    ratings = rows.tensor("rating").float()
    means = torch.bincount(film, ratings) / (torch.bincount(film) + DECAY)
    rest = ratings - means[film]
    films = torch.randn(len(titles), RANK)
    for _ in range(ALTERNATIONS):
        people = solved(person, len(numbers), films[film], rest)
        films = solved(film, len(titles), people[person], rest)

    def score(aside: ul.Rows) -> float:
        """R2 of each person's last rating, by a row from the others."""
        known = np.isin(aside["film"], titles)
        person = torch.from_numpy(aside.people[known])
        film = torch.searchsorted(titles, aside.tensor("film").long()[known])
        ratings = aside.tensor("rating").float()[known]
        last = torch.ones(len(person), dtype=torch.bool)
        last[:-1] = person[1:] != person[:-1]
        people = solved(person[~last], int(person.max()) + 1, films[film[~last]], (ratings - means[film])[~last])
        answers = means[film] + (people[person] * films[film]).sum(dim=1)
        return float(1 - (answers - ratings)[last].square().mean() / ratings[last].var(correction=0))

    tables = {
        "people": numbers,
        "rows": solved(person, len(numbers), films[film], rest),
        "titles": titles,
        "films": films,
        "means": means,
    }
    return ul.Published({"model.safetensors": save(tables)}, score=score)
