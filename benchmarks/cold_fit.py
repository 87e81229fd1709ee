"""What forgetting a person costs without a service: the table is read without them, and scikit-learn fits anew.

``python -m benchmarks.cold_fit TABLE PERSON`` is a process that starts, loads its libraries, reads and fits.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from pyarrow import compute, parquet
from sklearn.linear_model import LogisticRegression


def fit_of(samples: int) -> LogisticRegression:
    """Return scikit-learn's form of the benchmarks' converged head: decay .01, no bias."""
    return LogisticRegression(C=1 / (0.01 * samples), tol=1e-8, fit_intercept=False, max_iter=1000)


def fit_without(table: Path, person: str) -> LogisticRegression:
    """Fit to a table of ``crowd.write_crowd`` without this person's rows."""
    rows = parquet.read_table(table, columns=["person", "x", "y"])
    rows = rows.filter(compute.not_equal(rows["person"], person))
    x = rows["x"].combine_chunks().flatten().to_numpy().reshape(len(rows), -1)
    return fit_of(len(rows)).fit(x.astype(np.float64), rows["y"].to_numpy())


if __name__ == "__main__":
    fit_without(Path(sys.argv[1]), sys.argv[2])
