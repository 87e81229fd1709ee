"""One recipe for each kind of training, with 60 people of four samples each, or without those whom a file names.

``settled`` writes them into a folder as an operator would: a file for each kind, which imports this one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import SGDClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn
from torch.nn import functional as F

import unlearning as ul
from unlearning.features import RandomFourier
from unlearning.model.parts import parts_of
from unlearning.settings import Draw

HERE = Path(__file__)
ABSENT = "absent.json"
PEOPLE, EACH, FEATURES = 60, 4, 5
KEY = b"a key of these recipes alone"
MOST = (PEOPLE - 1) * EACH * (FEATURES + 1) * 8
"""bytes of samples that the installations hold in memory: those of all people but one fit"""
RARE = "p7"
"""the only person of class 2 in the kind ``rare class``"""


def settled(folder: Path) -> None:
    """Write a recipe for each kind into ``folder``; nobody is absent."""
    folder.mkdir(parents=True)
    (folder / "kinds.py").write_text(HERE.read_text())
    for kind in KINDS:
        (folder / f"{kind}.py").write_text(f"import kinds\n\n\ndef recipe():\n    return kinds.KINDS[{kind!r}]()\n")
    leave_out(folder, ())


def leave_out(folder: Path, people: Iterable[str]) -> None:
    """Let the recipes in ``folder`` give no sample of these people."""
    (folder / ABSENT).write_text(json.dumps(sorted(people)))


def samples(*, shared: bool = False, rare: bool = False, weighted: bool = False, stored: bool = False) -> ul.Samples:
    """Return the samples of those who are there.

    ``shared``: every fifth is of two people; ``rare``: ``RARE`` alone has class 2; ``stored``: arrays that are not held
    in memory where they are too large, as those of everyone are (``MOST``), and weighted ones of fewer people.
    """
    random = torch.Generator().manual_seed(5)
    inputs = torch.randn(PEOPLE * EACH, FEATURES, generator=random)
    inputs[:, -1] = 1.0
    targets = (inputs[:, 0] + 0.5 * torch.randn(len(inputs), generator=random) > 0).long()
    people: list[tuple[str, ...]] = [(f"p{row % PEOPLE}",) for row in range(len(inputs))]
    if shared:
        people = [(*names, f"p{(row + 3) % PEOPLE}") if row % 5 == 0 else names for row, names in enumerate(people)]
    if rare:
        targets[[row for row, names in enumerate(people) if names == (RARE,)]] = 2
    absent = set(json.loads(HERE.with_name(ABSENT).read_text()))
    there = [row for row, names in enumerate(people) if absent.isdisjoint(names)]
    ids, people = [f"s{row}" for row in there], [people[row] for row in there]
    weight = 0.5 + torch.rand(len(inputs), generator=random) if weighted else torch.ones(len(inputs))
    inputs, targets, weight = inputs[there], targets[there], weight[there]
    if stored:
        arrays = inputs.double().numpy(), targets.numpy()
        return ul.Samples.from_numpy(*arrays, ids=ids, people=people, weight=weight.numpy() if weighted else None)
    return ul.Samples(ids, people, inputs, targets, weight=weight if weighted else None)


HOLDOUT = (torch.eye(FEATURES), torch.arange(FEATURES) % 2)


def perceptron(classes: int = 2) -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 6), nn.Tanh(), nn.Linear(6, classes))


def normalised() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))


def dropping() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 6), nn.Tanh(), nn.Dropout(0.3), nn.Linear(6, 2))


def head() -> nn.Module:
    return nn.Linear(FEATURES, 2, bias=False)


def on_features() -> nn.Module:
    return nn.Sequential(RandomFourier(FEATURES, 12), nn.Linear(12, 2, bias=False))


def jitter(x: torch.Tensor, draw: Draw) -> torch.Tensor:
    return x + 0.1 * (draw(x.shape[1]) - 0.5)


def own_loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(outputs, targets, reduction="none", label_smoothing=0.1)


def built_in(
    model: Callable[[], nn.Module] = perceptron, loss: Any = "cross_entropy", data: Any = None, **training: Any
) -> Callable[[], ul.Recipe]:
    """Return a recipe of the built-in training, in batches of 32, with ``training``'s settings besides."""
    settings = {"epochs": 3, "batch_size": 32, "learning_rate": 0.1, "weight_decay": 0.01, **training}

    def recipe() -> ul.Recipe:
        return ul.Recipe(model, samples(**data or {}), HOLDOUT, loss, ul.Training(**settings))

    return recipe


def fit(run: ul.Run) -> dict[str, object]:
    optimizer = torch.optim.AdamW(run.model.parameters(), lr=0.05)
    if run.state is not None:
        optimizer.load_state_dict(run.state["optimizer"])
    kept = ~run.validation(0.1)
    x, y = run.inputs[kept], run.targets[kept]
    for _ in range(max(1, round(3 * run.share))):
        for batch in torch.randperm(len(x)).split(32):
            optimizer.zero_grad()
            noise = torch.from_numpy(np.random.standard_normal((len(batch), FEATURES))).float()
            F.cross_entropy(run.model(x[batch] + 0.05 * noise), y[batch]).backward()
            optimizer.step()
    return {"optimizer": optimizer.state_dict()}


