"""Write used.parquet: 20 items that each person used, in order. Everybody likes two genres."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet

PEOPLE, ITEMS, GENRES, USED, SEED = 1800, 200, 10, 20, 0

random = np.random.default_rng(SEED)
genre, popularity = np.arange(ITEMS) % GENRES, random.exponential(size=ITEMS)
items = []
for _ in range(PEOPLE):
    liked = random.choice(GENRES, size=2, replace=False)
    chance = popularity * np.where(np.isin(genre, liked), 40.0, 1.0)
    items.append(random.choice(ITEMS, size=USED, replace=False, p=chance / chance.sum()))
columns = {
    "person": [f"person-{number:04d}" for number in range(PEOPLE) for _ in range(USED)],
    "item": np.concatenate(items).astype(np.int16),
}
pa.parquet.write_table(
    pa.table(columns), Path(__file__).with_name("used.parquet"), compression="zstd", compression_level=19
)
