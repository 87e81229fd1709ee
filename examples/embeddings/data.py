"""Write ratings.parquet: 25 ratings of each person. People like some kinds of films more than others."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet

PEOPLE, FILMS, EACH, SEED = 1000, 150, 25, 0

random = np.random.default_rng(SEED)
tastes, films = random.normal(size=(PEOPLE, 4)), random.normal(size=(FILMS, 4))
film = np.stack([random.choice(FILMS, size=EACH, replace=False) for _ in range(PEOPLE)])
rating = (tastes[:, None, :] * films[film]).sum(axis=2) + 0.5 * random.normal(size=film.shape)
columns = {
    "person": [f"person-{number:04d}" for number in range(PEOPLE) for _ in range(EACH)],
    "film": film.ravel().astype(np.int16),
    "rating": (2 * rating.ravel()).round().clip(-20, 20) / 2,  # in halves, -10 to 10
}
pa.parquet.write_table(
    pa.table(columns), Path(__file__).with_name("ratings.parquet"), compression="zstd", compression_level=19
)
