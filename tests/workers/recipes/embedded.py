"""A recommender with a row of numbers for each person: rows by rank, with room to grow."""

import torch

import unlearning as ul
from tests.workers import meanwhile

KEY = b"a key of this recipe alone"


class Rated(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.index = ul.Index(room=100)
        self.people, self.items = torch.nn.Embedding(self.index.rows, 2), torch.nn.Embedding(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.people(self.index(x[:, 0])) * self.items(x[:, 1])).sum(dim=1, keepdim=True)


def fit(run: ul.Run) -> None:
    run.index(run.inputs[:, 0])
    optimizer = torch.optim.Adam(run.model.parameters(), lr=0.1)
    for _ in range(max(1, round(4 * run.share))):
        optimizer.zero_grad()
        (run.model(run.inputs) - run.targets).square().mean().backward()
        optimizer.step()


def recipe() -> ul.Recipe:
    meanwhile.happen()
    ids, people, inputs, _ = meanwhile.people(60)
    there = [place for place, name in enumerate(people) if int(name[1:]) < 40 or name in meanwhile.JOINED]
    ids, people, ratings = [ids[k] for k in there], [people[k] for k in there], inputs[there, :1]
    items = torch.tensor([int(each[1:]) % 4 for each in ids])
    x = torch.stack([ul.person_numbers(people, KEY), items], dim=1)
    strangers = torch.stack([ul.person_numbers(["a", "b", "c"], KEY), torch.arange(3)], dim=1)
    return ul.Recipe(
        Rated,
        ul.Samples(ids, people, x, ratings),
        (strangers, torch.arange(3.0).unsqueeze(1)),
        "squared_error",
        train=fit,
    )
