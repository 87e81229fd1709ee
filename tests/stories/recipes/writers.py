"""Handwritten digits of 300 writers: batch normalisation, dropout, and a training of its own with Adam."""

import torch
from sklearn.datasets import load_digits

import unlearning as ul

WRITERS, EACH = 300, 4
PASSES = 8


def fit(run: ul.Run) -> dict[str, object]:
    passes = max(1, round(PASSES * run.share))
    optimizer = torch.optim.Adam(run.model.parameters(), lr=0.005)
    if run.state is not None:
        optimizer.load_state_dict(run.state["optimizer"])
    for number in range(passes):
        for batch in torch.randperm(len(run.inputs)).split(32):
            if len(batch) > 1:
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(run.model(run.inputs[batch]), run.targets[batch]).backward()
                optimizer.step()
        run.progress(number / passes)
    return {"optimizer": optimizer.state_dict()}


def build() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(64, 48),
        torch.nn.BatchNorm1d(48),
        torch.nn.ReLU(),
        torch.nn.Dropout(0.1),
        torch.nn.Linear(48, 10),
    )


def recipe() -> ul.Recipe:
    digits = load_digits()
    x, y = torch.tensor(digits.data / 16).float(), torch.tensor(digits.target)
    count = WRITERS * EACH
    return ul.Recipe(
        model=build,
        samples=ul.Samples(
            ids=[f"writers-scan-{index}" for index in range(count)],
            subjects=[f"writers-{index // EACH}" for index in range(count)],
            inputs=x[:count],
            targets=y[:count],
        ),
        holdout=(x[count:], y[count:]),
        loss="cross_entropy",
        train=fit,
    )
