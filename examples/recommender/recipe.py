"""A recommender: matrix factorisation by alternating least squares, from what people used.

Guarantee: `exact`. Register with `--method late`.
Cost of a deletion: for half of the people a tenth of the alternations, for the others all; measured in
docs/what-you-can-have.md.
Delete one person: `expunge delete --subject person-1500 --regulation gdpr --wait`. The request's page has the letter.
You declare nothing: everything is computed from the rows of the people who are here.

What is published: one row of numbers for each item. Rows of people are personal data, and none is kept anywhere: an
application computes a person's row from that person's own history whenever it asks, by one small linear system
(``solved``). The histories live in your own table, from which a deleted person is to be deleted too.

The losses are those of Hu, Koren and Volinsky, "Collaborative filtering for implicit feedback datasets", 2008. The
score is the share of the people kept apart whose last item comes first of all items that they have not used before.

``used.parquet`` has a row for each item that a person used.
"""

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor

import unlearning as ul

RANK, EARLY_ALTERNATIONS, LATE_ALTERNATIONS, CONFIDENCE, DECAY = 12, 18, 2, 10.0, 1.0


def solved(rows: Tensor, factors: Tensor) -> Tensor:
    """Return the factors (n, k) of ``rows`` (n, m), 1 for used and 0 for not, that fit the m other ``factors`` (m, k).

    Each minimises ``sum_j c_j (row_j - x . factor_j)^2 + DECAY |x|^2``, with c_j = 1 + CONFIDENCE where row_j is 1.
    """
    weights = 1.0 + CONFIDENCE * rows
    rank = factors.shape[1]
    products = (factors.unsqueeze(2) * factors.unsqueeze(1)).flatten(1)
    systems = (weights @ products).unflatten(1, (rank, rank)) + DECAY * torch.eye(rank)
    return torch.linalg.solve(systems, (weights * rows) @ factors)


def histories_of(rows: ul.Rows, items: np.ndarray) -> tuple[Tensor, Tensor]:
    """Return who used which of the ``items`` (m,), (n, m), and the place of each person's last one, (n,)."""
    known = np.isin(rows["item"], items)
    places = np.searchsorted(items, rows["item"][known])
    people, person = np.unique(rows.people[known], return_inverse=True)
    used, last = torch.zeros(len(people), len(items)), np.zeros(len(people), dtype=np.int64)
    used[person, places] = 1.0
    last[person] = places  # of all that are assigned to one person the last stays
    return used, torch.from_numpy(last)


def recipe(
    rows: ul.Rows = ul.table("used.parquet", person="person", aside=0.2), run: ul.TrainingRun = ul.run()
) -> ul.Published:
    items = np.unique(rows["item"])
    used, _ = histories_of(rows, items)
    factors, early = 0.1 * torch.randn(len(items), RANK), run.start is None
    if not early:  # everybody has joined
        before = load(run.start["model.safetensors"])
        factors[np.isin(items, before["items"])] = before["factors"]
    for _ in range(EARLY_ALTERNATIONS if early else LATE_ALTERNATIONS):
        factors = solved(used.T, solved(used, factors)).contiguous()

    def score(aside: ul.Rows) -> float:
        before, last = histories_of(aside, items)
        before[torch.arange(len(last)), last] = 0.0
        scores = solved(before, factors) @ factors.T - 1e4 * before
        return float((scores.argmax(dim=1) == last).float().mean())

    return ul.Published(
        {"model.safetensors": save({"items": torch.from_numpy(items), "factors": factors})}, score=score
    )