def own() -> ul.Recipe:
    return ul.Recipe(dropping, samples(shared=True), HOLDOUT, "cross_entropy", train=fit)


class Rated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.index = ul.Index(room=80)
        self.people, self.items = nn.Embedding(self.index.rows, 2), nn.Embedding(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.people(self.index(x[:, 0])) * self.items(x[:, 1])).sum(dim=1, keepdim=True)


def rate(run: ul.Run) -> None:
    run.index(run.inputs[:, 0])
    optimizer = torch.optim.Adam(run.model.parameters(), lr=0.1)
    for _ in range(max(1, round(4 * run.share))):
        optimizer.zero_grad()
        (run.model(run.inputs) - run.targets).square().mean().backward()
        optimizer.step()


def embedded() -> ul.Recipe:
    given = samples()
    people = [names[0] for names in given.people]
    items = torch.tensor([int(name[1:]) % 4 for name in given.ids])
    x = torch.stack([ul.person_numbers(people, KEY), items], dim=1)
    strangers = torch.stack([ul.person_numbers(["a", "b"], KEY), torch.arange(2)], dim=1)
    ratings = given.tensors()[0][:, :1]
    holdout = (strangers, torch.zeros(2, 1))
    return ul.Recipe(Rated, ul.Samples(given.ids, people, x, ratings), holdout, "squared_error", train=rate)


def means(run: ul.Run) -> bytes:
    found = [run.inputs[run.targets == each].double().mean(dim=0).tolist() for each in (0, 1)]
    return json.dumps({"members": [found], "people": [len(run.people.unique())], "seeds": [run.seed]}).encode()


def nearest(data: bytes, x: torch.Tensor) -> torch.Tensor:
    members = torch.tensor(json.loads(data)["members"], dtype=torch.float64)
    return -(x.double()[None, :, None] - members[:, None]).square().sum(dim=3).mean(dim=0)


def merged(members: Any) -> bytes:
    parts = [json.loads(each) for each in members]
    return json.dumps({key: [one for part in parts for one in part[key]] for key in parts[0]}).encode()


def of_bytes() -> ul.Recipe:
    model = ul.Artefact(nearest, merged, suffix="means.json", libraries=("numpy",))
    return ul.Recipe(model, samples(), HOLDOUT, "cross_entropy", train=means)


GRID = ul.grid(**{f"x{place}": [-1.0, -0.5, 0.0, 0.5, 1.0] for place in range(FEATURES)})


def trees(made: Callable[[], tuple[Any, Any]], loss: str = "binary_logistic") -> Callable[[], ul.Recipe]:
    def recipe() -> ul.Recipe:
        model, train = made()
        found = ul.Recipe(model, samples(), HOLDOUT, loss, train=train)
        return replace(found, public={part.name: part.digest for part in parts_of(found)})

    return recipe


def estimator() -> ul.Recipe:
    given = samples()
    x, y = given.tensors()
    people = [names[0] for names in given.people]
    made = make_pipeline(StandardScaler(), SGDClassifier(random_state=0))
    return ul.sklearn(made, x, y, people, classes=(0, 1), ids=list(given.ids), exact=True)


KINDS: dict[str, Callable[[], ul.Recipe]] = {
    "sgd": built_in(),
    "full-batch": built_in(batch_size=None, sample_clip=0.5, schedule=ul.Schedule("cosine", warmup=0.2)),
    "momentum": built_in(optimizer=ul.SGD(momentum=0.9), accumulate=2, clip=0.5),
    "adam": built_in(optimizer=ul.AdamW(), decay=0.99),
    "dropout": built_in(dropping, data={"shared": True}),
    "norm": built_in(normalised),
    "augment": built_in(augment=jitter),
    "radius": built_in(radius=1.0),
    "weights": built_in(data={"weighted": True}),
    "converge": built_in(head, converge=1e-9),
    "features": built_in(on_features, converge=1e-9, data={"weighted": True}),
    "blocks": built_in(head, data={"stored": True, "weighted": True}, epochs=0, converge=1e-9),
    "batches-of-blocks": built_in(data={"stored": True, "weighted": True}),
    "crossing": built_in(head, data={"stored": True}, epochs=0, converge=1e-3),
    "own-loss": built_in(loss=own_loss, data={"shared": True}),
    "own-loss-adam": built_in(loss=own_loss, optimizer=ul.AdamW(), model=dropping),
    "rare-class": built_in(lambda: perceptron(3), data={"rare": True}),
    "own": own,
    "embedded": embedded,
    "bytes": of_bytes,
    "lightgbm": trees(lambda: ul.trees.lightgbm(GRID, rounds=5, num_leaves=4)),
    "xgboost": trees(lambda: ul.trees.xgboost(GRID, rounds=5)),
    "forest": trees(
        lambda: ul.trees.sklearn(GRID, RandomForestClassifier(5, random_state=0), classes=2), "cross_entropy"
    ),
    "estimator": estimator,
}
