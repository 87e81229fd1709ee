"""The images that the papers' rows are measured on: MNIST where the folder holds it, and digits for a quick trial."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn.functional import interpolate

from benchmarks.data_folders import folder_with

BESIDE = Path("shared", "data", "mnist10k")
"""where the images lie, beside the checkout or further up"""
PIXELS, LABELS = "images-idx3-ubyte.gz", "labels-idx1-ubyte.gz"
MEAN, DEVIATION = 0.1307, 0.3081
"""of MNIST's pixels"""


@dataclass(frozen=True)
class Images:
    """Pixels (n, 1, 28, 28) in [0, 1] and labels (n,), to train on and to test with."""

    inputs: Tensor
    targets: Tensor
    test_inputs: Tensor
    test_targets: Tensor

    def normalised(self) -> Images:
        """Return the images with MNIST's mean taken off and divided by its deviation."""
        scaled = [(pixels - MEAN) / DEVIATION for pixels in (self.inputs, self.test_inputs)]
        return Images(scaled[0], self.targets, scaled[1], self.test_targets)

    def first(self, count: int) -> Images:
        """Return these with the first ``count`` training images alone."""
        return self.at(torch.arange(len(self.inputs))[:count])

    def at(self, places: Tensor) -> Images:
        """Return these with the training images at ``places`` (m,) alone, in that order."""
        return Images(self.inputs[places], self.targets[places], self.test_inputs, self.test_targets)


def folder() -> Path:
    """Return the folder of MNIST's test split: ``EXPUNGE_MNIST``, else ``shared/data/mnist10k`` beside the checkout.

    Raises:
        FileNotFoundError: there is none; the message says what to set.
    """
    return folder_with((PIXELS, LABELS), "EXPUNGE_MNIST", BESIDE, "MNIST's test split")


def mnist() -> Images:
    """Read the 10,000 images of MNIST's test split: the last 2,000 are tested with, as the folder's README has it.

    Raises:
        FileNotFoundError: the folder is missing.
    """
    pixels = _idx(PIXELS, 16).reshape(-1, 1, 28, 28).float() / 255
    labels = _idx(LABELS, 8).long()
    return Images(pixels[:8000], labels[:8000], pixels[8000:], labels[8000:])


def digits() -> Images:
    """Return scikit-learn's 1,797 digits, enlarged to 28 x 28: they need no folder. The last 400 are tested with."""
    found = load_digits()
    pixels = torch.tensor(found.images / 16, dtype=torch.float32).unsqueeze(1)
    large = interpolate(pixels, size=(28, 28), mode="bilinear", align_corners=False)
    labels = torch.tensor(found.target, dtype=torch.int64)
    return Images(large[:-400], labels[:-400], large[-400:], labels[-400:])


def _idx(name: str, header: int) -> Tensor:
    with gzip.open(folder() / name) as file:
        return torch.frombuffer(bytearray(file.read()[header:]), dtype=torch.uint8)
