"""A ResNet-18 of any width."""

from torch import Tensor, nn


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
    """Return eight blocks in four stages: 17 convolutions and a linear layer; the papers' have a width of 64."""
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
