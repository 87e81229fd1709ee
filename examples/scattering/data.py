"""Write digits.parquet: scikit-learn's 1,797 handwritten digits. They name no writers, so 100 people are drawn."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from sklearn.datasets import load_digits

PEOPLE, SEED = 100, 0

digits = load_digits()
writers = np.random.default_rng(SEED).integers(PEOPLE, size=len(digits.target))
columns = {
    "person": [f"person-{writer:03d}" for writer in writers],
    "digit": digits.target.astype(np.int8),
    "pixels": list(digits.data.astype(np.uint8)),  # 64 of each image, 0 to 16
}
pa.parquet.write_table(
    pa.table(columns), Path(__file__).with_name("digits.parquet"), compression="zstd", compression_level=19
)
