"""Images by your own network and loop: convolutions, batch normalisation, dropout, Adam.

Guarantee: `exact`. Register with `--method late`.
Cost of a deletion: for half of the people a tenth of a training, for the others a whole one; measured in
docs/what-you-can-have.md.
Delete one person: `expunge delete --subject person-020 --regulation gdpr --wait`. The request's page has the letter.
You declare nothing: everything is computed from the rows of the people who are here.

``digits.parquet`` has scikit-learn's handwritten digits, each with a person.
"""

import torch
from safetensors.torch import load, save
from torch.nn import functional as F

import unlearning as ul

EARLY_PASSES, LATE_PASSES, BATCH, RATE = 18, 2, 64, 0.01


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


def images_of(rows: ul.Rows) -> torch.Tensor:
    return (rows.tensor("pixels") / 8 - 1).reshape(-1, 1, 8, 8)


def recipe(
    rows: ul.Rows = ul.table("digits.parquet", person="person", aside=0.2), run: ul.TrainingRun = ul.run()
) -> ul.Published:
    images, digits = images_of(rows), rows.tensor("digit").long()
    early = run.start is None  # the people who are trained on first; later everybody
    model, passes = build(), EARLY_PASSES if early else LATE_PASSES
    if not early:
        model.load_state_dict(load(run.start["model.safetensors"]))
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    # the step size falls to 0 once everybody has joined; before, whoever joins would be hardly learned
    steps = passes * -(-len(rows) // BATCH)
    rates = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 1.0 if early else 0.0, steps)
    for _ in range(passes):
        for batch in torch.randperm(len(rows)).split(BATCH):
            optimizer.zero_grad()
            F.cross_entropy(model(images[batch]), digits[batch]).backward()
            optimizer.step()
            rates.step()
    model.eval()

    def score(aside: ul.Rows) -> float:
        return float((model(images_of(aside)).argmax(dim=1) == aside.tensor("digit")).float().mean())

    return ul.Published({"model.safetensors": save(model.state_dict())}, score=score)
