"""A network as people train them: AdamW with a schedule, batch normalisation, dropout, noise on the inputs."""

import torch
from torch.nn import functional as F

import unlearning as ul
from tests.workers import meanwhile
from unlearning.recipe import Run


def fit(run: Run) -> dict[str, object]:
    """Train for ten times the share of passes that the run asks for; go on with the optimiser's own state."""
    optimizer = torch.optim.AdamW(run.model.parameters(), lr=0.05)
    if run.state is not None:
        optimizer.load_state_dict(run.state["optimizer"])
    passes = max(1, round(10 * run.share))
    for number in range(passes):
        for batch in torch.randperm(len(run.inputs)).split(8):
            if len(batch) > 1:
                x = run.inputs[batch] + 0.05 * torch.randn_like(run.inputs[batch])
                optimizer.zero_grad()
                F.cross_entropy(run.model(x), run.targets[batch]).backward()
                optimizer.step()
        run.progress(number / passes)
    return {"optimizer": optimizer.state_dict()}


def build() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(4, 6),
        torch.nn.BatchNorm1d(6),
        torch.nn.ReLU(),
        torch.nn.Dropout(0.1),
        torch.nn.Linear(6, 2),
    )


def recipe() -> ul.Recipe:
    ids, subjects, inputs, targets = meanwhile.people(24, 1)
    subjects = [(person, f"p{index + 2}") if index % 5 == 0 else person for index, person in enumerate(subjects)]
    return ul.Recipe(
        model=build,
        samples=ul.Samples(ids=ids, subjects=subjects, inputs=inputs, targets=targets),
        holdout=(inputs[:10], targets[:10]),
        loss="cross_entropy",
        train=fit,
        weights=_elsewhere(),
    )


def _elsewhere():
    torch.manual_seed(3)
    return build().state_dict()
