"""A network as people train them: AdamW, batch normalisation, dropout, noise on the inputs; under ``late`` it goes on.

Under ``shards`` its members are one file.
"""

from collections.abc import Mapping, Sequence

import people
import torch
from safetensors.torch import load, save
from torch.nn import functional as F

import unlearning as ul

FILE = "model.safetensors"


def build() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(4, 6),
        torch.nn.BatchNorm1d(6),
        torch.nn.ReLU(),
        torch.nn.Dropout(0.1),
        torch.nn.Linear(6, 2),
    )


def merge(members: Sequence[Mapping[str, bytes]]) -> ul.Published:
    tensors = {
        f"{number}.{name}": value for number, each in enumerate(members) for name, value in load(each[FILE]).items()
    }
    return ul.Published({FILE: save(tensors)})


def recipe(
    rows: ul.Rows = ul.table("people.csv", person="person", id="id"), run: ul.TrainingRun = ul.run()
) -> ul.Published:
    torch.manual_seed(0)
    model, x, y = build(), people.inputs(rows), rows.tensor("label")
    if run.start is not None:
        model.load_state_dict(load(run.start[FILE]))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    for _ in range(10):
        for batch in torch.randperm(len(x)).split(8):
            if len(batch) > 1:
                optimizer.zero_grad()
                F.cross_entropy(model(x[batch] + 0.05 * torch.randn_like(x[batch])), y[batch]).backward()
                optimizer.step()
    return ul.Published({FILE: save(model.state_dict())})
