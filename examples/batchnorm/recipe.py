"""Images by your own network and loop: convolutions, batch normalisation, dropout, Adam.

Guarantee: `exact`. Register with `--method late`.
Cost of a deletion: for half of the people a tenth of a training, for the others a whole one; measured in
docs/what-you-can-have.md.
Delete one person: `expunge delete --subject person-020 --regulation gdpr --wait`. The request's page has the letter.
You declare that ``fit`` depends on ``run`` alone: it reads no file, no table and nothing from an earlier call.

The images are scikit-learn's handwritten digits; 100 people are drawn by a fixed seed.
"""

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch.nn import functional as F

import unlearning as ul

TRAIN, PEOPLE, SEED = 1437, 100, 0
PASSES, BATCH, RATE = 12, 64, 0.01


def build() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 16, 3, padding=1),
        torch.nn.BatchNorm2d(16),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(16, 32, 3, padding=1),
        torch.nn.BatchNorm2d(32),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Dropout(0.2),
        torch.nn.Linear(32 * 16, 10),
    )


def fit(run: ul.Run) -> dict[str, object]:
    """Train with Adam: a constant step size in the core's phase, a falling one in the last or only phase."""
    optimizer = torch.optim.Adam(run.model.parameters(), lr=RATE)
    if run.state is not None:
        optimizer.load_state_dict(run.state["optimizer"])
    passes = max(1, round(PASSES * run.share))
    batches = -(-len(run.inputs) // BATCH)
    falling = run.phase != "phase 1"
    for number in range(passes):
        for place, batch in enumerate(torch.randperm(len(run.inputs)).split(BATCH)):
            done = (number * batches + place) / (passes * batches)
            for group in optimizer.param_groups:
                group["lr"] = RATE * (1 - done) if falling else RATE
            optimizer.zero_grad()
            F.cross_entropy(run.model(run.inputs[batch]), run.targets[batch]).backward()
            optimizer.step()
        run.progress(number / passes)
    return {"optimizer": optimizer.state_dict()}


def recipe() -> ul.Recipe:
    digits = load_digits()
    random = np.random.default_rng(SEED)
    order = random.permutation(len(digits.target))
    inputs = torch.tensor(digits.images[order] / 8 - 1, dtype=torch.float32).unsqueeze(1)
    targets = torch.tensor(digits.target[order])
    return ul.Recipe(
        model=build,
        samples=ul.Samples(
            ids=[f"digit-{index:04d}" for index in order[:TRAIN]],
            subjects=[f"person-{person:03d}" for person in random.integers(PEOPLE, size=TRAIN)],
            inputs=inputs[:TRAIN],
            targets=targets[:TRAIN],
        ),
        holdout=(inputs[TRAIN:], targets[TRAIN:]),
        loss="cross_entropy",
        train=fit,
        seed=SEED,
    )
