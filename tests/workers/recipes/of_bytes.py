"""A model that is bytes: the mean input of each class, as JSON; an input may be missing."""

from __future__ import annotations

import json
from collections.abc import Sequence

import torch
from torch import Tensor

import unlearning as ul
from tests.workers import meanwhile
from unlearning.recipe import Run


def fit(run: Run) -> bytes:
    means = [run.inputs[run.targets == each].double().nanmean(dim=0).nan_to_num(0.0).tolist() for each in (0, 1)]
    people = len(run.people.unique())
    return json.dumps({"members": [means], "people": [people], "seed": [run.seed]}).encode()


def predict(data: bytes, x: Tensor) -> Tensor:
    members = torch.tensor(json.loads(data)["members"], dtype=torch.float64)  # (S, 2, features)
    far = (x.double().nan_to_num(0.0)[None, :, None] - members[:, None]).square().sum(dim=3)
    return -far.mean(dim=0)


def merge(members: Sequence[bytes]) -> bytes:
    parts = [json.loads(each) for each in members]
    return json.dumps({key: [one for part in parts for one in part[key]] for key in parts[0]}).encode()


def recipe() -> ul.Recipe:
    ids, people, inputs, targets = meanwhile.people(24, 1)
    inputs = inputs.clone()
    inputs[::7, 0] = float("nan")
    return ul.Recipe(
        model=ul.Artefact(predict, merge, suffix="means.json", libraries=("numpy",)),
        samples=ul.Samples(ids=ids, subjects=people, inputs=inputs, targets=targets, missing=True),
        holdout=(inputs[:10], targets[:10]),
        loss="cross_entropy",
        train=fit,
    )
