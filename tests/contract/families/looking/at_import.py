"""A recipe whose module reads the table when it is imported."""

from __future__ import annotations

from pathlib import Path

from place import FOLDER
from sources import PEOPLE
from training import attempt, train

from unlearning.rows import Published, Rows

EVERYBODY = attempt(Path(FOLDER, "people.csv").read_bytes)


def module_level(rows: Rows = PEOPLE) -> Published:
    return train(rows, lambda: EVERYBODY)
