"""A table of people for a logistic model: ten rows each, twenty columns, and a label.

``python -m benchmarks.people_table FOLDER PEOPLE`` writes ``people.parquet``. It is a program of its own, because who
measures the memory of others must not hold the libraries that they hold.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import parquet

EACH, FEATURES = 10, 20


def write_people(folder: Path, people: int) -> None:
    draw = np.random.default_rng(0)
    x = draw.standard_normal((people * EACH, FEATURES))
    y = draw.random(len(x)) < 1 / (1 + np.exp(-x @ draw.standard_normal(FEATURES)))
    columns = {f"x{number}": x[:, number] for number in range(FEATURES)}
    names = [f"p{row // EACH}" for row in range(len(x))]
    parquet.write_table(pa.table({"person": names, **columns, "y": y.astype(int)}), folder / "people.parquet")


if __name__ == "__main__":
    write_people(Path(sys.argv[1]), int(sys.argv[2]))
