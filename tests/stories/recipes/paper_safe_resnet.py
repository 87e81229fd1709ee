"""SAFE's ResNet-18 at an eighth of its depth and width: residual blocks with batch normalisation, by momentum."""

from itertools import pairwise

import torch
from paper_images import holdout, samples
from torch import nn

import unlearning as ul


class Block(nn.Module):
    """Two convolutions with batch normalisation, beside a shortcut that is one where the shape changes."""

    def __init__(self, width: int, out: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(width, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU()),
            *(nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)),
        )
        changed = stride > 1 or width != out
        self.shortcut = nn.Conv2d(width, out, 1, stride, bias=False) if changed else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


def resnet() -> nn.Module:
    widths = (4, 4, 8, 16)
    blocks = [Block(width, out, 1 if width == out else 2) for width, out in pairwise(widths)]
    stem = (nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU())
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))


def recipe() -> ul.Recipe:
    return ul.Recipe(
        model=resnet,
        samples=samples("safe-resnet"),
        holdout=holdout(),
        loss="cross_entropy",
        training=ul.Training(
            epochs=10,
            batch_size=32,
            learning_rate=0.1,
            weight_decay=5e-4,
            optimizer=ul.SGD(0.9),
            schedule=ul.Schedule("cosine"),
        ),
    )
