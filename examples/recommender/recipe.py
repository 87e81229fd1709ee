"""A recommender: matrix factorisation by alternating least squares, from what people used.

Guarantee: `exact`. Register with `--method late`.
Cost of a deletion: for half of the people a tenth of the alternations, for the others all; measured in
docs/what-you-can-have.md.
Delete one person: `expunge delete --subject person-1500 --regulation gdpr --wait`. The request's page has the letter.
You declare that ``fit`` depends on ``run`` alone.

What is published: one row of numbers for each item. Rows of people are personal data, and none is kept anywhere: the
model computes a person's row from that person's own history whenever it is asked, by one small linear system. The
histories live in your own table; a deletion takes the person's line out of the training, and the item rows are solved
again without it. Delete the line from your own table too.

The losses are those of Hu, Koren and Volinsky, "Collaborative filtering for implicit feedback datasets", 2008. A
sample is one person: what the person used, but for one item, and as the target that item. Accuracy is the share of
people whose left-out item comes first of all items that they have not used.
"""

import numpy as np
import torch
from torch import Tensor, nn

import unlearning as ul

PEOPLE, HELD, ITEMS, GENRES, USED, SEED = 3000, 500, 200, 10, 20, 0
RANK, ALTERNATIONS, CONFIDENCE, DECAY = 12, 20, 10.0, 1.0


def solved(rows: Tensor, factors: Tensor) -> Tensor:
    """Return the factors (n, k) of ``rows`` (n, m), 1 for used and 0 for not, that fit the m other ``factors`` (m, k).

    Each minimises ``sum_j c_j (row_j - x . factor_j)^2 + DECAY |x|^2``, with c_j = 1 + CONFIDENCE where row_j is 1.
    """
    weights = 1.0 + CONFIDENCE * rows
    rank = factors.shape[1]
    products = (factors.unsqueeze(2) * factors.unsqueeze(1)).flatten(1)
    systems = (weights @ products).unflatten(1, (rank, rank)) + DECAY * torch.eye(rank).to(factors)
    return torch.linalg.solve(systems, (weights * rows) @ factors)


class Recommender(nn.Module):
    """Histories (n, ITEMS), 1 for used -> scores (n, ITEMS), far below all others for what was used already."""

    def __init__(self) -> None:
        super().__init__()
        self.items = nn.Parameter(0.1 * torch.randn(ITEMS, RANK))

    def forward(self, used: Tensor) -> Tensor:
        return solved(used, self.items) @ self.items.T - 1e4 * used


def fit(run: ul.Run) -> None:
    """Solve everyone's rows from the items', then the items' from everyone's, and again. Only the items are kept."""
    whole = run.inputs + nn.functional.one_hot(run.targets, ITEMS)
    alternations = max(1, round(ALTERNATIONS * run.share))
    with torch.no_grad():
        for number in range(alternations):
            people = solved(whole, run.model.items)
            run.model.items.copy_(solved(whole.T, people))
            run.progress(number / alternations)


def histories() -> tuple[Tensor, Tensor]:
    """Return what each person used, (n, ITEMS), and one more item of theirs, (n,): everybody likes two genres."""
    random = np.random.default_rng(SEED)
    genre = np.arange(ITEMS) % GENRES
    popularity = random.exponential(size=ITEMS)
    used, asked = np.zeros((PEOPLE + HELD, ITEMS), dtype=np.float32), []
    for row in used:
        liked = random.choice(GENRES, size=2, replace=False)
        chance = popularity * np.where(np.isin(genre, liked), 40.0, 1.0)
        chosen = random.choice(ITEMS, size=USED, replace=False, p=chance / chance.sum())
        row[chosen[:-1]] = 1.0
        asked.append(chosen[-1])
    return torch.tensor(used), torch.tensor(np.array(asked))


def recipe() -> ul.Recipe:
    used, asked = histories()
    names = [f"person-{number:03d}" for number in range(len(used))]
    return ul.Recipe(
        model=Recommender,
        samples=ul.Samples(
            ids=[f"history of {name}" for name in names[:PEOPLE]],
            subjects=names[:PEOPLE],
            inputs=used[:PEOPLE],
            targets=asked[:PEOPLE],
        ),
        holdout=(used[PEOPLE:], asked[PEOPLE:]),
        holdout_subjects=names[PEOPLE:],
        loss="cross_entropy",  # of the scores; accuracy is what matters
        train=fit,
        seed=SEED,
    )
