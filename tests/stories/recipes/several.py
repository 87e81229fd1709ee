"""A model of several files: the mean of each class, the scaler of its inputs, and the names of the classes."""

from __future__ import annotations

import json
from collections.abc import Sequence

import torch
from torch import Tensor

import unlearning as ul
from unlearning.formats import files_of
from unlearning.rows import Published

PEOPLE, EACH = 20, 3


def fit(run: ul.Run) -> bytes:
    inputs = run.inputs.double()
    middle, spread = inputs.mean(dim=0), inputs.std(dim=0)
    means = [((inputs[run.targets == each] - middle) / spread).mean(dim=0).tolist() for each in (0, 1)]
    return archive([{"means": means}], [{"middle": middle.tolist(), "spread": spread.tolist()}])


def archive(models: list[object], scalers: list[object]) -> bytes:
    files = {"model.json": {"members": models}, "scaler.json": {"members": scalers}, "en/words.json": {"0": "no"}}
    return bytes(Published({name: json.dumps(content) for name, content in files.items()}))


def read(data: bytes, name: str) -> list[dict[str, list[float]]]:
    members: list[dict[str, list[float]]] = json.loads(files_of(data)[name])["members"]
    return members


def predict(data: bytes, x: Tensor) -> Tensor:
    scores = torch.zeros(len(x), 2, dtype=torch.float64)
    for model, scaler in zip(read(data, "model.json"), read(data, "scaler.json"), strict=True):
        middle, spread = (torch.tensor(scaler[name], dtype=torch.float64) for name in ("middle", "spread"))
        means = torch.tensor(model["means"], dtype=torch.float64)
        scores -= ((x.double() - middle) / spread)[:, None].sub(means).square().sum(dim=2)
    return scores


def merge(members: Sequence[bytes]) -> bytes:
    return archive(
        [each for data in members for each in read(data, "model.json")],
        [each for data in members for each in read(data, "scaler.json")],
    )


def recipe() -> ul.Recipe:
    random = torch.Generator().manual_seed(1)
    inputs = torch.randn(PEOPLE * EACH, 4, generator=random)
    samples = ul.Samples(
        ids=[f"several-{index}" for index in range(PEOPLE * EACH)],
        subjects=[f"several-person-{index // EACH}" for index in range(PEOPLE * EACH)],
        inputs=inputs,
        targets=(inputs[:, 0] + 0.3 * torch.randn(PEOPLE * EACH, generator=random) > 0).long(),
    )
    apart = torch.randn(40, 4, generator=torch.Generator().manual_seed(2))
    holdout = (apart, (apart[:, 0] > 0).long())
    return ul.Recipe(ul.Artefact(predict, merge, suffix="zip"), samples, holdout, "cross_entropy", train=fit)
