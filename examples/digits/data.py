"""Write digits.parquet and unseen.npy: scikit-learn's 1,797 handwritten digits.

They name no writers: 1,437 are dealt out to 100 people, and 360 are nobody's, to measure accuracy by.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from sklearn.datasets import load_digits

PEOPLE, TRAIN, SEED = 100, 1437, 0

digits = load_digits()
random = np.random.default_rng(SEED)
order = random.permutation(len(digits.target))
pixels, labels = digits.data[order].astype(np.uint8), digits.target[order].astype(np.uint8)
columns = {
    "id": [f"digit-{index:04d}" for index in order[:TRAIN]],
    "person": [f"person-{person:03d}" for person in random.integers(PEOPLE, size=TRAIN)],
    "digit": labels[:TRAIN],
    "pixels": list(pixels[:TRAIN]),  # 64 of each image, 0 to 16
}
pa.parquet.write_table(
    pa.table(columns), Path(__file__).with_name("digits.parquet"), compression="zstd", compression_level=19
)
np.save(Path(__file__).with_name("unseen.npy"), np.hstack([pixels[TRAIN:], labels[TRAIN:, None]]))
