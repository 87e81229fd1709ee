"""A ResNet-18 as in Rewind-to-Delete (arXiv 2409.09778), with the batch normalisation that the paper leaves out."""

from drawn_images import dealt, drawn, mnist
from torch import Tensor, nn

import unlearning as ul


class Block(nn.Module):
    """Two convolutions with batch normalisation, added to what came in, or to a projection of it."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.path = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(),
            nn.Conv2d(after, after, 3, padding=1, bias=False),
            nn.BatchNorm2d(after),
        )
        same = stride == 1 and before == after
        projection = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))
        self.shortcut = nn.Identity() if same else projection

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.relu(self.path(x) + self.shortcut(x))


def resnet(width: int) -> nn.Module:
    """Return eight blocks in four stages: 17 convolutions and a linear layer; the paper's has a width of 64."""
    stages = [width, width, 2 * width, 2 * width, 4 * width, 4 * width, 8 * width, 8 * width]
    before = [width, *stages[:-1]]
    blocks = [Block(last, here, 1 if last == here else 2) for last, here in zip(before, stages, strict=True)]
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8 * width, 10),
    )


def of(images: Tensor, targets: Tensor, trained: int, people: int, width: int, training: ul.Training) -> ul.Recipe:
    """Return a recipe that trains on the first ``trained`` images and is judged by the last 400."""
    return ul.Recipe(
        model=lambda: resnet(width),
        samples=dealt(images[:trained], targets[:trained], people),
        holdout=(images[-400:], targets[-400:]),
        loss="cross_entropy",
        training=training,
    )


def training(epochs: int, batch_size: int) -> ul.Training:
    return ul.Training(
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=0.003,
        weight_decay=1e-4,
        optimizer=ul.AdamW(),
        schedule=ul.Schedule("exponential", factor=0.99),
    )


def recipe() -> ul.Recipe:
    return of(*drawn(), trained=96, people=16, width=2, training=training(3, 48))


def whole() -> ul.Recipe:
    return of(*mnist(), trained=8000, people=100, width=8, training=training(3, 256))
